"""A checked job and how its scheduler would run it, at one point or at many; the scheduler's jobs
that come of it, and their scripts, which `hpcdist render` prints.

Nothing here has an effect: every mistake at any point is found before anything is submitted.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.base.errors import JobError, UserError
from hpcdist.base.secrets import Stars
from hpcdist.cluster.channels import parse_channel, read_address
from hpcdist.cluster.load import NO_PROFILE, LoadedProfile
from hpcdist.job.files import find_program
from hpcdist.job.load import LoadedJob, locate
from hpcdist.job.spec import JobSpec, OwnCodeJob, TrainingJob, TrainJob, job_to_dict
from hpcdist.machine.containers import InContainer
from hpcdist.runs.run import Run, Sweep
from hpcdist.runs.spec import Planned
from hpcdist.schedulers import detect_scheduler, load_scheduler
from hpcdist.schedulers.base import Allocation, Dependency, Directive, Plan, Scheduler, Target
from hpcdist.schedulers.held import plan_in
from hpcdist.submission.leave_out import leave_out_nodes
from hpcdist.submission.points import Point
from hpcdist.submission.workspace import (
    PLACEHOLDER_ID,
    Workspace,
    in_container,
    own_code,
    plan_workspace,
    settle_container,
)
from hpcdist.workloads import load_workload


class PlannedRun(Struct, frozen=True, kw_only=True):
    """A checked job, and how its scheduler would run it."""

    loaded: LoadedJob
    scheduler: Scheduler
    cluster: LoadedProfile
    plan: Plan
    workspace: Workspace
    foreseen: Planned | None = None
    """What its plan says, for spec.json."""
    call: bytes | None = None
    """The function that is submitted, with its arguments, pickled; None: the job is no function."""

    @property
    def notes(self) -> list[str]:
        """Return what the user should know, one sentence each."""
        notes = [*self.cluster.notes, *self.plan.notes, *self.workspace.notes]
        job = job_to_dict(self.loaded.job)
        if hidden := [key for key, value in Stars().value(job).items() if value != job[key]]:
            where = f"what looks like a secret stands in {' and '.join(hidden)}"
            hidden = [f"{where}: a variable or a private file is safer, others may see arguments"]
        return [*hidden, *notes]

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
        )

    def explain(self, script: str, runs: Path) -> list[dict[str, Any]]:
        """Return the lines of the script, but for empty ones; each option, and what the profile has
        in it, with what it is for and the keys that it comes from."""
        from hpcdist.job.keys import job_keys, keys_below

        profile, target = self.cluster.asked, self.target(Run(runs / PLACEHOLDER_ID))
        meanings = {key.path: key.meaning for key in [*keys_below(type(profile)), *job_keys()]}
        known = [
            *(Directive(line, keys=["setup"]) for line in "\n".join(profile.setup).split("\n")),
            *(Directive(one, keys=["directives"]) for one in profile.directives),
            *(Directive(f"export {name}=", keys=["environment"]) for name in profile.environment),
            *self.scheduler.directives(self.loaded.job, profile, target),
        ]
        lines = []
        for line in filter(str.strip, script.splitlines()):
            text = re.sub(r"^#[A-Z]+ ", "", line.strip())
            one = next((one for one in known if one.option and text.startswith(one.option)), None)
            keys = "|".join(one.keys).split("|") if one and one.keys else []
            why = (one.why or meanings[keys[0]]) if one else ""
            lines.append({"line": line, "why": why, "keys": keys})
        return lines

    def container_in(self, runs: Path) -> InContainer | None:
        """Return how the ranks are started in an image, with the runs in a folder."""
        places, job = self.workspace, self.loaded.job
        with _located(self.loaded):
            return in_container(job, runs=runs, cwd=places.cwd, submit_dir=places.submit_dir)

    def now(self) -> PlannedRun:
        """Return the plan for this machine as it is now: which GPUs are idle changes."""
        if not self.scheduler.runs_here or self.plan.dev is not None:
            return self
        with _located(self.loaded):
            return replace(self, plan=self.scheduler.plan(self.loaded.job, self.plan.cluster))

    def prepare(self) -> None:
        """Do what comes before any submission, and may take long: try the user's code, and prepare
        the data, unless jobs would not find them."""
        with _located(self.loaded):
            workload = load_workload(self.loaded.job)
            workload.try_code()
            if self.scheduler.shares_files:
                workload.prepare()


class PlannedSubmission(Struct, frozen=True, kw_only=True):
    """All runs of one submission, and how each would run; a single run has one point. Once it is
    submitted, it has its folder and its jobs."""

    plans: list[PlannedRun]
    """One per point."""
    points: Sequence[Point] = (Point(),)
    max_parallel: int | None = None
    """So many runs of a scheduler at one time; None: as many as there is room for."""
    comparison: str | None = None
    """Name of the comparison whose variants the points are."""
    is_sweep: bool = False
    """The runs belong to a sweep, which has a folder of its own."""
    path: Path = Path("RUN")
    """The run's folder, or the sweep's, made or not; its name is that of the submission."""
    jobs: list[Job] = []
    """The jobs that the scheduler has accepted."""

    def at(self, path: Path) -> PlannedSubmission:
        """Return the plan with its folder, and its code's copy in it: all scripts are final then,
        but for the ids of jobs that they wait for."""
        plans = [replace(one, workspace=one.workspace.placed(path)) for one in self.plans]
        return replace(self, plans=plans, path=path)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def sweep(self) -> Sweep | None:
        return Sweep(self.path) if self.is_sweep else None

    def run(self, index: int) -> Run:
        """Return the run directory of a point, made or not."""
        return self.sweep.run(index, len(self.points)) if self.sweep else Run(self.path)

    @property
    def runs(self) -> list[Run]:
        """The run directories, one per point."""
        return [self.run(index) for index in range(len(self.points))]

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of all runs."""
        return self.plans[0].scheduler

    @property
    def is_run_here(self) -> bool:
        """The runs of a sweep run on this machine, one after the other."""
        return self.is_sweep and not self.scheduler.has_queue

    @property
    def notes(self) -> list[str]:
        """Return what the user should know, each sentence once."""
        return list(dict.fromkeys(note for one in self.plans for note in one.notes))

    @property
    def messages(self) -> list[str]:
        """Return what the scheduler had to say, each sentence once."""
        return list(dict.fromkeys(message for job in self.jobs for message in job.messages))

    def prepare(self) -> None:
        """Do what comes before any submission, once for runs that are the same."""
        for one in {id(one): one for one in self.plans}.values():
            one.prepare()


def _check_min_nodes(job: JobSpec, scheduler: Scheduler) -> None:
    """Raise JobError where the job cannot go on with as few nodes as it says, or grow again."""
    least, nodes, launch = job.launch.min_nodes, job.resources.nodes, job.launch
    regrows = isinstance(job, TrainJob) and scheduler.can_requeue and launch.requeue and least
    if launch.regrow_after is not None and not regrows:
        raise JobError(
            f"launch.regrow_after is {launch.regrow_after:g}, but the job would not be started "
            "again with all nodes",
            hint="it is for train, with launch.min_nodes, where the scheduler requeues the job",
        )
    if least is None:
        return
    can_shrink = isinstance(job, OwnCodeJob) or (
        isinstance(job, TrainJob) and job.strategy in {"ddp", "fsdp"}
    )
    problem, hint = "", "leave launch.min_nodes out"
    if least > nodes:
        problem, hint = f"resources.nodes is {nodes}", f"set launch.min_nodes to {nodes} or less"
    elif not can_shrink:
        problem = "only train with ddp or fsdp, and your own code, go on with fewer ranks"
    elif not scheduler.shares_files:
        problem = f"the nodes of {scheduler.title} have no run directory in common"
    if problem:
        raise JobError(f"launch.min_nodes is {least}, but {problem}", hint=hint)


def plan_run(
    loaded: LoadedJob,
    *,
    scheduler: str,
    cluster: LoadedProfile = NO_PROFILE,
    snapshot: bool | None = None,
    runs: Path | None = None,
    allocation: Allocation | None = None,
    workspace: Workspace | None = None,
    beside: PlannedRun | None = None,
) -> PlannedRun:
    """Check the job and plan how it would run on the cluster, or at once in an allocation.

    `snapshot` says whether the job runs from a snapshot; None: as its scheduler does by default.
    `runs` is the folder of the runs, None: the one by default. A step in an allocation cannot be
    requeued: one that is told to stop ends with what it has saved. `workspace` is where the job's
    files are; None: where this process is, or in a new snapshot. `beside` is the plan of another
    run of the submission, for the same cluster.
    Raises UserError or SchedulerError: nothing that can be known beforehand is left for later.
    """
    chosen = load_scheduler(detect_scheduler() if scheduler == "auto" else scheduler)
    if allocation is not None:
        loaded = loaded.with_job(launch=replace(loaded.job.launch, requeue=False))
    if beside is None:
        _check_channels(cluster.profile.notify, chosen)
        cluster = leave_out_nodes(chosen, cluster) if allocation is None else cluster
    else:
        cluster = beside.cluster
    with _located(loaded):
        load_workload(loaded.job).check()
        _check_min_nodes(loaded.job, chosen)
        loaded = settle_container(loaded, cluster, chosen)
        if allocation is not None and allocation.dev is not None:
            plan = plan_in(Run(Path(allocation.dev)), loaded.job, cluster.asked)
        elif allocation is not None:
            plan = chosen.plan_step(loaded.job, cluster.asked, allocation)
        else:
            plan = chosen.plan(loaded.job, cluster.asked)
    return PlannedRun(
        loaded=loaded,
        scheduler=chosen,
        cluster=cluster,
        plan=plan,
        workspace=workspace
        or plan_workspace(
            loaded.job,
            chosen,
            wanted=snapshot,
            runs=runs,
            # What starts while its user looks on needs none: there is no queue to wait in.
            by_default=allocation is None and not chosen.runs_here,
        ),
    )


def _check_channels(notify: Sequence[str], scheduler: Scheduler) -> None:
    """Raise UserError for a channel that could not tell anything, as far as that is known here."""
    for kind, reference in map(parse_channel, notify):
        if kind == "command" and scheduler.runs_here:
            program = shlex.split(reference)[0]
            find_program(program, f"notify: {program}")
        if kind == "apprise" and not scheduler.shares_files:
            raise UserError(
                f"notify: apprise needs a variable, and the nodes of {scheduler.title} have none",
                hint="leave it out, or name a command that the nodes have",
            )
        if kind == "apprise":
            read_address(reference)
        if kind == "apprise" and importlib.util.find_spec("apprise") is None:
            hint = "install it: pip install 'hpcdist[notify]'"
            raise UserError("notify: the package apprise is not there", hint=hint)


def plan_points(
    points: Sequence[Point],
    *,
    load: Callable[[Point], LoadedJob],
    same_seed: bool = False,
    max_parallel: int | None = None,
    comparison: str | None = None,
    is_sweep: bool = True,
    **where: Any,
) -> PlannedSubmission:
    """Load and plan every point, once for its repeats; points of the same code share its copy.
    Repeats have seeds of their own, but not with `same_seed`. `where` is as for `plan_run`.

    Raises UserError or SchedulerError, as `load` and `plan_run` do.
    """
    by_values: dict[tuple[str, ...], PlannedRun] = {}
    by_code: dict[str, Workspace] = {}
    plans: list[PlannedRun] = []
    one: PlannedRun | None = None
    for point in points:
        values = (point.job or "", *(f"{one.name} {one.value!r}" for one in point.flags.values()))
        if values not in by_values:
            loaded = load(point)
            code = own_code(loaded.job)
            one = plan_run(loaded, workspace=by_code.get(code), beside=one, **where)
            by_values[values], by_code[code] = one, one.workspace
        planned = by_values[values]
        job = planned.loaded.job
        if point.repeat and not same_seed and isinstance(job, TrainingJob):
            # With the same seed, a repeat would not show what chance does to an accuracy.
            train = replace(job.train, seed=(job.train.seed + point.repeat) % 2**32)
            planned = replace(planned, loaded=planned.loaded.with_job(train=train))
        plans.append(planned)
    return PlannedSubmission(
        points=list(points),
        plans=plans,
        max_parallel=max_parallel,
        comparison=comparison,
        is_sweep=is_sweep,
    )


# The scheduler's jobs.


class Job(Struct, frozen=True, kw_only=True):
    """One job of a submission: a run, or an array of runs that differ only in what they read."""

    planned: PlannedRun
    """The plan of its first run."""
    target: Target
    points: Sequence[int]
    """Its runs."""
    is_behind: bool = False
    """It waits for the end of the job before it."""
    job_id: str = ""
    """Of an array its own; empty: the scheduler does not have it."""
    messages: list[str] = []
    """The scheduler's, as it accepted the job."""

    def target_behind(self, job_ids: Sequence[str]) -> Target:
        """Return the target with the id of the job before it, the last of these."""
        if not self.is_behind:
            return self.target
        before = Dependency(kind="afterany", job_ids=[job_ids[-1]])
        return replace(self.target, dependencies=[*self.target.dependencies, before])


def lay_out(planned: PlannedSubmission, dependencies: Sequence[Dependency] = ()) -> list[Job]:
    """Return the jobs of a submission that has its folder: runs whose scripts are the same go into
    arrays, as long as the scheduler takes them. With a limit on the runs at one time, the arrays
    run one after the other.

    Raises UserError where a job would have to wait for others, and its scheduler cannot.
    """
    scheduler, path = planned.scheduler, planned.path
    most = planned.max_parallel or len(planned.points)
    is_limited = scheduler.has_queue and most < len(planned.points)
    if scheduler.has_queue and not scheduler.jobs_can_wait and (is_limited or dependencies):
        option = "--max-parallel" if is_limited else "--after"
        problem = f"{option}: a job of {scheduler.title} cannot wait for others"
        raise UserError(problem, hint="leave it out, or submit again when the others have ended")
    longest = max(1, scheduler.max_array_size)
    by_script: dict[str, list[int]] = {}
    for index, one in enumerate(planned.plans):
        is_alone = longest == 1 or not planned.is_sweep
        script = str(index) if is_alone else one.script(one.target(Run(path)))
        by_script.setdefault(script, []).append(index)
    groups = [
        points[start : start + longest]
        for points in by_script.values()
        for start in range(0, len(points), longest)
    ]
    arrays = [points for points in groups if len(points) > 1]
    jobs: list[Job] = []
    for points in groups:
        first = planned.plans[points[0]]
        target = first.target(planned.run(points[0]), dependencies)
        if (size := len(points)) > 1:  # a single run needs no array
            number = arrays.index(points)
            target = replace(
                target,
                name=planned.id if len(arrays) == 1 else f"{planned.id}.{number}",
                folder=path / f"array-{number}",
                array_size=size,
                max_parallel=most if most < size else None,
            )
        is_behind = is_limited and bool(jobs)
        jobs.append(Job(planned=first, target=target, points=points, is_behind=is_behind))
    return jobs


def planned_scripts(
    planned: PlannedSubmission, folder: Path, dependencies: Sequence[Dependency] = ()
) -> list[tuple[str, Sequence[int]]]:
    """Return what would be submitted with the runs in `folder`: each script with its points. RUN
    and JOBID-of-NAME stand for ids that are not known yet."""
    jobs = lay_out(planned.at(folder / PLACEHOLDER_ID), dependencies)
    ids = [f"JOBID-of-{job.target.name}" for job in jobs]
    return [
        (job.planned.script(job.target_behind(ids[:place])), job.points)
        for place, job in enumerate(jobs)
    ]


@contextmanager
def _located(loaded: LoadedJob) -> Iterator[None]:
    """Name in errors the place that a wrong value came from."""
    try:
        yield
    except JobError as error:
        raise locate(loaded, error) from None
