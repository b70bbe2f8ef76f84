"""The state of runs: their verdict, else what the scheduler says; and what it accounts."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, SchedulerError
from hpcdist.cluster.schedulers import LOCAL, SCHEDULERS
from hpcdist.runs.remote import Remote, is_remote, read_remote
from hpcdist.runs.run import Run, name_to_type
from hpcdist.runs.spec import Accounting, RunSpec
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.jobs import is_between_lives
from hpcdist.training.checkpoint.files import list_checkpoints

OPEN_STATES: tuple[State, ...] = ("pending", "running", "unknown")
"""States of a run that has not ended, as far as is known."""

_LISTED = ("pending", "running")

_LOST_MESSAGE = "the run ended without a verdict: its agents were killed or lost their machine"
_NEVER_STARTED = "the job ended before hpcdist started in it"
_LOG_HAS_IT = "its log has the reason"
_BETWEEN_LIVES = "its last life has ended, and it is to be started again"
SETUP_MARK = "hpcdist: setup: "
"""Begin of the lines by which a job's script tells of failed lines of the profile's setup."""
_MOST_BYTES = 65_536


def run_states(
    runs: Sequence[Run], *, warn: Callable[[str], None] = lambda _: None
) -> dict[str, State]:
    """Return the state of each run by its id; see `run_conditions`."""
    return {name: condition.state for name, condition in run_conditions(runs, warn=warn).items()}


def run_conditions(
    runs: Sequence[Run], *, warn: Callable[[str], None] = lambda _: None
) -> dict[str, Condition]:
    """Return the condition of each run by its id; each scheduler is asked once, and only for runs
    without verdict.

    A run that cannot be read is lost. Where a scheduler does not answer its runs are unknown, and
    `warn` is told why.
    """
    conditions: dict[str, Condition] = {}
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        verdict = run.read_verdict()
        if verdict is not None:
            conditions[run.id] = Condition(state=verdict.state)
        elif (remote := read_remote(run)) is not None:
            conditions[run.id] = _last_known(remote)
        elif (scheduler := run.read_scheduler()) is not None:
            by_scheduler[scheduler].append(run)
        else:
            conditions[run.id] = Condition(state="lost")
    for scheduler, theirs in by_scheduler.items():
        try:
            answers = load_scheduler(scheduler).conditions(theirs)
        except SchedulerError as error:
            whose = "state of 1 run is" if len(theirs) == 1 else f"states of {len(theirs)} runs are"
            warn(f"the {whose} not known: {error.message}")
            answers = {run.id: Condition(state="unknown", reason=error.message) for run in theirs}
        for run in theirs:
            condition = answers.get(run.id, Condition(state="lost"))
            if condition.state not in ("pending", "running"):
                # A verdict that was written while the scheduler was asked has the last word.
                run.look_anew()
                verdict = run.read_verdict()
                condition = condition if verdict is None else Condition(state=verdict.state)
                has_ended = verdict is None and condition.state not in (*OPEN_STATES, "cancelled")
                if has_ended and load_scheduler(scheduler).has_queue and is_between_lives(run):
                    condition = Condition(state="pending", reason=_BETWEEN_LIVES)
            conditions[run.id] = condition
    return conditions


def jobs_left(
    runs: Sequence[Run], *, warn: Callable[[str], None] = lambda _: None
) -> dict[str, Condition]:
    """Return the conditions of jobs that have outlived their runs, by run id: Slurm queues a job
    again whose nodes are set down after its end."""
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        name = run.read_scheduler()
        has_queue = name in SCHEDULERS and name != LOCAL  # which is dear to import
        if name and has_queue and not is_remote(run) and run.read_verdict() is not None:
            by_scheduler[name].append(run)
    left: dict[str, Condition] = {}
    for name, theirs in by_scheduler.items():
        if not load_scheduler(name).shares_files:
            continue  # Azure starts no job again that has ended
        try:
            left |= load_scheduler(name).conditions(theirs)
        except SchedulerError as error:
            warn(f"whether jobs of ended runs are left is not known: {error.message}")
    return {run: condition for run, condition in left.items() if condition.state in _LISTED}


def _last_known(remote: Remote) -> Condition:
    """Return the condition of a run at a host, when it was last asked for."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(remote.condition, Condition)
    return Condition(state="unknown", reason=f"{remote.host} has not been asked yet")


def bring_home(run: Run, *, warn: Callable[[str], None]) -> None:
    """Have what is new of a run brought here that goes on where nodes cannot write here: its
    scheduler does that when it is asked."""
    name = run.read_scheduler()
    if name in SCHEDULERS and not load_scheduler(name).shares_files:
        run_conditions([run], warn=warn)


def run_accounting(
    runs: Sequence[Run], *, warn: Callable[[str], None] = lambda _: None
) -> dict[str, Accounting]:
    """Return what schedulers' accounting has on runs, by run id, where they keep books and answer;
    else `warn` is told why. Each scheduler is asked once."""
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        name = None if is_remote(run) else run.read_scheduler()
        if name in SCHEDULERS and name != LOCAL:  # which keeps no books, and is dear to import
            by_scheduler[name].append(run)
    accounting: dict[str, Accounting] = {}
    for run in runs:
        if (remote := read_remote(run)) is not None and remote.accounting is not None:
            with suppress(msgspec.ValidationError):
                accounting[run.id] = msgspec.convert(remote.accounting, Accounting)
    for name, theirs in by_scheduler.items():
        try:
            accounting |= load_scheduler(name).accounting(theirs)
        except SchedulerError as error:
            warn(f"waiting times and the other accounting of {name} are not known: {error.message}")
    return accounting


def end_verdict(run: Run, condition: Condition) -> Verdict:
    """Return the verdict on a run that left none: its last attempt's, else the scheduler's word."""
    state = condition.state
    end_state: State = "lost" if state in (*OPEN_STATES, "done") else state
    attempt = run.read_attempt_verdict(run.newest_attempt())
    if attempt is not None and state != "failed":
        code = EXIT_INTERRUPTED if state == "cancelled" else attempt.exit_code_of_run
        return msgspec.structs.replace(attempt, state=end_state, exit_code_of_run=code)
    reason = f": {condition.reason}" if condition.reason else ""
    if state == "cancelled":
        return Verdict(
            kind="cancelled",
            state=state,
            message=f"the scheduler says it was cancelled{reason}",
            exit_code_of_run=EXIT_INTERRUPTED,
        )
    if attempt is not None:  # after which the job was to be started again
        sentence = f"{_NEVER_STARTED} again, after attempt {attempt.attempt} ({attempt.message})"
    else:
        sentence = _LOST_MESSAGE if run.has_started() else _NEVER_STARTED
    if sentence is not _LOST_MESSAGE:
        problem = setup_problem(run)
        why = f"a line of the profile's setup failed ({problem})" if problem else _LOG_HAS_IT
        sentence += f": {why}"
    return Verdict(
        kind="agent_lost",
        state=end_state,
        message=f"{sentence}{reason}",
        exit_code_of_run=EXIT_FAILED,
        attempt=max(run.newest_attempt(), 0),
    )


def _has_checkpoint(run: Run) -> bool:
    try:
        return bool(list_checkpoints(run.checkpoints_folder))
    except OSError:  # a record of a run elsewhere has none
        return False


def setup_problem(run: Run) -> str | None:
    """Return the last line of the profile's setup that failed in the job's script, and its exit
    code, as the job's log tells it; None where none did."""
    problem = None
    for path in run.job_logs() or _log_of_element(run):
        with suppress(OSError), files.open_regular(path, most_bytes=math.inf) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            for line in file.read(_MOST_BYTES).decode(errors="replace").splitlines():
                problem = line.removeprefix(SETUP_MARK) if line.startswith(SETUP_MARK) else problem
    return problem


def _log_of_element(run: Run) -> list[Path]:
    """Return the job's log of a run that is an element of Slurm's array: it is in the sweep's
    folder."""
    submission = run.read_submission()
    if submission is None or submission.folder is None:
        return []
    return [Path(submission.folder, "submitit", f"{submission.job_id}_0_log.out")]


def continuation(run: Run, verdict: Verdict) -> str | None:
    """Return the command that goes on from where a run has stopped; None where it is done or still
    goes on, or has saved nothing, as far as can be seen here."""
    name = run.read_scheduler()
    if verdict.state in ("done", *OPEN_STATES) or name not in SCHEDULERS:
        return None
    if verdict.exit_code_of_run != EXIT_STOPPED and not _has_checkpoint(run):
        return None
    job = (run.read_spec() or RunSpec()).job
    if "checkpoint" not in job and not load_scheduler(name).shares_files:  # code of the user's own
        return f"hpcdist fetch {name_to_type(run.path)} --checkpoints"
    return f"hpcdist resume {name_to_type(run.path)}"
