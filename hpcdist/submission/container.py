"""The image that a job's ranks run in: the job's section and the profile's become one, which is
checked before anything is submitted, and the folders that are seen inside."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.secrets import holds_secret
from hpcdist.cluster.load import LoadedProfile
from hpcdist.job.check import show
from hpcdist.job.load import LoadedJob
from hpcdist.job.spec import Container, FunctionJob, JobSpec, ScriptJob
from hpcdist.machine.containers import (
    NO_IMAGE,
    InContainer,
    Mount,
    NoImageError,
    has_runtime,
    is_reference,
    look_at_image,
)
from hpcdist.runs.spec import UsedContainer
from hpcdist.schedulers.base import Scheduler

_NONE = "--set container.image=none runs without an image"


def settle_container(loaded: LoadedJob, cluster: LoadedProfile, scheduler: Scheduler) -> LoadedJob:
    """Return the job with the container that it runs in.

    The job's own keys count before the profile's; mounts and options are added up. Raises JobError.
    """
    own, wanted = loaded.job.container, cluster.profile.container
    keys = {key: getattr(own, key) for key in ("image", "runtime", "python")}
    wanted = msgspec.structs.replace(
        wanted,
        **{key: value for key, value in keys.items() if value != getattr(Container(), key)},
        mounts=list(dict.fromkeys([*wanted.mounts, *own.mounts])),
        options=[*wanted.options, *own.options],
    )
    if wanted.image in {None, NO_IMAGE}:
        return loaded.with_job(container=Container())
    if not scheduler.container_runtimes:
        raise JobError(
            f"container.image is {show(wanted.image)}, and {scheduler.title} starts no containers",
            hint="leave it out with --set container.image=none",
        )
    for key, texts in (("mounts", wanted.mounts), ("options", wanted.options)):
        if any(map(holds_secret, texts)):
            raise JobError(
                f"container.{key} holds a value that looks secret, and would stand in spec.json",
                hint="export it in the shell that submits, or read it from a private file inside",
            )
    runtime, image = _runtime(wanted.runtime, scheduler), str(wanted.image)
    if not is_reference(image, runtime):
        image = os.path.abspath(os.path.expanduser(image))
    try:
        look_at_image(image, runtime)
    except NoImageError as error:
        raise JobError(
            f"container.image is {show(image)}, which {error}",
            hint=f"see docs/containers.md for what each runtime starts; {_NONE}",
        ) from None
    for text in wanted.mounts:
        _check_mount(text, runtime)
    return loaded.with_job(container=msgspec.structs.replace(wanted, image=image, runtime=runtime))


def _runtime(wanted: str, scheduler: Scheduler) -> str:
    """Return the runtime that is named, or the only one that is on this machine."""
    usable = scheduler.container_runtimes
    found = [name for name in usable if has_runtime(name)] if wanted == "auto" else [wanted]
    if len(found) == 1 and found[0] in usable:
        return found[0]
    why = f"{scheduler.title} does not start it"
    if wanted == "auto":
        why = f"there are {' and '.join(found)}" if found else "none is on this machine"
    hint = f"name one of {', '.join(found or usable)}, in --set container.runtime=NAME or in the"
    raise JobError(f"container.runtime is {wanted}, and {why}", hint=f"{hint} cluster profile")


def _check_mount(text: str, runtime: str) -> None:
    key = f"container.mounts has {show(text)}"
    try:
        mount = Mount.parse(text)
    except ValueError as error:
        hint = "for example /scratch, /scratch/data:/data:ro or $TMPDIR:/local"
        raise JobError(f"{key}: {error}", hint=hint) from None
    if mount.is_read_only and runtime == "charliecloud":
        raise JobError(f"{key}, and charliecloud mounts nothing read-only", hint="leave out :ro")


def used_container(job: JobSpec) -> UsedContainer | None:
    """Return the image as it stands in spec.json."""
    image, runtime = job.container.image, job.container.runtime
    if image is None:
        return None
    try:
        identity = look_at_image(image, runtime)
    except NoImageError:  # removed at this moment
        identity = None
    return UsedContainer(image=image, runtime=runtime, identity=identity)


def in_container(job: JobSpec, *, runs: Path, cwd: str, submit_dir: str) -> InContainer | None:
    """Return how the ranks of a job are started; None where they run in no image. The folders of
    the run, of the submission and of the job's keys are seen inside, as far as they are there.

    Raises JobError where a folder cannot be mounted, or the image is one that lacks a mount point.
    """
    wanted = job.container
    if wanted.image is None:
        return None
    named = [getattr(getattr(job, "data", None), "root", None)]
    named.append(getattr(getattr(job, "checkpoint", None), "resume", None))
    if isinstance(job, ScriptJob) and job.script:
        named.append(os.path.dirname(os.path.join(submit_dir, job.script)))
    if isinstance(job, FunctionJob) and job.source:
        named.append(os.path.dirname(job.source))
    paths = [os.path.abspath(os.path.join(submit_dir, name)) for name in named if name]
    paths = [str(runs), cwd, submit_dir, *filter(os.path.exists, paths)]
    unique = [Path(path) for path in dict.fromkeys(map(os.path.abspath, paths))]
    outermost = [str(path) for path in unique if not any(other in path.parents for other in unique)]
    carried = _carried()
    # The folder around it is the same for every version: images need one mount point.
    around, is_read_only = os.path.dirname(carried), wanted.runtime != "charliecloud"
    try:
        mounts = [
            *map(Mount.at_same_path, outermost),
            Mount.at_same_path(around, is_read_only=is_read_only),
            *map(Mount.parse, wanted.mounts),
        ]
    except ValueError as error:
        raise JobError(
            f"container.image is {show(wanted.image)}, and {error}",
            hint=f"rename the folder, or use another; {_NONE}",
        ) from None
    return InContainer(
        runtime=wanted.runtime,
        image=wanted.image,
        mounts=mounts,
        python=wanted.python,
        python_path=carried,
        options=wanted.options,
    )


@functools.cache  # the runs of a sweep carry the same
def _carried() -> str:
    from hpcdist.base.carried import carried_folder

    return str(carried_folder())
