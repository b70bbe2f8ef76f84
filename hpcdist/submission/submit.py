"""Submitting: from a plan to runs that a scheduler has. The one place with the effects.

Every submission goes one way: run directories with their spec.json, then the scripts, then the
hand-over. A single run is a submission of one point, which needs no folder of a sweep.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError, SubmissionUnclearError
from hpcdist.base.polling import poll
from hpcdist.base.secrets import HIDDEN, Stars, redact
from hpcdist.base.version import locked, versions
from hpcdist.job.spec import job_to_dict
from hpcdist.monitor.states import EndWatch, wait_until_gone
from hpcdist.runs.run import (
    Run,
    cannot_write,
    delete_folder,
    make_runs_folder,
    make_unique_folder,
    name_to_type,
    slug,
)
from hpcdist.runs.snapshot import copy_code, run_git
from hpcdist.runs.spec import RunSpec, SweepPlace, UsedCluster
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.tasks import SummaryTask, array_of
from hpcdist.submission.container import used_container
from hpcdist.submission.plan import Job, PlannedRun, PlannedSubmission, lay_out

_GIT_LIMIT_S = 5.0


def submit(
    planned: PlannedSubmission,
    *,
    runs: Path,
    dependencies: Sequence[Dependency] = (),
    summary_after: bool = False,
) -> Submission:
    """Make the runs in the folder `runs`, and submit them; the scheduler has them from then on.

    An error before the first job is accepted leaves nothing behind, unless it is a
    SubmissionUnclearError. After one later, what the scheduler has, or may have, stays with it, the
    runs that it has not are deleted, and the error says so.
    """
    submission = Submission(planned, runs)
    try:
        jobs = lay_out(submission.planned, dependencies, summary_after=summary_after)
        # All directories before the scheduler is called: a full disk is found before too.
        for job in jobs:
            submission.make_runs(job)
        for job in jobs:
            submission.hand_over(job)
    except BaseException as error:
        submission.take_back()
        known = cannot_write(runs, error) if isinstance(error, OSError) else error
        if isinstance(known, HpcdistError) and submission.is_half_way:
            raise submission.what_is_left(known) from error
        raise known from None
    return submission


class Submission:
    """Runs that a scheduler has; half way, those that it has and those that it has not."""

    def __init__(self, planned: PlannedSubmission, runs: Path) -> None:
        """Make the folder of the run, or of the sweep, in `runs`, and copy the code into it, once
        for all runs; an error leaves nothing behind."""
        make_runs_folder(runs)
        self.planned = planned.at(make_unique_folder(runs, slug(planned.name)))
        self.path, self.runs = self.planned.path, self.planned.runs
        try:
            if any(one.loaded.job.container.image for one in planned.plans):
                from hpcdist.base.carried import carry

                carry()
            if snapshots := [one for plan in planned.plans if (one := plan.workspace.snapshot)]:
                copy_code(snapshots[0], self.path)
            if (sweep := self.planned.sweep) is not None:
                sweep.write()
        except BaseException:
            delete_folder(self.path)
            raise
        self.id = self.path.name
        self.jobs: list[Job] = []
        """The jobs with runs that the scheduler has accepted."""
        self.job_ids: list[str] = []
        """Their ids; of an array its own."""
        self.summary_job_id: str | None = None
        self.messages: list[str] = []
        """The messages of the scheduler, each sentence once."""
        self._surroundings = surroundings_now()
        self._unclear: Job | None = None
        """A job of which nobody knows whether the scheduler has it."""

    def make_runs(self, job: Job) -> None:
        """Make the directories of a job's runs."""
        for task, index in enumerate(job.points):
            run, point = self.runs[index], self.planned.points[index]
            run.make()
            place = self.planned.sweep and SweepPlace(
                id=self.id,
                index=index,
                num_points=len(self.planned.points),
                point=point.values,
                repeat=point.repeat,
                label=point.label,
                comparison=self.planned.comparison,
                variant=point.variant,
                job_name=job.target.name,
                task=None if job.target.array_size is None else task,
            )
            planned = self.planned.plans[index] if job.points[1:] else job.planned
            write_spec(run, planned, msgspec.structs.replace(self._surroundings, sweep=place))

    def hand_over(self, job: Job) -> None:
        """Give a job to the scheduler."""
        runs, target = [self.runs[index] for index in job.points], job.target_behind(self.job_ids)
        try:
            if runs:
                said = hand_over(job.planned, target, runs)
                job_id = array_of(str(runs[0].read_job_id()))
                self.jobs.append(job)
                self.job_ids.append(job_id)
            else:
                target.make_folders()
                paths = [str(run.path) for run in self.runs]
                task, script = SummaryTask(run_paths=paths, folder=str(self.path)), job.planned
                self.summary_job_id, said = script.scheduler.submit_task(
                    script.loaded.job, target, task, script.script(target)
                )
        except SubmissionUnclearError:
            self._unclear = job
            raise
        self.messages = list(dict.fromkeys([*self.messages, *said]))

    def take_back(self) -> None:
        """Delete the runs that the scheduler has not; with the last of them goes the sweep."""
        jobs = [*self.jobs, *([self._unclear] if self._unclear else [])]
        theirs = {index for job in jobs for index in job.points}
        for index, run in enumerate(self.runs):
            if index not in theirs:
                delete_folder(run.path)
        if not theirs and self.planned.sweep is not None:
            delete_folder(self.path)

    @property
    def is_half_way(self) -> bool:
        """The scheduler has, or may have, some of the jobs, and not all."""
        is_sweep = self.planned.sweep is not None
        return bool(self.jobs) or (is_sweep and self._unclear is not None)

    def what_is_left(self, error: HpcdistError) -> SchedulerError:
        """Return the error that says what the scheduler has, or may have."""
        kind = SubmissionUnclearError if self._unclear else SchedulerError
        number, name = sum(len(job.points) for job in self.jobs), name_to_type(self.path)
        if number == len(self.runs):
            perhaps = "perhaps " if self._unclear else ""
            return SchedulerError(
                f"{self.id} was submitted, but {perhaps}not the job for its summary: "
                f"{error.message}",
                hint=f"it continues; summarize it later with: hpcdist summary {name}",
            )
        unclear = len(self._unclear.points) if self._unclear else 0
        unknown = f" of {unclear} that is not known, and" if unclear else ""
        return kind(
            f"{number} of the {len(self.runs)} runs of sweep {self.id} were submitted,"
            f"{unknown} the others were not: {error.message}",
            hint=f"hpcdist status {name} shows what runs, hpcdist cancel {name} ends them",
        )


# A sweep on this machine: its points one after the other, or a few at a time.


class PointEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one point."""

    index: int
    run: Run | None = None
    """None where it could not be started."""
    verdict: Verdict | None = None
    error: str | None = None
    """Why it could not be started."""


class LocalSweep:
    """Starts the runs of a sweep; a run's directory is made when it starts. A subclass shows what
    happens."""

    def __init__(self, submission: Submission, check: Callable[[], None] = lambda: None) -> None:
        """`check` may raise, which ends the sweep."""
        self._submission, self._check = submission, check
        self.planned = submission.planned

    def started(self, index: int, run: Run) -> None:
        """Show that a point has started."""

    def ended(self, end: PointEnd) -> None:
        """Show that a point has ended, or could not be started."""

    def end(self, running: Sequence[Run], why: BaseException) -> None:  # noqa: ARG002 - a default
        """End what runs, for this exception."""
        self.planned.scheduler.cancel(running)

    def wait(self, running: Mapping[int, Run]) -> dict[int, Verdict]:
        """Wait until at least one of the runs has ended; return those that have."""
        watch = EndWatch(running.values())

        def look() -> dict[str, Verdict] | None:
            self._check()
            return watch.look() or None

        verdicts = poll(look, interval_s=0.1)
        ended = {index: run for index, run in running.items() if run.id in verdicts}
        for run in ended.values():
            wait_until_gone(run)
        return {index: verdicts[run.id] for index, run in ended.items()}

    def run_points(self) -> list[PointEnd]:
        """Run the points, so many at one time as the sweep's max_parallel says, or one.

        A point that fails does not stop the others. Once somebody cancels the sweep no more are
        started, and those are not among the ends. An exception ends what runs, and starts no more.
        """
        sweep, waiting = self.planned.sweep, self.planned.points_here()
        running: dict[int, Run] = {}
        gpus: dict[int, set[str]] = {}  # they may not look busy yet
        ends: dict[int, PointEnd] = {}
        try:
            while waiting or running:
                if sweep is not None and sweep.cancel_file.exists():
                    waiting.clear()
                while waiting and len(running) < (self.planned.max_parallel or 1):
                    index, run = waiting[0], self._submission.runs[waiting[0]]
                    try:
                        gpus[index] = self._start(index, set().union(*gpus.values()))
                    except HpcdistError as error:
                        if running:  # perhaps for want of what the others hold
                            break
                        ends[index] = PointEnd(index=index, error=error.message)
                        self.ended(ends[index])
                    else:
                        running[index] = run
                        self.started(index, run)
                    del waiting[0]
                for index, verdict in (self.wait(running) if running else {}).items():
                    ends[index] = PointEnd(index=index, run=running.pop(index), verdict=verdict)
                    del gpus[index]
                    self.ended(ends[index])
        except BaseException as error:
            if running:
                self.end([*running.values()], error)
            raise
        return [ends[index] for index in sorted(ends)]

    def _start(self, index: int, busy_gpus: set[str]) -> set[str]:
        """Start one point; return its GPUs, which are others than the busy ones."""
        planned, run = self.planned.plans[index].now(busy_gpus), self._submission.runs[index]
        job = Job(planned=planned, target=planned.target(run), points=[index])
        try:
            self._submission.make_runs(job)
            self._submission.hand_over(job)
        except BaseException:
            delete_folder(run.path)
            raise
        return {uuid for node in planned.plan.launch.nodes for uuid in node.gpus or []}


# What is written and handed over.


def hand_over(planned: PlannedRun, target: Target, runs: Sequence[Run]) -> list[str]:
    """Give runs whose directories are there to the scheduler; return what that had to say."""
    target.make_folders()
    job = planned.workspace.job(planned.loaded.job)
    return planned.scheduler.submit(job, target, runs, planned.script(target))


def surroundings_now() -> RunSpec:
    """Return what is the same in spec.json for all runs of a submission, and slow to find out."""
    commit, has_changes = git_state()
    return RunSpec(
        host=socket.gethostname(),
        versions=versions() | locked(Path.cwd()),
        commit=commit,
        has_changes=has_changes,
        environment=redact(os.environ),
    )


def write_spec(run: Run, planned: PlannedRun, spec: RunSpec | None = None) -> None:
    """Write the spec.json of a planned run, and its call, if it has one.

    Values of the job that look secret are starred out, and stand in private.json alone.
    `spec` has what does not follow from the plan; None: the surroundings as they are now.
    """
    loaded, workspace, cluster = planned.loaded, planned.workspace, planned.cluster
    shown = redact(cluster.profile.environment)
    environment = {name: shown.get(name, HIDDEN) for name in cluster.profile.environment}
    profile = msgspec.structs.replace(cluster.profile, environment=environment)
    spec, stars = spec or surroundings_now(), Stars()
    job = job_to_dict(workspace.job(loaded.job))
    shown_job = stars.value(job)
    hidden = {key: value for key, value in job.items() if value != shown_job[key]}
    if hidden:
        files.write_json(run.private_file, hidden)
    if (place := spec.sweep) is not None:
        point, label = stars.value(place.point), place.label and stars.text(place.label)
        place = msgspec.structs.replace(place, point=point, label=label)
    container = planned.container_in(run.path.parent)
    run.write_spec(
        msgspec.structs.replace(
            spec,
            id=run.id,
            created_s=spec.created_s or time.time(),
            scheduler=planned.scheduler.name,
            cluster=UsedCluster(name=cluster.name, profile=profile),
            job=shown_job,
            hidden=sorted(hidden),
            plan=msgspec.structs.replace(planned.plan.launch, container=container),
            job_source=loaded.source,
            overrides=stars.args(loaded.overrides),
            cwd=workspace.submit_dir,
            snapshot=workspace.used,
            container=used_container(loaded.job),
            sweep=place,
        )
    )
    if planned.call is not None:
        files.write_whole(run.function_file, planned.call)


def git_state() -> tuple[str | None, bool | None]:
    """Return the commit of the working directory, and whether it was changed; None outside git."""
    status = ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:  # git starts one of its own in a submodule, by the settings there
        said = run_git(os.getcwd(), [*status, "--ignore-submodules=dirty"], limit_s=_GIT_LIMIT_S)
    except HpcdistError:  # there is no repository, git is not installed or does not answer
        return None, None
    lines = said.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    changed = [line for line in lines if not line.startswith("#")]
    return headers.get("branch.oid"), bool(changed)
