"""A checked job and how its scheduler would run it, at one point or at many.

Nothing here has an effect: every mistake at any point is found before anything is submitted.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hpcdist.base.errors import JobError, UserError
from hpcdist.base.secrets import Stars
from hpcdist.cluster.channels import mail_of, parse_channel, read_address
from hpcdist.cluster.load import NO_PROFILE, LoadedProfile
from hpcdist.job import LoadedJob, locate
from hpcdist.job.spec import JobSpec, ScriptJob, TrainingJob, job_to_dict
from hpcdist.machine.containers import InContainer
from hpcdist.runs.run import Run, Sweep
from hpcdist.schedulers import detect_scheduler, load_scheduler
from hpcdist.schedulers.base import Allocation, Dependency, Plan, Scheduler, Target
from hpcdist.submission.container import in_container, settle_container
from hpcdist.submission.points import Point
from hpcdist.submission.workspace import SnapshotRequest, Workspace, plan_workspace
from hpcdist.workloads import load_workload


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A checked job, and how its scheduler would run it."""

    loaded: LoadedJob
    scheduler: Scheduler
    cluster: LoadedProfile
    plan: Plan
    workspace: Workspace
    container_notes: list[str] = field(default_factory=list)
    call: bytes | None = None
    """The function that is submitted, with its arguments, pickled; None: the job is no function."""

    @property
    def notes(self) -> list[str]:
        """Return what the user should know, one sentence each."""
        notes = [*self.loaded.notes, *self.cluster.notes]
        if mail_of(self.cluster.profile.notify) is not None and (
            self.plan.allocation is not None or not self.scheduler.mails
        ):
            who = "a step in an allocation" if self.plan.allocation else self.scheduler.title
            notes.append(f"notify: mail comes from a scheduler, and {who} sends none")
        if self.cluster.name is None and self.cluster.known:
            files, names = " and ".join(self.cluster.files), ", ".join(self.cluster.known)
            notes.append(
                f"no cluster profile is used: {files} has {names} and no default; choose one with "
                "--cluster"
            )
        job = job_to_dict(self.loaded.job)
        if hidden := [key for key, value in Stars().value(job).items() if value != job[key]]:
            notes.append(
                f"what looks like a secret stands in {' and '.join(hidden)}: the ranks get it, and "
                "all that is shown of the run has *** in its place; others may see it in the list "
                "of processes, but not in a variable of the environment or a private file"
            )
        notes += [*self.plan.notes, *self.workspace.notes, *self.container_notes]
        return notes + load_workload(self.loaded.job).notes()

    def script(self, target: Target) -> str:
        return self.scheduler.render(self.loaded.job, target, self.plan)

    def target(self, run: Run, dependencies: Sequence[Dependency] = ()) -> Target:
        """Return what the script of one run is for."""
        container = self.container_in(run.path.parent)
        own = [*self.workspace.own_folders, *([container.python_path] if container else [])]
        return Target(
            name=run.id,
            folder=run.path,
            cwd=self.workspace.cwd,
            environment=self.workspace.variables,
            own_folders=own,
            dependencies=list(dependencies),
            allocation=self.plan.allocation,
            step_options=self.plan.step_options,
        )

    def explain(self, runs: Path) -> list[str]:
        """Return what images find, a line each."""
        lines = []
        if (container := self.container_in(runs)) is not None:
            lines.append(f"container: {container.image}, started by {container.runtime}")
            lines += [f"seen inside: {mount}" for mount in container.mounts]
        return lines

    def container_in(self, runs: Path) -> InContainer | None:
        """Return how the ranks are started in an image, with the runs in a folder."""
        places, job = self.workspace, self.loaded.job
        with _located(self.loaded):
            return in_container(job, runs=runs, cwd=places.cwd, submit_dir=places.submit_dir)

    def now(self, busy_gpus: Collection[str] = ()) -> PlannedRun:
        """Return the plan for this machine as it is at present: which of its GPUs are idle changes.

        `busy_gpus` are UUIDs of GPUs that are given away, but may not look so yet.
        """
        with _located(self.loaded):
            job = self.loaded.job
            plan = self.scheduler.plan(job, self.plan.cluster, busy_gpus=busy_gpus)
            load_workload(job).check_device(plan.launch.device)
        return replace(self, plan=plan)

    def prepare(self) -> None:
        """Do what comes before any submission, such as a download, which may take long; what jobs
        would not find is for themselves to do."""
        if self.scheduler.shares_files:
            with _located(self.loaded):
                load_workload(self.loaded.job).prepare()


@dataclass(frozen=True, kw_only=True)
class Places:
    """The run directories of a submission, made or not."""

    path: Path
    """The run's, or the sweep's."""
    runs: list[Run]
    """One per point."""
    sweep: Sweep | None
    """None: the run is by itself."""

    @property
    def id(self) -> str:
        """The name by which the user calls the submission."""
        return self.path.name


@dataclass(frozen=True, kw_only=True)
class PlannedSubmission:
    """All runs of one submission, and how each would run; a single run has one point."""

    points: list[Point]
    runs: list[PlannedRun]
    """One per point."""
    max_parallel: int | None = None
    """So many runs at one time; None: locally one, else as many as there is room for."""
    comparison: str | None = None
    """Name of the comparison whose variants the points are."""
    is_sweep: bool = True
    """The runs belong to a sweep, which has a folder of its own."""

    @classmethod
    def of_run(cls, planned: PlannedRun) -> PlannedSubmission:
        """Return the submission of one run by itself."""
        return cls(points=[Point(index=0, flags={})], runs=[planned], is_sweep=False)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of all runs."""
        return self.runs[0].scheduler

    @property
    def schedulers(self) -> str:
        return self.scheduler.name

    @property
    def has_queue(self) -> bool:
        return self.scheduler.has_queue

    def only_scheduler(self, option: str) -> Scheduler:  # noqa: ARG002
        return self.scheduler

    def points_here(self) -> list[int]:
        """Return the points of a sweep that run on this machine, one after the other."""
        return [] if self.has_queue or not self.is_sweep else list(range(len(self.points)))

    @property
    def name(self) -> str:
        return self.comparison or self.runs[0].loaded.job.name

    @property
    def notes(self) -> list[str]:
        """Return what the user should know, each sentence once."""
        return list(dict.fromkeys(note for run in self.runs for note in run.notes))

    def places(self, path: Path) -> Places:
        """Return the run directories, where `path` is the run's or the sweep's folder."""
        if not self.is_sweep:
            return Places(path=path, runs=[Run(path)], sweep=None)
        sweep = Sweep(path)
        runs = [sweep.run(index, len(self.points)) for index in range(len(self.points))]
        return Places(path=path, runs=runs, sweep=sweep)

    def prepare(self) -> None:
        """Do what comes before any submission, once for runs that are the same."""
        for run in {id(run): run for run in self.runs}.values():
            run.prepare()

    def placed(self, path: Path) -> PlannedSubmission:
        """Return the plan with its code copied into the run's or the sweep's folder."""
        runs = [replace(run, workspace=run.workspace.placed(path)) for run in self.runs]
        return replace(self, runs=runs)

    def now(self) -> PlannedSubmission:
        """Return the plan for this machine as it is at present, if the runs are for it."""
        runs = [run.now() if run.scheduler.runs_here else run for run in self.runs]
        return replace(self, runs=runs)


def plan_run(
    loaded: LoadedJob,
    *,
    scheduler: str,
    cluster: LoadedProfile = NO_PROFILE,
    snapshot: SnapshotRequest | None = None,
    allocation: Allocation | None = None,
    workspace: Workspace | None = None,
) -> PlannedRun:
    """Check the job and plan how it would run on the cluster, or at once in an allocation.

    `workspace` is where its files are; None: where this process is, or in a new snapshot.

    `snapshot` says whether the job runs from a snapshot; None: as its scheduler does by default. A
    step in an allocation cannot be requeued: one that is told to stop ends with what it has saved.
    Raises UserError or SchedulerError: nothing that can be known beforehand is left for later.
    """
    chosen = load_scheduler(detect_scheduler() if scheduler == "auto" else scheduler)
    if allocation is not None:
        launch = msgspec.structs.replace(loaded.job.launch, requeue=False)
        loaded = loaded.with_job(launch=launch)
    _check_channels(cluster, chosen)
    with _located(loaded):
        load_workload(loaded.job).check()
        loaded, container_notes = settle_container(loaded, cluster, chosen)
        if allocation is None:
            plan = chosen.plan(loaded.job, cluster.profile)
        else:
            plan = chosen.plan_step(loaded.job, cluster.profile, allocation)
        load_workload(loaded.job).check_device(plan.launch.device)
    if workspace is None:
        workspace = plan_workspace(
            loaded.job,
            snapshot or SnapshotRequest(),
            # What starts while its user looks on needs none: there is no queue to wait in.
            by_default=allocation is None and not chosen.runs_here,
            only_there=None if chosen.shares_files else chosen.title,
        )
    return PlannedRun(
        loaded=loaded,
        scheduler=chosen,
        cluster=cluster,
        plan=plan,
        workspace=workspace,
        container_notes=container_notes,
    )


def _check_channels(cluster: LoadedProfile, scheduler: Scheduler) -> None:
    """Raise UserError for a channel that could not tell anything."""
    for kind, reference in map(parse_channel, cluster.profile.notify):
        if kind == "command" and (scheduler.runs_here or reference.startswith("~")):
            program = shlex.split(reference)[0]  # what begins with ~ is here as on the nodes
            if scheduler.shares_files and shutil.which(os.path.expanduser(program)) is None:
                hint = "name one that can be executed, with / or ~ before a path"
                raise UserError(f"notify: there is no program {program}", hint=hint)
        if kind != "apprise":
            continue
        if not scheduler.shares_files:
            raise UserError(
                f"notify: apprise needs a variable or a file of yours, and the nodes of "
                f"{scheduler.title} have neither",
                hint="leave it out, or name a command that the nodes have",
            )
        read_address(reference)
        if importlib.util.find_spec("apprise") is None:
            hint = "install it: pip install 'hpcdist[notify]'"
            raise UserError("notify: the package apprise is not there", hint=hint)


def plan_points(
    points: Sequence[Point],
    *,
    load: Callable[[Point], LoadedJob],
    plan: Callable[[LoadedJob, Point], PlannedRun],
    max_parallel: int | None = None,
    comparison: str | None = None,
    is_sweep: bool = True,
    same_seed: bool = False,
) -> PlannedSubmission:
    """Load and plan every point: once for its repeats, the scheduler's plan once for every shape,
    and what depends on the code once for all. Repeats have seeds of their own, without which they
    would not show what chance does to an accuracy; not with `same_seed`.

    Raises UserError or SchedulerError, as `load` and `plan` do, and UserError for profiles of
    several schedulers: a submission is handed over to one.
    """
    by_values: dict[tuple[str, ...], PlannedRun] = {}
    by_shape: dict[tuple[str, ...], PlannedRun] = {}
    runs: list[PlannedRun] = []
    for point in points:
        values = (point.job or "", *(flag.name for flag in point.flags.values()))
        if values not in by_values:
            loaded = load(point)
            job = loaded.job
            script = job.script if isinstance(job, ScriptJob) else ""
            code = (point.cluster or "", job.workload, script)
            shape = (*code, shape_of(job))
            if same := by_shape.get(shape) or by_shape.get(code):
                with _located(loaded):
                    load_workload(job).check()
                    loaded, notes = settle_container(loaded, same.cluster, same.scheduler)
                    of_plan = same.plan
                    if shape_of(job) != shape_of(same.loaded.job):
                        of_plan = same.scheduler.plan(loaded.job, same.cluster.profile)
                    load_workload(job).check_device(of_plan.launch.device)
                planned = replace(same, loaded=loaded, plan=of_plan, container_notes=notes)
            else:
                planned = plan(loaded, point)
            by_values[values] = by_shape[shape] = by_shape[code] = planned
        planned = by_values[values]
        job = planned.loaded.job
        if point.repeat and isinstance(job, TrainingJob) and not same_seed:
            seed = (job.train.seed + point.repeat) % 2**32
            train = msgspec.structs.replace(job.train, seed=seed)
            planned = replace(planned, loaded=planned.loaded.with_job(train=train))
        runs.append(planned)
    if len(names := dict.fromkeys(run.scheduler.name for run in runs)) > 1:
        hint = "submit a sweep for each of them"
        raise UserError(f"the sweep is for {' and '.join(names)}, must be for one", hint=hint)
    return PlannedSubmission(
        points=list(points),
        runs=runs,
        max_parallel=max_parallel,
        comparison=comparison,
        is_sweep=is_sweep,
    )


def shape_of(job: JobSpec) -> str:
    """Return what a scheduler's plan depends on: jobs of one code and shape can share a plan."""
    return msgspec.json.encode((job.resources, job.launch)).decode()


@contextmanager
def _located(loaded: LoadedJob) -> Iterator[None]:
    """Name in errors the place that a wrong value came from."""
    try:
        yield
    except JobError as error:
        raise locate(loaded, error) from None
