"""The place of a job: the directory it is submitted from, or a snapshot of its work tree; and the
image that its ranks run in, with the folders that are seen inside."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.base.errors import JobError, UserError
from hpcdist.base.secrets import holds_secret
from hpcdist.cluster.load import LoadedProfile
from hpcdist.job.check import show
from hpcdist.job.load import LoadedJob
from hpcdist.job.spec import (
    Container,
    DataloadJob,
    FunctionJob,
    InferenceJob,
    JobSpec,
    ScriptJob,
    TrainingJob,
)
from hpcdist.machine.containers import (
    NO_IMAGE,
    InContainer,
    Mount,
    NoImageError,
    is_reference,
    look_at_image,
)
from hpcdist.runs.run import runs_folder
from hpcdist.runs.snapshot import (
    FOLDER,
    NoWorkTreeError,
    SnapshotPlan,
    find_received,
    plan_snapshot,
)
from hpcdist.runs.spec import UsedContainer, UsedSnapshot
from hpcdist.schedulers.base import Scheduler
from hpcdist.training.checks import is_own

SUBMIT_DIR_VARIABLE = "HPCDIST_SUBMIT_DIR"
"""Tells the ranks where the job was submitted."""
SUBMISSION_VARIABLE = "HPCDIST_SUBMISSION"
"""Name of a submission that a laptop asks for, which is made once, however often the connection
breaks; spec.json keeps it."""
PLACEHOLDER_ID = "RUN"
"""Stands for the id of a run that is planned."""
_NONE = "--set container.image=none runs without an image"


class Workspace(Struct, frozen=True, kw_only=True):
    """The user's files as a job finds them."""

    submit_dir: str
    """Where it is submitted."""
    used: UsedSnapshot | None = None
    """The copy that it runs from, made or not; None: it runs in `submit_dir` itself."""
    snapshot: SnapshotPlan | None = None
    """What is to be in that copy; None: it is there since the run was submitted before."""
    notes: list[str] = []
    """Notes for the user, one sentence each."""

    def placed(self, owner: Path) -> Workspace:
        """Return the workspace with its copy in the folder of a run or a sweep."""
        if self.snapshot is None:
            return self
        copy = owner / FOLDER
        within = os.path.relpath(self.snapshot.cwd, self.snapshot.root)
        used = UsedSnapshot(
            folder=str(copy),
            source=self.snapshot.source,
            cwd=str(copy / within),
            python_path=_python_path(self.snapshot, copy),
        )
        return replace(self, used=used)

    def job(self, job: JobSpec) -> JobSpec:
        """Return the job with its script, or what its function imports, in the copy."""
        snapshot = self.snapshot
        if snapshot is None or self.used is None:
            return job
        copy = Path(str(self.used.folder))

        def there(path: str | None) -> str | None:
            return str(snapshot.path_in(copy, path) or path) if path else path

        if isinstance(job, FunctionJob):
            path = snapshot.python_path_in(copy, job.python_path)
            return replace(job, python_path=path, source=there(job.source))
        if isinstance(job, ScriptJob):
            return replace(job, script=str(there(job.script)))
        return job

    @property
    def cwd(self) -> str:
        """The working directory of the run's processes."""
        return self.submit_dir if self.used is None else str(self.used.cwd)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that say where things are."""
        variables = {SUBMIT_DIR_VARIABLE: self.submit_dir}
        if self.used is not None and self.used.python_path is not None:
            variables["PYTHONPATH"] = self.used.python_path
        return variables

    @property
    def own_folders(self) -> list[str]:
        """The folders that nobody else may have made when the job starts."""
        folder = None if self.used is None else self.used.folder
        return [] if folder is None else [os.path.dirname(folder), folder]


def plan_workspace(
    job: JobSpec,
    scheduler: Scheduler,
    *,
    wanted: bool | None = None,
    runs: Path | None = None,
    by_default: bool = False,
) -> Workspace:
    """Decide where the job would run; the work tree is read where it is to be a snapshot.

    The user has `wanted` one, or none. No snapshot holds the folder of the `runs`. `by_default`
    takes a snapshot where the user did not say, the job runs code of the user's, and there is a git
    work tree. UserError where a scheduler without shared files needs one, and there is none.
    """
    submit_dir, runs = os.getcwd(), runs or runs_folder()
    if (received := find_received(Path(submit_dir))) is not None:
        # It is here for this command only; outputs belong into the folder that it stands for.
        stands_for = os.environ.get(SUBMIT_DIR_VARIABLE, submit_dir)
        return Workspace(submit_dir=stands_for, snapshot=received).placed(runs / PLACEHOLDER_ID)
    runs_code_of_user = bool(own_code(job))
    if not scheduler.shares_files and runs_code_of_user:
        if wanted is False:
            raise UserError(
                f"--no-snapshot: jobs of {scheduler.title} find no files but those of a snapshot",
                hint="leave out --no-snapshot",
            )
        wanted = True
    if wanted is False or not (wanted or (by_default and runs_code_of_user)):
        return Workspace(submit_dir=submit_dir)
    try:
        snapshot = plan_snapshot(Path(submit_dir), runs=runs)
    except NoWorkTreeError as error:
        if wanted:
            raise
        note = f"no snapshot is taken, the job reads its files when it starts: {error.message}"
        return Workspace(submit_dir=submit_dir, notes=[note])
    script = job.script if isinstance(job, ScriptJob) and job.is_given_by_path else ""
    has_script = script and snapshot.path_in(Path(snapshot.root), script) is not None
    if script and not has_script and not scheduler.shares_files:
        raise UserError(
            f"{script} is not among the files of the git work tree {snapshot.root}, and "
            f"{scheduler.title} has no other files than the snapshot's",
            hint="have it in the git work tree, in no file that .gitignore lists",
        )
    workspace = Workspace(submit_dir=submit_dir, snapshot=snapshot, notes=snapshot.notes)
    return workspace.placed(runs / PLACEHOLDER_ID)


def own_code(job: JobSpec) -> str:
    """Return the name of the user's code that a job runs: its script, function, model or data set;
    empty if it runs none."""
    if isinstance(job, TrainingJob | InferenceJob):
        return job.model.name if is_own(job.model.name) else ""
    if isinstance(job, DataloadJob):
        return job.data.dataset or ""
    return str(getattr(job, "script", None) or getattr(job, "function", ""))


def _python_path(snapshot: SnapshotPlan, copy: Path) -> str | None:
    """PYTHONPATH for the run: what leads into the work tree leads into the snapshot.

    That holds for the user's PYTHONPATH and for packages that are installed in editable mode, whose
    folders are on sys.path. None: there is nothing to change.
    """
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # The first entry is no setting, but the folder of what python was started with.
    settled = sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:]
    entries = [*given, *(entry for entry in settled if entry not in given)]
    mapped = snapshot.python_path_in(copy, entries)
    if mapped == entries:
        return None
    changed = [new for old, new in zip(entries, mapped, strict=True) if old in given or new != old]
    return os.pathsep.join(changed)


# The image.


def settle_container(loaded: LoadedJob, cluster: LoadedProfile, scheduler: Scheduler) -> LoadedJob:
    """Return the job with the container that it runs in.

    The job's own keys count before the profile's; mounts and options are added up. Raises JobError.
    """
    own, wanted = loaded.job.container, cluster.profile.container
    keys = {key: getattr(own, key) for key in ("image", "runtime", "python")}
    wanted = replace(
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
    runtime, image = str(wanted.runtime), str(wanted.image)
    if wanted.runtime not in scheduler.container_runtimes:
        usable = " or ".join(scheduler.container_runtimes)
        raise JobError(
            f"container.runtime is {show(wanted.runtime)}, must be {usable} on {scheduler.title}",
            hint="name it in --set container.runtime=NAME or in the cluster profile",
        )
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
        key = f"container.mounts has {show(text)}"
        try:
            mount = Mount.parse(text)
        except ValueError as error:
            hint = "for example /scratch, /scratch/data:/data:ro or $TMPDIR:/local"
            raise JobError(f"{key}: {error}", hint=hint) from None
        if mount.is_read_only and runtime == "charliecloud":
            raise JobError(
                f"{key}, and charliecloud mounts nothing read-only", hint="leave out :ro"
            )
    return loaded.with_job(container=replace(wanted, image=image, runtime=runtime))


def used_container(job: JobSpec) -> UsedContainer | None:
    """Return the image as it stands in spec.json."""
    image, runtime = job.container.image, str(job.container.runtime)
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
    code = getattr(job, "script", None) or getattr(job, "source", None)
    named = [
        getattr(getattr(job, "data", None), "root", None),
        getattr(getattr(job, "checkpoint", None), "resume", None),
        code and os.path.dirname(os.path.join(submit_dir, code)),
    ]
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
        runtime=str(wanted.runtime),
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
