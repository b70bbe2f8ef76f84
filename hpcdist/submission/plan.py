"""A checked job and how its scheduler would run it, at one point or at many.

Nothing here has an effect: every mistake at any point is found before anything is submitted.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import JobError, UserError
from hpcdist.base.secrets import Stars
from hpcdist.cluster.channels import mail_of, parse_channel, read_address
from hpcdist.cluster.load import NO_PROFILE, LoadedProfile
from hpcdist.job import LoadedJob, locate
from hpcdist.job.spec import JobSpec, ScriptJob, TrainingJob, job_to_dict
from hpcdist.machine.containers import InContainer
from hpcdist.runs.run import Run
from hpcdist.runs.sweep import Sweep
from hpcdist.schedulers import detect_scheduler, load_scheduler
from hpcdist.schedulers.base import Allocation, Dependency, Directive, Plan, Scheduler, Target
from hpcdist.submission.container import in_container, settle_container
from hpcdist.submission.points import Point
from hpcdist.submission.workspace import (
    PLACEHOLDER_ID,
    SnapshotRequest,
    Workspace,
    plan_workspace,
)
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

    def explain(self, script: str, runs: Path) -> list[dict[str, Any]]:
        """Return the lines of the script, but for empty ones; each option, and what the profile has
        in it, with what it is for and the keys that it comes from. At the end, what an image
        sees."""
        from hpcdist.cluster.profile import profile_keys
        from hpcdist.job.keys import job_keys

        profile, target = self.cluster.profile, self.target(Run(runs / PLACEHOLDER_ID))
        meanings = {key.path: key.meaning for key in [*profile_keys(), *job_keys()]}
        setup = "\n".join(profile.setup).split("\n")
        known = [
            *(Directive(one.strip(), keys=["setup"]) for one in setup),
            *(Directive(one, keys=["directives"]) for one in profile.directives),
            *(Directive(f"export {name}=", keys=["environment"]) for name in profile.environment),
            *self.scheduler.directives(self.loaded.job, profile, target),
        ]
        lines: list[dict[str, Any]] = []
        for line in filter(str.strip, script.splitlines()):
            text = re.sub(r"^#[A-Z]+ ", "", line.strip())
            one = next((one for one in known if one.option and text.startswith(one.option)), None)
            keys = [self._origin(key.split("|")) for key in one.keys] if one else []
            why = (one.why or meanings[keys[0]["key"]]) if one else ""
            lines.append({"line": line, "why": why, "keys": keys})
        if (container := self.container_in(runs)) is not None:
            seen = ", ".join(map(str, container.mounts))
            why = f"The ranks are started in it by {container.runtime}, and see {seen}."
            lines.append({"line": f"container: {container.image}", "why": why, "keys": []})
        return lines

    def _origin(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the first of the keys that is set, with its value and where that comes from: a
        flag, a file or `default`; where none is set, the last."""
        found: dict[str, Any] = {}
        for key in keys:
            section, inner, _ = key.partition(".")
            if inner and hasattr(self.loaded.job, section):
                value, origin = attrgetter(key)(self.loaded.job), self.loaded.origin_of(key)
            else:
                value, origin = attrgetter(key)(self.cluster.profile), self.cluster.origins[section]
                if origin in self.cluster.files:
                    origin = f"{origin}, cluster {self.cluster.name}"
            shown = msgspec.to_builtins(value)
            found = {"key": key, "value": shown, "origin": origin or "default"}
            if value is not None:
                break
        return found

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

    def planned_for(self, loaded: LoadedJob) -> PlannedRun:
        """Return the plan of another job of this profile and code."""
        with _located(loaded):
            load_workload(loaded.job).check()
            loaded, notes = settle_container(loaded, self.cluster, self.scheduler)
            plan = self.plan
            if shape_of(loaded.job) != shape_of(self.loaded.job):
                plan = self.scheduler.plan(loaded.job, self.cluster.profile)
            load_workload(loaded.job).check_device(plan.launch.device)
        return replace(self, loaded=loaded, plan=plan, container_notes=notes)

    def with_seed_of(self, repeat: int) -> PlannedRun:
        """Return the plan with a seed of its own, without which a repeat would not show what chance
        does to an accuracy."""
        job = self.loaded.job
        if not repeat or not isinstance(job, TrainingJob):
            return self
        train = msgspec.structs.replace(job.train, seed=(job.train.seed + repeat) % 2**32)
        return replace(self, loaded=self.loaded.with_job(train=train))

    def prepare(self) -> None:
        """Do what comes before any submission, such as a download, which may take long; what jobs
        would not find is for themselves to do."""
        if self.scheduler.shares_files:
            with _located(self.loaded):
                load_workload(self.loaded.job).prepare()


@dataclass(frozen=True, kw_only=True)
class PlannedSubmission:
    """All runs of one submission, and how each would run; a single run has one point."""

    points: list[Point]
    plans: list[PlannedRun]
    """One per point."""
    max_parallel: int | None = None
    """So many runs at one time; None: locally one, else as many as there is room for."""
    comparison: str | None = None
    """Name of the comparison whose variants the points are."""
    is_sweep: bool = True
    """The runs belong to a sweep, which has a folder of its own."""
    path: Path = Path("RUN")
    """The run's folder, or the sweep's, made or not; its name is that of the submission."""

    @classmethod
    def of_run(cls, planned: PlannedRun) -> PlannedSubmission:
        """Return the submission of one run by itself."""
        return cls(points=[Point(index=0, flags={})], plans=[planned], is_sweep=False)

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

    @property
    def runs(self) -> list[Run]:
        """The run directories, made or not, one per point."""
        number = range(len(self.points))
        return [self.sweep.run(i, len(number)) for i in number] if self.sweep else [Run(self.path)]

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of all runs."""
        return self.plans[0].scheduler

    @property
    def has_queue(self) -> bool:
        return self.scheduler.has_queue

    def points_here(self) -> list[int]:
        """Return the points of a sweep that run on this machine, one after the other."""
        return [] if self.has_queue or not self.is_sweep else list(range(len(self.points)))

    @property
    def name(self) -> str:
        return self.comparison or self.plans[0].loaded.job.name

    @property
    def notes(self) -> list[str]:
        """Return what the user should know, each sentence once."""
        return list(dict.fromkeys(note for one in self.plans for note in one.notes))

    def prepare(self) -> None:
        """Do what comes before any submission, once for runs that are the same."""
        for one in {id(one): one for one in self.plans}.values():
            one.prepare()

    def now(self) -> PlannedSubmission:
        """Return the plan for this machine as it is at present, if the runs are for it."""
        plans = [one.now() if one.scheduler.runs_here else one for one in self.plans]
        return replace(self, plans=plans)


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
    for kind, reference in map(parse_channel, cluster.profile.notify):
        if kind == "apprise":
            _check_apprise(reference, chosen)
    with _located(loaded):
        load_workload(loaded.job).check()
        loaded, container_notes = settle_container(loaded, cluster, chosen)
        if allocation is None:
            plan = chosen.plan(loaded.job, cluster.profile)
        else:
            plan = chosen.plan_step(loaded.job, cluster.profile, allocation)
        load_workload(loaded.job).check_device(plan.launch.device)
    return PlannedRun(
        loaded=loaded,
        scheduler=chosen,
        cluster=cluster,
        plan=plan,
        workspace=workspace
        or plan_workspace(
            loaded.job,
            snapshot or SnapshotRequest(),
            # What starts while its user looks on needs none: there is no queue to wait in.
            by_default=allocation is None and not chosen.runs_here,
            only_there=None if chosen.shares_files else chosen.title,
        ),
        container_notes=container_notes,
    )


def _check_apprise(reference: str, scheduler: Scheduler) -> None:
    """Raise UserError for a channel that could not tell anything."""
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
    same_seed: bool = False,
    **more: Any,
) -> PlannedSubmission:
    """Load and plan every point: once for its repeats, and the scheduler's plan once for every
    shape. Repeats have seeds of their own, but not with `same_seed`.

    `more` are fields of the PlannedSubmission. Raises UserError or SchedulerError, as `load` and
    `plan` do, and UserError for profiles of several schedulers: a submission is handed over to one.
    """
    by_values: dict[tuple[str, ...], PlannedRun] = {}
    alike: dict[tuple[str, ...], PlannedRun] = {}
    plans: list[PlannedRun] = []
    for point in points:
        values = (point.job or "", *(flag.name for flag in point.flags.values()))
        if values not in by_values:
            loaded = load(point)
            script = loaded.job.script if isinstance(loaded.job, ScriptJob) else ""
            code = (point.cluster or "", loaded.job.workload, script)
            shape = (*code, shape_of(loaded.job))
            same = alike.get(shape) or alike.get(code)
            planned = same.planned_for(loaded) if same else plan(loaded, point)
            by_values[values] = alike[shape] = alike[code] = planned
        plans.append(by_values[values].with_seed_of(0 if same_seed else point.repeat))
    if len(names := dict.fromkeys(one.scheduler.name for one in plans)) > 1:
        hint = "submit a sweep for each of them"
        raise UserError(f"the sweep is for {' and '.join(names)}, must be for one", hint=hint)
    return PlannedSubmission(points=list(points), plans=plans, **more)


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
