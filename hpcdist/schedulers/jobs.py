"""Which of the jobs that a batch scheduler knows is a run's, and what is told of runs without one.

Jobs are known by id and name: an id alone may be another job's by now. Of a run whose submission
was cut short only the name is known, which was planned before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from hpcdist.base.errors import SchedulerError, SubmissionUnclearError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission, SweepPlace
from hpcdist.schedulers.base import Condition, Target

_STARTING_S = 120.0
_SETTLE_S = 5.0
"""A scheduler that answers again may have the request before it still."""
_POLL_S = 0.5


class KnownJob(Protocol):
    """One job, or one element of an array, as its scheduler tells of it."""

    @property
    def job_id(self) -> str:
        """As the scheduler writes it, of an element with its place in the array."""

    @property
    def name(self) -> str:
        """What it was called when it was submitted."""

    @property
    def task(self) -> str:
        """Number of its run in the array, from 0 on; empty where there is no array."""


_Job = TypeVar("_Job", bound=KnownJob)


class JobIndex(Generic[_Job]):
    """Jobs, to find those of any number of runs in."""

    def __init__(self, jobs: Iterable[_Job]) -> None:
        jobs = list(jobs)
        self._by_key = {(job.job_id, job.name): job for job in jobs}
        self._by_name = {(job.name, job.task): job for job in jobs}

    def find(self, run: Run, submission: Submission | None) -> _Job | None:
        """The run's job; None where the scheduler does not know it any more, or never did."""
        if submission is None:
            return self._by_name.get(_planned_name(run))
        return self._by_key.get(job_key(submission))


def job_key(submission: Submission) -> tuple[str, str]:
    """Id and name of a run's job."""
    return str(submission.job_id), str(submission.job_name)


def unsubmitted(run: Run, scheduler: str) -> Condition:
    """Of a run without submission.json, whose job the scheduler does not know."""
    try:
        is_new = time.time() - run.path.stat().st_mtime < _STARTING_S
    except OSError:  # deleted a moment ago
        is_new = False
    if not is_new:
        return Condition(state="lost", reason=f"{scheduler} has no job of its name")
    return Condition(state="pending", reason="it is being submitted")


def note_jobs(
    runs: Sequence[Run],
    job_ids: Sequence[str],
    *,
    submission: Submission,
    target: Target,
    take_back: Callable[[], None],
) -> None:
    """Note which job each of the runs is; where that fails, none of them is left.

    `submission` has what is the same for all of them.
    """
    submission = msgspec.structs.replace(
        submission, job_name=target.name, folder=str(target.folder), submitted_s=time.time()
    )
    try:
        for run, job_id in zip(runs, job_ids, strict=True):
            run.write_submission(msgspec.structs.replace(submission, job_id=job_id))
    except BaseException:
        take_back()
        raise


def wait_until_ended(
    job_ids: Collection[str], living: Callable[[], Collection[str]], *, limit_s: float, hint: str
) -> None:
    """Ask until none of the jobs is among the living ones; SchedulerError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while job_ids and (left := sorted(set(living()).intersection(job_ids))):
        if time.monotonic() > deadline:
            raise SchedulerError(
                f"jobs {', '.join(left)} have not ended within {limit_s:g} s", hint=hint
            )
        time.sleep(_POLL_S)


def find_by_name(
    name: str, error: SchedulerError, ask: Callable[[], Sequence[_Job]]
) -> _Job | None:
    """A job of that name, where the submission ended with an error that leaves it open whether
    there is one; None where there is none.

    Raises SubmissionUnclearError where the scheduler does not say.
    """
    deadline = time.monotonic() + _SETTLE_S
    while (found := _named(name, error, ask)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _named(name: str, error: SchedulerError, ask: Callable[[], Sequence[_Job]]) -> _Job | None:
    try:
        jobs = ask()
    except SchedulerError:
        raise SubmissionUnclearError(
            f"it is not known whether {name} was submitted: {error.message}",
            hint=f"hpcdist status {name} will tell, hpcdist cancel {name} ends it",
        ) from error
    return next((job for job in jobs if job.name == name), None)


def _planned_name(run: Run) -> tuple[str, str]:
    """The name of a run's job, and its task in an array, as they were planned."""
    place = run.read_sweep_place() or SweepPlace()
    return place.job_name or run.id, "" if place.task is None else str(place.task)
