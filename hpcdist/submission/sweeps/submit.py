"""Submitting a sweep to a scheduler with a queue: as few calls as the shapes of its runs allow."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hpcdist.base.errors import HpcdistError, SchedulerError, SubmissionUnclearError
from hpcdist.runs.run import Run, cannot_write
from hpcdist.runs.sweep import SubmittedJob, Sweep
from hpcdist.schedulers.base import Dependency, Scheduler
from hpcdist.submission.single import describe, surroundings_now
from hpcdist.submission.summary_after import MakeTask, SummaryJob
from hpcdist.submission.sweeps.plan import LaidOutJob, PlannedSweep, described_point, lay_out


@dataclass(frozen=True, kw_only=True)
class SubmittedSweep:
    """A sweep that a scheduler has."""

    sweep: Sweep
    runs: list[Run]
    """In the order of the points."""
    jobs: list[SubmittedJob]
    summary_job_id: str | None
    said: list[str]
    """What the scheduler had to say, each sentence once."""


def submit_sweep(
    planned: PlannedSweep,
    scheduler: Scheduler,
    *,
    runs: Path,
    command: Sequence[str],
    dependencies: Sequence[Dependency] = (),
    summary_task: MakeTask | None = None,
) -> SubmittedSweep:
    """Make the runs, and submit them; they are the scheduler's from then on.

    An error before the first job is accepted leaves nothing behind. After one later, what the
    scheduler has, or may have, stays with it, the runs that it has not are deleted, and the error
    says so.
    """
    max_array_size = scheduler.max_array_size()
    planned = planned.stored(runs)
    sweep = Sweep.create(runs, planned.name)
    jobs = lay_out(planned, sweep, max_array_size=max_array_size, dependencies=dependencies)
    going = _Submission(planned, scheduler, sweep, jobs, command)
    try:
        going.make_runs()
        for job in jobs:
            going.hand_over(job)
        if summary_task is not None:
            going.submit_summary(summary_task)
    except BaseException as error:
        going.take_back()
        if (going.submitted or going.unclear) and isinstance(error, HpcdistError):
            raise going.partly(error) from error
        if isinstance(error, OSError):
            raise cannot_write(runs, error) from None
        raise
    return going.result()


def planned_scripts(
    planned: PlannedSweep,
    scheduler: Scheduler,
    sweep: Sweep,
    *,
    dependencies: Sequence[Dependency] = (),
    summary_after: bool = False,
) -> list[str]:
    """What `submit_sweep` would submit, script by script; JOBID stands for ids that are not known.

    Nothing of `sweep` need exist.
    """
    jobs = lay_out(
        planned, sweep, max_array_size=scheduler.max_array_size(), dependencies=dependencies
    )
    scripts = [
        planned.runs[job.points[0]].script(
            job.target_behind(None if job.behind is None else _unknown_id(jobs[job.behind]))
        )
        for job in jobs
    ]
    if summary_after:
        summary = _summary_job(planned, scheduler, sweep)
        scripts.append(summary.script(summary.target([_unknown_id(job) for job in jobs])))
    return scripts


def _unknown_id(job: LaidOutJob) -> str:
    return f"JOBID-of-{job.target.name}"


def _summary_job(planned: PlannedSweep, scheduler: Scheduler, sweep: Sweep) -> SummaryJob:
    return SummaryJob(scheduler=scheduler, cluster=planned.runs[0].plan.cluster, folder=sweep.path)


@dataclass
class _Submission:
    """A submission half way: what the scheduler has, and what it has not."""

    planned: PlannedSweep
    scheduler: Scheduler
    sweep: Sweep
    jobs: list[LaidOutJob]
    command: Sequence[str]
    submitted: list[SubmittedJob] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    """Ids of runs of which nobody knows whether the scheduler has them."""
    summary_job_id: str | None = None
    said: list[str] = field(default_factory=list)
    is_complete: bool = False
    created_s: float = field(default_factory=time.time)

    def run(self, index: int) -> Run:
        return self.sweep.run(index, len(self.planned.points))

    def make_runs(self) -> None:
        """All directories, before the scheduler is called: a full disk is found before too."""
        self.write()
        surroundings = surroundings_now()
        of_point = {
            index: (job.target.name, None if job.target.array_size is None else task)
            for job in self.jobs
            for task, index in enumerate(job.points)
        }
        for index, planned in enumerate(self.planned.runs):
            run = self.run(index)
            run.make()
            describe(
                run,
                planned,
                self.command,
                surroundings=surroundings,
                sweep=described_point(self.planned, self.sweep, index, of_point[index]),
            )

    def hand_over(self, job: LaidOutJob) -> None:
        runs = [self.run(index) for index in job.points]
        behind = None if job.behind is None else self.submitted[job.behind].job_id
        target = job.target_behind(behind)
        target.submitit_folder.mkdir(parents=True, exist_ok=True)
        try:
            self.said += self.planned.runs[job.points[0]].hand_over(target, runs)
        except SubmissionUnclearError:
            self.unclear = [run.id for run in runs]
            raise
        first = str(runs[0].read_job_id())
        self.submitted.append(
            SubmittedJob(
                name=target.name,
                job_id=self.scheduler.dependency_id(first),
                runs=[run.id for run in runs],
            )
        )
        self.write()

    def submit_summary(self, make_task: MakeTask) -> None:
        self.is_complete = True
        summary = _summary_job(self.planned, self.scheduler, self.sweep)
        runs = [self.run(index) for index in range(len(self.planned.points))]
        job_ids = [job.job_id for job in self.submitted]
        self.summary_job_id, said = summary.submit(runs, job_ids, make_task)
        self.said += said
        self.write()

    def write(self) -> None:
        self.sweep.write(
            {
                "created_s": self.created_s,
                "job": self.planned.name,
                "scheduler": self.scheduler.name,
                "command": list(self.command),
                "num_points": len(self.planned.points),
                "max_parallel": self.planned.max_parallel,
                "jobs": msgspec.to_builtins(self.submitted),
                "summary_job_id": self.summary_job_id,
            }
        )

    def take_back(self) -> None:
        """Delete the runs that the scheduler has not; with the last of them goes the sweep."""
        theirs = {name for job in self.submitted for name in job.runs}.union(self.unclear)
        for index in range(len(self.planned.points)):
            run = self.run(index)
            if run.id not in theirs:
                shutil.rmtree(run.path, ignore_errors=True)
        if not theirs:
            self.sweep.remove()

    def partly(self, error: HpcdistError) -> SchedulerError:
        """The error where the scheduler has a part, or may have."""
        hint = f"hpcdist status {self.sweep.id} shows what runs, hpcdist cancel {self.sweep.id} "
        if self.is_complete:
            is_unclear = isinstance(error, SubmissionUnclearError)
            what = f"{'perhaps ' if is_unclear else ''}not the job for its summary"
            return SchedulerError(
                f"sweep {self.sweep.id} was submitted, but {what}: {error.message}",
                hint=f"{hint}ends it",
            )
        text = f"{self._what_was_submitted()}: {error.message}"
        kind = SubmissionUnclearError if self.unclear else SchedulerError
        return kind(text, hint=f"{hint}ends them")

    def _what_was_submitted(self) -> str:
        number = sum(len(job.runs) for job in self.submitted)
        of_all = f"of the {len(self.planned.points)} runs of sweep {self.sweep.id}"
        if not self.unclear:
            return f"{number} {of_all} were submitted, the others were not"
        return (
            f"{number} {of_all} were submitted, of {len(self.unclear)} that is not known, and the "
            "others were not"
        )

    def result(self) -> SubmittedSweep:
        return SubmittedSweep(
            sweep=self.sweep,
            runs=[self.run(index) for index in range(len(self.planned.points))],
            jobs=self.submitted,
            summary_job_id=self.summary_job_id,
            said=list(dict.fromkeys(self.said)),
        )
