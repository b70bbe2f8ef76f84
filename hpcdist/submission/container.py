"""The image that a job's agents run in: the job's section and the profile's become one, which is
checked before anything is submitted, and the folders that are seen inside."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Sequence
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
    first_missing_source,
    has_runtime,
    is_reference,
    look_at_image,
    missing_targets,
)
from hpcdist.runs.spec import UsedContainer
from hpcdist.schedulers.base import Scheduler

_NO_STEPS = "pyxis"
"""The runtime that is an option of srun's."""


def settle_container(
    loaded: LoadedJob, cluster: LoadedProfile, scheduler: Scheduler
) -> tuple[LoadedJob, list[str]]:
    """Return the job with the container that it runs in, and what the user should know of it.

    The job's own keys count before the profile's. Raises JobError.
    """
    wanted = _merged(loaded.job.container, cluster.profile.container)
    if wanted.image in {None, NO_IMAGE}:
        return _with(loaded, Container()), []
    if not scheduler.takes_containers:
        raise JobError(
            f"container.image is {show(wanted.image)}, and {scheduler.title} starts no containers",
            hint="leave it out with --set container.image=none",
        )
    for key, texts in (("mounts", wanted.mounts), ("options", wanted.options)):
        if any(map(holds_secret, texts)):
            raise JobError(
                f"container.{key} holds a value that looks secret, and would stand in the script",
                hint="export it in the shell that submits, or read it from a private file inside",
            )
    runtime, notes = _runtime(wanted.runtime, scheduler)
    image = _place_of(str(wanted.image), runtime)
    try:
        look_at_image(image, runtime)
    except NoImageError as error:
        raise JobError(
            f"container.image is {show(image)}, which {error}",
            hint="see docs/containers.md for what each runtime starts; --set container.image=none "
            "runs without an image",
        ) from None
    notes += _notes_on_mounts(wanted, scheduler)
    if is_reference(image, runtime):
        notes.append(
            f"{image} is looked for when the job starts, and no sooner; its first start fetches "
            "and converts it, which takes minutes"
        )
    settled = msgspec.structs.replace(wanted, image=image, runtime=runtime)
    return _with(loaded, settled), notes


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
    """Return how the agents of a job are started; None where they run in no image.

    Raises JobError where a folder cannot be mounted, or the image is one that lacks a mount point.
    """
    wanted = job.container
    if wanted.image is None:
        return None
    carried = _carried()
    around = os.path.dirname(carried)
    own = [str(runs), cwd, submit_dir, *_folders_of(job, submit_dir)]
    try:
        mounts = (
            *map(Mount.at_same_path, _outermost(own)),
            # The folder around it is the same for every version: images need one mount point.
            Mount.at_same_path(around, is_read_only=wanted.runtime != "charliecloud"),
            *map(Mount.parse, wanted.mounts),
        )
    except ValueError as error:
        raise JobError(
            f"container.image is {show(wanted.image)}, and {error}",
            hint="rename the folder, or use another; --set container.image=none runs without an "
            "image",
        ) from None
    container = InContainer(
        runtime=wanted.runtime,
        image=wanted.image,
        mounts=list(mounts),
        python=wanted.python,
        python_path=carried,
        options=wanted.options,
    )
    _check_targets(container)
    return container


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


def _with(loaded: LoadedJob, container: Container) -> LoadedJob:
    job = msgspec.structs.replace(loaded.job, container=container)
    return msgspec.structs.replace(loaded, job=job)


def _merged(of_job: Container, of_profile: Container) -> Container:
    usual = Container()

    def own(key: str) -> bool:
        return bool(getattr(of_job, key) != getattr(usual, key))

    return Container(
        image=of_job.image if own("image") else of_profile.image,
        runtime=of_job.runtime if own("runtime") else of_profile.runtime,
        mounts=list(dict.fromkeys([*of_profile.mounts, *of_job.mounts])),
        python=of_job.python if own("python") else of_profile.python,
        options=[*of_profile.options, *of_job.options],
    )


def _runtime(wanted: str, scheduler: Scheduler) -> tuple[str, list[str]]:
    """Return the runtime, and a note where it is not there on this machine."""
    takes_pyxis = scheduler.name == "slurm"
    if wanted == _NO_STEPS and not takes_pyxis:
        raise JobError(
            "container.runtime is pyxis, which is a plugin of Slurm's srun",
            hint="name another: " + ", ".join(one for one in RUNTIMES if one != _NO_STEPS),
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


def _place_of(image: str, runtime: str) -> str:
    if is_reference(image, runtime):
        return image
    return os.path.abspath(os.path.expanduser(image))


def _notes_on_mounts(wanted: Container, scheduler: Scheduler) -> list[str]:
    notes = []
    for text in wanted.mounts:
        try:
            mount = Mount.parse(text)
        except ValueError as error:
            raise JobError(
                f"container.mounts has {show(text)}: {error}",
                hint="for example /scratch, /scratch/data:/data:ro or $TMPDIR:/local",
            ) from None
        if mount.is_read_only and wanted.runtime == "charliecloud":
            raise JobError(
                f"container.mounts has {show(text)}, and charliecloud mounts nothing read-only",
                hint="leave out :ro",
            )
        if "$" in mount.source or first_missing_source([mount]) is None:
            continue
        if scheduler.runs_here:
            raise JobError(
                f"container.mounts has {show(text)}, and there is no {mount.source}",
                hint="name a folder that is there",
            )
        notes.append(
            f"container.mounts has {mount.source}, which is not on this machine: the nodes must "
            "have it"
        )
    return notes


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


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that are in none of the others, each once."""
    unique = list(dict.fromkeys(os.path.abspath(path) for path in paths))
    return [
        path
        for path in unique
        if not any(other != path and Path(path).is_relative_to(other) for other in unique)
    ]


def _check_targets(container: InContainer) -> None:
    """Raise JobError where charliecloud would find nothing to mount a folder at."""
    if container.runtime != "charliecloud" or not os.path.isdir(container.image):
        return
    fixed = [mount for mount in container.mounts if "$" not in mount.target]
    if missing := missing_targets(container.image, fixed):
        folders = " ".join(shlex.quote(container.image + target) for target in missing)
        raise JobError(
            f"container.image is {show(container.image)}, which has no {' and no '.join(missing)}, "
            "and charliecloud mounts only at what is there",
            hint=f"make it: mkdir -p {folders}",
        )
