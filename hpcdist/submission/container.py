"""The image that a job's ranks run in: the job's section and the profile's become one, which is
checked before anything is submitted, and the folders that are seen inside."""

from __future__ import annotations

import functools
import os
import shlex
from pathlib import Path

import msgspec

from hpcdist.base.carried import carried_folder
from hpcdist.base.errors import JobError
from hpcdist.base.secrets import holds_secret
from hpcdist.cluster.load import LoadedProfile
from hpcdist.job import LoadedJob
from hpcdist.job.check import show
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


def settle_container(
    loaded: LoadedJob, cluster: LoadedProfile, scheduler: Scheduler
) -> tuple[LoadedJob, list[str]]:
    """Return the job with the container that it runs in, and what the user should know of it.

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
        return loaded.with_job(container=Container()), []
    if not scheduler.takes_containers:
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
    runtime, notes = _runtime(wanted.runtime, scheduler)
    image = str(wanted.image)
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
        notes += _notes_on_mount(text, runtime, scheduler)
    if is_reference(image, runtime):
        notes.append(
            f"{image} is looked for when the job starts, and no sooner; its first start fetches "
            "and converts it, which takes minutes"
        )
    settled = msgspec.structs.replace(wanted, image=image, runtime=runtime)
    return loaded.with_job(container=settled), notes


def _runtime(wanted: str, scheduler: Scheduler) -> tuple[str, list[str]]:
    """Return the runtime, and a note where it is not there on this machine."""
    usable = scheduler.container_runtimes
    if wanted not in ("auto", *usable):
        hint = f"name another: {', '.join(usable)}"
        raise JobError(
            f"container.runtime is {wanted}, which {scheduler.title} does not start", hint=hint
        )
    if wanted != "auto" and has_runtime(wanted):
        return wanted, []
    if wanted != "auto" and not scheduler.runs_here:
        return wanted, [f"{wanted} is not on this machine: the nodes must have it"]
    found = [name for name in usable if has_runtime(name)]
    if wanted != "auto":
        raise JobError(
            f"container.runtime is {wanted}, which is not on this machine",
            hint=f"there is {', '.join(found) or 'none'}",
        )
    if len(found) == 1:
        return found[0], []
    here = f"there are {' and '.join(found)}" if found else "none is on this machine"
    raise JobError(
        f"container.runtime is auto, and {here}",
        hint="name the one that the nodes have: --set container.runtime=apptainer, or the key "
        "container.runtime of the cluster profile",
    )


def _notes_on_mount(text: str, runtime: str, scheduler: Scheduler) -> list[str]:
    key, hint = f"container.mounts has {show(text)}", ""
    try:
        mount = Mount.parse(text)
    except ValueError as error:
        hint = "for example /scratch, /scratch/data:/data:ro or $TMPDIR:/local"
        raise JobError(f"{key}: {error}", hint=hint) from None
    if mount.is_read_only and runtime == "charliecloud":
        raise JobError(f"{key}, and charliecloud mounts nothing read-only", hint="leave out :ro")
    if "$" in mount.source or os.path.exists(mount.source):
        return []
    if scheduler.runs_here:
        raise JobError(f"{key}, and there is no {mount.source}", hint="name a folder that is there")
    there = "which is not on this machine: the nodes must have it"
    return [f"container.mounts has {mount.source}, {there}"]


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
    try:
        mounts = [
            *map(Mount.at_same_path, outermost),
            # The folder around it is the same for every version: images need one mount point.
            Mount.at_same_path(
                os.path.dirname(carried), is_read_only=wanted.runtime != "charliecloud"
            ),
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
    return str(carried_folder())


def explanation(job: JobSpec, container: InContainer | None) -> list[str]:
    """Return what is started, and the folders that are seen inside, a line each."""
    if container is None:
        return []
    used = used_container(job)
    identity = f" ({used.identity})" if used and used.identity else ""
    image = f"container: {container.image}{identity}, started by {container.runtime}"
    lines = [f"{image}; the ranks run inside, by its {container.python}"]
    lines += [f"seen inside: {mount}" for mount in container.mounts]
    if container.options:
        lines.append(f"options for {container.runtime}: {shlex.join(container.options)}")
    return lines
