"""The state of runs: their verdict, else what the scheduler says; what it accounts; their ends."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from hpcdist.base import errors
from hpcdist.base.progress import poll
from hpcdist.base.terminal_lines import last_lines
from hpcdist.cluster.schedulers import LOCAL, SCHEDULERS
from hpcdist.runs.remote import is_remote, read_remote
from hpcdist.runs.run import Run, name_to_type
from hpcdist.runs.spec import Accounting, Submission
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers import load_scheduler, runs_here
from hpcdist.schedulers.base import Condition, Scheduler
from hpcdist.schedulers.batch import is_between_lives
from hpcdist.training.checkpoint.files import list_checkpoints

Warn = Callable[[str], None]
OPEN_STATES: tuple[State, ...] = ("pending", "running", "unknown")
"""States of a run that has not ended, as far as is known."""
SETUP_MARK = "hpcdist: setup: "
"""Begin of the lines by which a job's script tells of failed lines of the profile's setup."""
_SETUP_LINES = 100
_LOOK_S = 0.5
_GONE_LIMIT_S = 5.0  # agents end within moments of their verdict
_FREE_LIMIT_S = 60.0  # a script that copies and tidies up after its agents


def run_states(runs: Sequence[Run], *, warn: Warn = lambda _: None) -> dict[str, State]:
    """Return the state of each run by its id; see `run_conditions`."""
    return {name: condition.state for name, condition in run_conditions(runs, warn=warn).items()}


def run_conditions(runs: Sequence[Run], *, warn: Warn = lambda _: None) -> dict[str, Condition]:
    """Return the condition of each run by its id; each scheduler is asked once, and only for runs
    without verdict.

    A run that cannot be read is lost. Where a scheduler does not answer its runs are unknown, and
    `warn` is told why.
    """
    conditions: dict[str, Condition] = {}
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if (verdict := run.read_verdict()) is not None:
            conditions[run.id] = Condition(state=verdict.state)
        elif (remote := read_remote(run)) is not None:
            why = f"{remote.host} has not been asked yet"
            conditions[run.id] = Condition(state="unknown", reason=why)
            with suppress(msgspec.ValidationError):  # None, or damaged
                conditions[run.id] = msgspec.convert(remote.condition, Condition)
        else:
            by_scheduler[run.read_scheduler() or ""].append(run)
    for name, theirs in by_scheduler.items():
        answers: dict[str, Condition] = {}
        try:
            answers = load_scheduler(name).conditions(theirs) if name else {}
        except errors.SchedulerError as error:
            whose = "state of 1 run is" if len(theirs) == 1 else f"states of {len(theirs)} runs are"
            warn(f"the {whose} not known: {error.message}")
            answers = {run.id: Condition(state="unknown", reason=error.message) for run in theirs}
        for run in theirs:
            condition = answers.get(run.id, Condition(state="lost"))
            is_open = condition.state in ("pending", "running")
            conditions[run.id] = condition if is_open else _look_anew(run, condition, name)
    return conditions


def _look_anew(run: Run, condition: Condition, scheduler: str) -> Condition:
    """Return the condition of a run that its scheduler lists no more: a verdict that was written
    meanwhile has the last word, and between two of its lives a job is not listed either."""
    run.look_anew()
    if (verdict := run.read_verdict()) is not None:
        return Condition(state=verdict.state)
    has_ended = scheduler and condition.state not in ("unknown", "cancelled")
    if has_ended and load_scheduler(scheduler).has_queue and is_between_lives(run):
        why = "its last life has ended, and it is to be started again"
        return Condition(state="pending", reason=why)
    return condition


def _by_queue(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group runs by their schedulers, without those at hosts and those of this machine: its
    scheduler keeps no books, and is dear to import."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        name = None if is_remote(run) else run.read_scheduler()
        if name in SCHEDULERS and name != LOCAL:
            groups[name].append(run)
    return groups


def jobs_left(runs: Sequence[Run], *, warn: Warn = lambda _: None) -> dict[str, Condition]:
    """Return the conditions of jobs that have outlived their runs, by run id: Slurm queues a job
    again whose nodes are set down after its end."""
    left: dict[str, Condition] = {}
    for name, theirs in _by_queue([run for run in runs if run.read_verdict() is not None]).items():
        if load_scheduler(name).shares_files:  # Azure starts no job again that has ended
            try:
                left |= load_scheduler(name).conditions(theirs)
            except errors.SchedulerError as error:
                warn(f"whether jobs of ended runs are left is not known: {error.message}")
    return {run: each for run, each in left.items() if each.state in ("pending", "running")}


def run_accounting(runs: Sequence[Run], *, warn: Warn = lambda _: None) -> dict[str, Accounting]:
    """Return what schedulers' accounting has on runs, by run id, where they keep books and answer;
    else `warn` is told why. Each scheduler is asked once."""
    accounting: dict[str, Accounting] = {}
    for name, theirs in _by_queue(runs).items():
        try:
            accounting |= load_scheduler(name).accounting(theirs)
        except errors.SchedulerError as error:
            warn(f"waiting times and the other accounting of {name} are not known: {error.message}")
    return accounting


def bring_home(run: Run, *, warn: Warn) -> None:
    """Have what is new of a run brought here that goes on where nodes cannot write here: its
    scheduler does that when it is asked."""
    name = run.read_scheduler()
    if name in SCHEDULERS and not load_scheduler(name).shares_files:
        run_conditions([run], warn=warn)


def end_verdict(run: Run, condition: Condition) -> Verdict:
    """Return the verdict on a run that left none: its last attempt's, else the scheduler's word."""
    state = condition.state
    end_state: State = "lost" if state in (*OPEN_STATES, "done") else state
    code = errors.EXIT_INTERRUPTED if state == "cancelled" else errors.EXIT_FAILED
    attempt = run.read_attempt_verdict(run.newest_attempt())
    is_torn = os.path.lexists(run.verdict_file) and run.read_verdict() is None
    if attempt is not None and state != "failed" and not is_torn:
        code = code if state == "cancelled" else attempt.exit_code_of_run
        return msgspec.structs.replace(attempt, state=end_state, exit_code_of_run=code)
    if is_torn:
        sentence = f"the run's {run.describe_damage()}"
    elif state == "cancelled":
        sentence = "the scheduler says it was cancelled"
    elif attempt is None and run.has_started():
        sentence = "the run ended without a verdict: its agents were killed or lost their machine"
    else:
        sentence = "the job ended before hpcdist started in it"
        if attempt is not None:  # after which the job was to be started again
            sentence += f" again, after attempt {attempt.attempt} ({attempt.message})"
        problem = setup_problem(run)
        failed = f"a line of the profile's setup failed ({problem})"
        sentence += f": {failed if problem else 'its log has the reason'}"
    return Verdict(
        kind="cancelled" if state == "cancelled" else "agent_lost",
        state=end_state,
        message=f"{sentence}: {condition.reason}" if condition.reason else sentence,
        exit_code_of_run=code,
        attempt=max(run.newest_attempt(), 0),
    )


def setup_problem(run: Run) -> str | None:
    """Return the last line of the profile's setup that failed in the job's script, and its exit
    code, as the job's log tells it; None where none did."""
    logs, submission = run.job_logs(), run.read_submission()
    if not logs and submission is not None and submission.folder is not None:
        # The log of an element of Slurm's array is in the sweep's folder.
        logs = [Path(submission.folder, "submitit", f"{submission.job_id}_0_log.out")]
    lines = [
        line
        for path in logs
        for line in last_lines(path, _SETUP_LINES)
        if line.startswith(SETUP_MARK)
    ]
    return lines[-1].removeprefix(SETUP_MARK) if lines else None


def continuation(run: Run, verdict: Verdict) -> str | None:
    """Return the command that goes on from where a run has stopped; None where it is done or still
    goes on, or has saved nothing, as far as can be seen here."""
    name = run.read_scheduler()
    if verdict.state in ("done", *OPEN_STATES) or name not in SCHEDULERS:
        return None
    has_saved = verdict.exit_code_of_run == errors.EXIT_STOPPED
    with suppress(OSError):  # a record of a run elsewhere has none
        has_saved = has_saved or bool(list_checkpoints(run.checkpoints_folder))
    if not has_saved:
        return None
    job = run.spec.job
    if "checkpoint" not in job and not load_scheduler(name).shares_files:  # code of the user's own
        return None
    return f"hpcdist resume {name_to_type(run.path)}"


class EndWatch:
    """Watches runs for their ends, without asking their schedulers too often."""

    def __init__(self, runs: Iterable[Run], *, interval_s: float = 1.0) -> None:
        """Ask schedulers after `interval_s` for the first time; the interval doubles up to the
        longest pause that they want."""
        self.open: dict[str, Run] = {}
        """The runs that have not ended, by id."""
        self._interval_s = self._longest_s = interval_s
        self._next_s = time.monotonic() + interval_s
        self.conditions: dict[str, Condition] = {}
        """Run id -> what is known of it."""
        self.unanswered: list[str] = []
        """Why schedulers did not answer the last question."""
        self._ended_before: set[str] = set()
        self.add(runs)

    def add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.open[run.id] = run
            self.conditions[run.id] = Condition(state="pending")
            name = run.read_scheduler()
            scheduler = load_scheduler(name) if name in SCHEDULERS else Scheduler
            self._longest_s = max(self._longest_s, scheduler.longest_poll_s)

    def look(self) -> dict[str, Verdict]:
        """Return the verdicts of the runs that have ended since the last look, by the run's id."""
        read = {run.id: run.read_verdict() for run in self.open.values()}
        ended = {name: verdict for name, verdict in read.items() if verdict is not None}
        if len(ended) < len(read) and time.monotonic() >= self._next_s:
            ended |= self._ask([run for run in self.open.values() if run.id not in ended])
        for name, verdict in ended.items():
            del self.open[name]
            self.conditions[name] = Condition(state=verdict.state)
        return ended

    def _ask(self, runs: list[Run]) -> dict[str, Verdict]:
        """Ask the schedulers. They must say twice that a run ended: a verdict may be on its way
        through a shared file system."""
        self.unanswered = []
        answers = run_conditions(runs, warn=self.unanswered.append)
        self._next_s = time.monotonic() + self._interval_s
        self._interval_s = min(2 * self._interval_s, self._longest_s)
        if self.unanswered:
            return {}
        gone = {name for name, condition in answers.items() if condition.state not in OPEN_STATES}
        self.conditions |= {name: answers[name] for name in answers if name not in gone}
        certain, self._ended_before = gone & self._ended_before, gone
        ended = [run for run in runs if run.id in certain]
        return {run.id: run.read_verdict() or end_verdict(run, answers[run.id]) for run in ended}

    def wait(
        self,
        check: Callable[[], None] = lambda: None,
        *,
        interval_s: float = _LOOK_S,
        limit_s: float | None = None,
    ) -> dict[str, Verdict]:
        """Wait until all runs have ended; return the verdicts of those that have, which may not be
        all after `limit_s` seconds. `check` is called between looks, and may raise."""
        verdicts: dict[str, Verdict] = {}

        def look() -> bool | None:
            verdicts.update(self.look())
            if self.open:
                check()
            return not self.open or None

        poll(look, interval_s=interval_s, limit_s=limit_s)
        return verdicts


def wait_until_gone(run: Run, *, with_job: bool = False) -> bool:
    """Wait for the last processes of a run that has a verdict, where they are on this machine;
    with its job, also until its scheduler has that no more. Return whether that came about.

    The last of a job's script would find a run that was resumed meanwhile, which is not what it was
    submitted for, and say that the run has failed.
    """
    name = run.read_scheduler() or LOCAL
    is_here = runs_here(name) or bool((run.read_submission() or Submission()).step)
    if not (is_here or with_job):
        return True
    scheduler = load_scheduler(name)

    def is_gone() -> bool | None:
        try:
            return scheduler.conditions([run])[run.id].state not in OPEN_STATES or None
        except errors.SchedulerError:
            return None

    limit_s = _FREE_LIMIT_S if with_job and scheduler.has_queue else _GONE_LIMIT_S
    interval_s = 0.02 if is_here else _LOOK_S
    return bool(poll(is_gone, interval_s=interval_s, limit_s=limit_s))


def exit_code_of_all(verdicts: Iterable[Verdict | None]) -> int:
    """Return 0 where all are done; 75 where the others were stopped and can go on; else 1, as for
    None, a run that never started."""
    codes = {errors.EXIT_FAILED if each is None else each.exit_code_of_run for each in verdicts}
    if codes <= {errors.EXIT_DONE, errors.EXIT_STOPPED}:
        return max(codes, default=errors.EXIT_DONE)
    return errors.EXIT_FAILED
