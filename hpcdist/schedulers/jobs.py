"""Runs and their jobs, for schedulers with a queue: noting, finding and ending them.

Jobs are known by id and name: an id alone may be another job's by now. Of a run whose submission
was cut short only the name is known, which was planned before.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_INTERRUPTED, SchedulerError, SubmissionUnclearError
from hpcdist.base.ownership import NotOwnError, check_own_folder, read_own
from hpcdist.base.polling import poll
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec, Submission, SweepPlace
from hpcdist.runs.verdict import UnixTime, cancelled_verdict
from hpcdist.schedulers.adoption import leave_to_another, owner_of, place_of
from hpcdist.schedulers.base import Condition, Target
from hpcdist.schedulers.requeue import RequeueRefusedError

_STARTING_S = 120.0
_FORGOTTEN_S = 20.0
"""Time for which a scheduler must go on not to know a job: one that is restarted may have no jobs
for a while, and a command may fail without saying so."""
_SEQUEL_S = 120.0
"""Time for which a scheduler may list a job as ended that it is about to start again: LSF and Slurm
took 4 to 60 s."""
_SETTLE_S = 5.0
"""A scheduler that answers again may have the request before it still."""
_POLL_S = 0.5
_GONE_LIMIT_S = 180.0
"""Seconds that jobs have to end. Slurm's KillWait and UnkillableStepTimeout are 30 s and 60 s where
a site sets nothing; LSF sends SIGINT, SIGTERM and SIGKILL 10 s after each other."""


class NoJobNamedError(SchedulerError):
    """The command that submits did not say which job it made; there may be one."""


class ListedJob(Protocol):
    """One job, or one element of an array, as its scheduler lists it.

    `job_id` is as the scheduler writes it, of an element with its place in the array; `name` is the
    one that it was submitted with; `task` is the number of its run in the array, from 0 on, and
    empty where there is no array.
    """

    @property
    def job_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def task(self) -> str: ...


class QueuedJob(ListedJob, Protocol):
    """A listed job that says how it is, in a list that has ended ones too."""

    @property
    def is_active(self) -> bool: ...
    @property
    def exit_code(self) -> int | None: ...
    def condition(self) -> Condition: ...


_Job = TypeVar("_Job", bound=ListedJob)


class JobIndex(Generic[_Job]):
    """Jobs by their ids and names."""

    def __init__(self, jobs: Iterable[_Job]) -> None:
        self._by_key: dict[tuple[str, str], _Job] = {}
        self._by_name: defaultdict[tuple[str, str], list[_Job]] = defaultdict(list)
        for job in jobs:
            self._by_key[job.job_id, job.name] = job
            self._by_name[job.name, job.task].append(job)

    def find(self, run: Run, submission: Submission | None) -> _Job | None:
        """Return the run's job; None where the scheduler does not know it, or where it is that of
        the run which this one was copied from."""
        if submission is not None:
            job = self._by_key.get(job_key(submission))
            return None if job is None or _is_copied(run, submission) else job
        return next(reversed(self._by_name[_planned_name(run)]), None)

    def find_all(self, run: Run, submission: Submission | None) -> list[_Job]:
        """Return every job of the run: the command that submitted it may have made several, of
        which it knows one."""
        if submission is not None and _is_copied(run, submission):
            return []
        job = self.find(run, submission)
        names = {_planned_name(run)} | ({(job.name, job.task)} if job else set())
        return [job for name in names for job in self._by_name[name]]


def _planned_name(run: Run) -> tuple[str, str]:
    """Return the name of the run's job, and its number in an array, as they were planned."""
    spec = run.read_spec() or RunSpec()
    if spec.job_name is not None:  # it was resumed
        return spec.job_name, ""
    place = spec.sweep or SweepPlace()
    return place.job_name or run.id, "" if place.task is None else str(place.task)


def find_jobs(
    runs: Sequence[Run], ask: Callable[[Collection[str]], Iterable[_Job]]
) -> list[tuple[Run, Submission | None, _Job | None]]:
    """Return each run with its submission and its job, by one question: `ask` is given ids, or none
    for all jobs of the user.

    Raises SchedulerError where the scheduler does not answer.
    """
    submissions = [run.read_submission() for run in runs]
    ids = {str(one.job_id) for one in submissions if one}
    # Where one is known by its name only, all jobs of the user are asked for.
    known = JobIndex(ask(() if None in submissions else sorted(ids)))
    pairs = zip(runs, submissions, strict=True)
    return [(run, submission, known.find(run, submission)) for run, submission in pairs]


def was_killed(run: Run, exit_code: int | None) -> bool:
    """Return whether a job ended by a signal that may have meant a requeue, and none came."""
    attempt = run.read_attempt_verdict(run.newest_attempt())
    return (
        attempt is not None
        and attempt.kind == "preempted"
        and not is_between_lives(run)
        # 1 where an LSF queue would start a job again for the run's own code.
        and exit_code in {None, attempt.exit_code_of_run, 1}
    )


def is_between_lives(run: Run) -> bool:
    """Return whether the run's last attempt ended a moment ago with a verdict that expects another
    life of its job: until that begins, a scheduler may list the job as ended."""
    number = run.newest_attempt()
    verdict = run.read_attempt_verdict(number)
    if verdict is None or verdict.resumed or verdict.exit_code_of_run == EXIT_INTERRUPTED:
        return False
    return run.age_of_attempt_verdict(number) < _SEQUEL_S


def _is_copied(run: Run, submission: Submission) -> bool:
    """Return whether the folder that the submission names is there, and is neither the run's nor in
    the folder of its sweep beside it: then the submission is of the run that is there."""
    if submission.folder is None or not os.path.isdir(submission.folder):
        return False  # the run was moved since
    folder, real = Path(submission.folder), Path(os.path.realpath(run.path))
    places = (real, real.parent / folder.parent.name / folder.name)
    return not any(os.path.isdir(place) and folder.samefile(place) for place in places)


def job_key(submission: Submission) -> tuple[str, str]:
    return str(submission.job_id), str(submission.job_name)


def is_new(run: Run, limit_s: float) -> bool:
    """Return whether something was written into the run directory itself that short ago."""
    try:
        return files.now_by(run.path.parent) - run.path.stat().st_mtime < limit_s
    except OSError:  # deleted a moment ago
        return False


def unsubmitted(run: Run, scheduler: str) -> Condition:
    """Return the condition of a run without submission.json, whose job is not known."""
    if is_new(run, _STARTING_S):
        return Condition(state="pending", reason="it is being submitted")
    return Condition(state="lost", reason=f"{scheduler} has no job of its name")


def note_jobs(
    runs: Sequence[Run],
    job_ids: Sequence[str],
    *,
    submission: Submission,
    target: Target,
    take_back: Callable[[], object],
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
            owner = owner_of(target.submitit_folder, place_of(job_id))
            if owner not in {None, job_id}:  # it began before its submission was noted
                run.write_submission(msgspec.structs.replace(submission, job_id=owner))
    except BaseException:
        take_back()
        raise


def note_own_job(run: Run, job_id: str | None) -> None:
    """Note within a job that the run is this one, where its submission names another of those that
    the command which submitted it has made."""
    submission = run.read_submission()
    if job_id is None or submission is None or submission.step:
        return
    if submission.job_id not in {None, job_id}:
        with suppress(OSError):  # a full disk must not end the run
            run.write_submission(msgspec.structs.replace(submission, job_id=job_id))


def own_submission(run: Run) -> tuple[Submission, str]:
    """Return the run's submission and script; RequeueRefusedError where they may be somebody
    else's by now."""
    try:
        check_own_folder(run.path)
        submission = run.read_submission() or Submission()
        check_own_folder(Path(str(submission.folder)))
        return submission, read_own(Path(str(submission.folder)) / "script.sh").decode(
            errors="surrogateescape"
        )
    except NotOwnError as error:
        raise RequeueRefusedError(error.message) from None


def leave_run(submission: Submission, place: int, job_id: str) -> None:
    """Leave a run within its job, whose id this is, to the job that is about to be submitted in its
    place."""
    leave_to_another(Path(str(submission.folder)) / "submitit", place, job_id)


def note_successor(
    run: Run,
    submission: Submission,
    job_id: str,
    *,
    pickles: tuple[str, str],  # noqa: ARG001
) -> None:
    """Note within a job that the run goes on as another, whose agents execute the same pickle.

    `submission` is what `own_submission` returned; `pickles` are the ids of this job and of the
    other as submitit has them.
    """
    former = [*submission.former_job_ids, str(submission.job_id)]
    run.write_submission(msgspec.structs.replace(submission, job_id=job_id, former_job_ids=former))


def condition_of(
    run: Run, submission: Submission | None, job: QueuedJob | None, scheduler: str
) -> Condition:
    """Return how a run is by its job, for a scheduler whose signals may mean a kill or a requeue;
    `scheduler` is its name in sentences."""
    killed = Condition(
        state="cancelled", reason=f"{scheduler} killed its job, and does not start it again"
    )
    if job is not None:
        note_known(run)
        condition = job.condition()
        if condition.state == "done" and submission is not None:
            condition = _unless_left_to_another(submission, condition)
        is_killed = condition.state == "failed" and was_killed(run, job.exit_code)
        return killed if is_killed else condition
    if submission is None:  # submitted a moment ago, or its submission was killed
        return unsubmitted(run, scheduler)
    condition = condition_if_forgotten(run, submission, scheduler)
    return killed if condition.state == "lost" and was_killed(run, None) else condition


class _Missed(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer of a scheduler that did not know a run's job."""

    job_id: str
    time_s: UnixTime


def condition_if_forgotten(run: Run, submission: Submission, scheduler: str) -> Condition:
    """Return the condition of a run whose job the scheduler does not know, though it answers: lost
    where it did not know the job some time ago either; unknown until then; and running as long as
    its agents show that they live."""
    lost = Condition(state="lost", reason=f"{scheduler} has forgotten its job")
    now_s, missed = time.time(), _read_missed(run)
    if missed is None or missed.job_id != submission.job_id:
        missed = _Missed(job_id=str(submission.job_id), time_s=now_s)
        try:
            files.write_json(run.missed_file, msgspec.to_builtins(missed))
        except OSError:  # somebody else's run: who only looks does no harm
            if not run.is_alive():
                return lost
    if run.read_verdict() is None and run.is_alive():
        reason = f"{scheduler} does not list its job {missed.job_id}, but its agents live"
        return Condition(state="running", reason=reason)
    if abs(now_s - missed.time_s) >= _FORGOTTEN_S:
        return lost
    reason = (
        f"{scheduler} does not list its job {missed.job_id}; the run is taken for lost if that is "
        f"so in {_FORGOTTEN_S:g} s"
    )
    return Condition(state="unknown", reason=reason)


def note_known(run: Run) -> None:
    """Note that the scheduler knows the run's job."""
    with suppress(OSError):
        run.missed_file.unlink()


def _read_missed(run: Run) -> _Missed | None:
    try:
        return files.convert(files.read_json(run.missed_file), _Missed)
    except msgspec.ValidationError:
        return None


def _unless_left_to_another(submission: Submission, condition: Condition) -> Condition:
    """Return the condition of a run whose job has ended well: another of its jobs may have it."""
    job_id = str(submission.job_id)
    owner = owner_of(Path(str(submission.folder)) / "submitit", place_of(job_id))
    if owner in {None, job_id}:
        return condition
    return Condition(state="running", reason=f"job {owner} has it, which was submitted beside it")


def cancel_jobs(
    runs: Sequence[Run],
    ask: Callable[[Collection[str]], Iterable[QueuedJob]],
    *,
    kill: Callable[[Sequence[str]], None],
    hint: str,
) -> None:
    """Find the jobs of runs, by their names too, and end them: see `end_jobs`. A job that is listed
    as ended may be about to be started again."""
    known = JobIndex(ask(()))  # nothing may be half done where the scheduler does not answer
    found = [job for run in runs for job in known.find_all(run, run.read_submission())]
    job_ids = sorted({job.job_id for job in found})
    end_jobs(
        runs,
        job_ids,
        kill=kill,
        list_living=lambda: {job.job_id for job in ask(job_ids) if job.is_active},
        hint=hint,
    )


def end_jobs(
    runs: Sequence[Run],
    job_ids: Collection[str],
    *,
    kill: Callable[[Sequence[str]], None],
    list_living: Callable[[], Collection[str]],
    hint: str,
) -> None:
    """Have `kill` end the jobs of runs, wait until none is among the living ones, and write the
    runs' verdicts.

    Raises SchedulerError where they do not end, whose hint is `hint`.
    """
    for run in runs:
        run.ask_to_cancel()
    kill(sorted(job_ids))

    def living() -> list[str]:
        return sorted(set(list_living()).intersection(job_ids))

    are_gone = not job_ids or poll(
        lambda: not living() or None, interval_s=_POLL_S, limit_s=_GONE_LIMIT_S
    )
    if not are_gone and (left := living()):
        raise SchedulerError(
            f"jobs {', '.join(left)} have not ended within {_GONE_LIMIT_S:g} s", hint=hint
        )
    for run in runs:
        run.write_verdict(cancelled_verdict())


def find_by_name(
    name: str, error: SchedulerError, ask: Callable[[], Sequence[_Job]]
) -> _Job | None:
    """Return a job of that name, after a submission whose error leaves it open whether there is
    one; None where there is none.

    Raises SubmissionUnclearError where the scheduler does not say.
    """

    def look() -> _Job | None:
        try:
            return next((job for job in ask() if job.name == name), None)
        except SchedulerError:
            raise SubmissionUnclearError(
                f"it is not known whether {name} was submitted: {error.message}",
                hint=f"hpcdist status {name} will tell, hpcdist cancel {name} ends it",
            ) from error

    return poll(look, interval_s=_POLL_S, limit_s=_SETTLE_S)
