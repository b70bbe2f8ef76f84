"""The image that a job's ranks run in: the job's section and the profile's become one, which is
checked before anything is submitted, and the folders that are seen inside."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterable
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
    RUNTIMES,
    InContainer,
    Mount,
    NoImageError,
    find_runtimes,
    has_runtime,
    is_reference,
    look_at_image,
)
from hpcdist.runs.spec import UsedContainer
from hpcdist.schedulers.base import Scheduler


def settle_container(
    loaded: LoadedJob, cluster: LoadedProfile, scheduler: Scheduler
) -> tuple[LoadedJob, list[str]]:
    """Return the job with the container that it runs in, and what the user should know of it.

    The job's own keys count before the profile's. Raises JobError.
    """
    wanted = _merged(loaded.job.container, cluster.profile.container)
    if wanted.image in {None, NO_IMAGE}:
        return _with_container(loaded, Container()), []
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
            hint="see docs/containers.md for what each runtime starts; --set container.image=none "
            "runs without an image",
        ) from None
    for text in wanted.mounts:
        notes += _notes_on_mount(text, runtime, scheduler)
    if is_reference(image, runtime):
        notes.append(
            f"{image} is looked for when the job starts, and no sooner; its first start fetches "
            "and converts it, which takes minutes"
        )
    settled = msgspec.structs.replace(wanted, image=image, runtime=runtime)
    return _with_container(loaded, settled), notes


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
    """Return how the ranks of a job are started; None where they run in no image.

    Raises JobError where a folder cannot be mounted, or the image is one that lacks a mount point.
    """
    wanted = job.container
    if wanted.image is None:
        return None
    carried = _carried()
    own = [str(runs), cwd, submit_dir, *_folders_of(job, submit_dir)]
    try:
        mounts = (
            *map(Mount.at_same_path, _outermost(own)),
            # The folder around it is the same for every version: images need one mount point.
            Mount.at_same_path(
                os.path.dirname(carried), is_read_only=wanted.runtime != "charliecloud"
            ),
            *map(Mount.parse, wanted.mounts),
        )
    except ValueError as error:
        raise JobError(
            f"container.image is {show(wanted.image)}, and {error}",
            hint="rename the folder, or use another; --set container.image=none runs without an "
            "image",
        ) from None
    return InContainer(
        runtime=wanted.runtime,
        image=wanted.image,
        mounts=list(mounts),
        python=wanted.python,
        python_path=carried,
        options=wanted.options,
    )


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


# Settling.


def _with_container(loaded: LoadedJob, container: Container) -> LoadedJob:
    job = msgspec.structs.replace(loaded.job, container=container)
    return msgspec.structs.replace(loaded, job=job)


def _merged(of_job: Container, of_profile: Container) -> Container:
    """Return the profile's section with the keys that the job sets; lists are added up."""
    usual = Container()
    own = {key: getattr(of_job, key) for key in ("image", "runtime", "python")}
    return msgspec.structs.replace(
        of_profile,
        **{key: value for key, value in own.items() if value != getattr(usual, key)},
        mounts=list(dict.fromkeys([*of_profile.mounts, *of_job.mounts])),
        options=[*of_profile.options, *of_job.options],
    )


def _runtime(wanted: str, scheduler: Scheduler) -> tuple[str, list[str]]:
    """Return the runtime, and a note where it is not there on this machine."""
    takes_pyxis = scheduler.name == "slurm"
    if wanted == "pyxis" and not takes_pyxis:
        raise JobError(
            "container.runtime is pyxis, which is a plugin of Slurm's srun",
            hint="name another: " + ", ".join(name for name in RUNTIMES if name != "pyxis"),
        )
    if wanted != "auto":
        if has_runtime(wanted):
            return wanted, []
        if scheduler.runs_here:
            raise JobError(
                f"container.runtime is {wanted}, which is not on this machine",
                hint=f"there is {', '.join(find_runtimes(with_pyxis=False)) or 'none'}",
            )
        return wanted, [f"{wanted} is not on this machine: the nodes must have it"]
    found = find_runtimes(with_pyxis=takes_pyxis)
    if len(found) == 1:
        return found[0], []
    here = f"there are {' and '.join(found)}" if found else "none is on this machine"
    raise JobError(
        f"container.runtime is auto, and {here}",
        hint="name the one that the nodes have: --set container.runtime=apptainer, or the key "
        "container.runtime of the cluster profile",
    )


def _notes_on_mount(text: str, runtime: str, scheduler: Scheduler) -> list[str]:
    key = f"container.mounts has {show(text)}"
    try:
        mount = Mount.parse(text)
    except ValueError as error:
        raise JobError(
            f"{key}: {error}", hint="for example /scratch, /scratch/data:/data:ro or $TMPDIR:/local"
        ) from None
    if mount.is_read_only and runtime == "charliecloud":
        raise JobError(f"{key}, and charliecloud mounts nothing read-only", hint="leave out :ro")
    if "$" in mount.source or os.path.exists(mount.source):
        return []
    if scheduler.runs_here:
        raise JobError(f"{key}, and there is no {mount.source}", hint="name a folder that is there")
    there = "which is not on this machine: the nodes must have it"
    return [f"container.mounts has {mount.source}, {there}"]


# What is seen inside.


@functools.cache  # the runs of a sweep carry the same
def _carried() -> str:
    return str(carried_folder())


def _folders_of(job: JobSpec, submit_dir: str) -> list[str]:
    """Return the folders that the job's keys name, where they are there."""
    named: list[str | None] = [getattr(getattr(job, "data", None), "root", None)]
    checkpoint = getattr(job, "checkpoint", None)
    named.append(getattr(checkpoint, "resume", None))
    if isinstance(job, ScriptJob) and job.script:
        named.append(os.path.dirname(os.path.join(submit_dir, job.script)))
    if isinstance(job, FunctionJob) and job.source:
        named.append(os.path.dirname(job.source))
    paths = [os.path.abspath(os.path.join(submit_dir, name)) for name in named if name]
    return [path for path in paths if os.path.exists(path)]


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are in none of the others, each once."""
    unique = list(dict.fromkeys(os.path.abspath(path) for path in paths))
    return [
        path
        for path in unique
        if not any(other != path and Path(path).is_relative_to(other) for other in unique)
    ]
