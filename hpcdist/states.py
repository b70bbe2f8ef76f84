"""What state runs are in, and when they have ended: the verdict, else what the scheduler says."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from hpcdist.errors import EXIT_FAILED, EXIT_INTERRUPTED, SchedulerError
from hpcdist.run import Run
from hpcdist.schedulers import load_scheduler
from hpcdist.submitted import scheduler_of
from hpcdist.verdict import State, Verdict

OPEN_STATES: tuple[State, ...] = ("pending", "running")
"""States of a run that has not ended."""

_STATE_INTERVAL_S = {"local": 1.0}  # asking this machine is cheap
_STATE_INTERVAL_ELSEWHERE_S = 15.0  # sites frown upon more questions than that
_POLL_S = 0.02
_GONE_LIMIT_S = 5.0  # agents end within moments of their verdict
_LOST_MESSAGE = "the run ended without a verdict: its agents were killed or lost their machine"


def run_states(
    runs: Sequence[Run], *, warn: Callable[[str], None] | None = None
) -> dict[str, State]:
    """State of each run by its id; each scheduler is asked once, and only for runs without verdict.

    A run that cannot be read is lost. Where a scheduler does not answer its runs count as lost too,
    and `warn` is told why.
    """
    states: dict[str, State] = {}
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        verdict = run.read_verdict()
        if verdict is not None:
            states[run.id] = verdict.state
        elif (scheduler := scheduler_of(run)) is not None:
            by_scheduler[scheduler].append(run)
        else:
            states[run.id] = "lost"
    for scheduler, theirs in by_scheduler.items():
        states |= _ask(scheduler, theirs, warn)
    return states


def end_state(state: State) -> Verdict:
    """The verdict on a run that left none: all that is known is the scheduler's word."""
    if state == "cancelled":
        return Verdict(
            kind="cancelled",
            state=state,
            message="the scheduler says it was cancelled",
            exit_code_of_run=EXIT_INTERRUPTED,
        )
    return Verdict(
        kind="agent_lost",
        state="lost" if state in (*OPEN_STATES, "done") else state,
        message=_LOST_MESSAGE,
        exit_code_of_run=EXIT_FAILED,
    )


class EndWatch:
    """Watches one run for its end, without asking its scheduler too often."""

    def __init__(self, run: Run) -> None:
        self._run = run
        scheduler = scheduler_of(run) or ""
        self._interval_s = _STATE_INTERVAL_S.get(scheduler, _STATE_INTERVAL_ELSEWHERE_S)
        self._next_s = time.monotonic() + self._interval_s
        self._ended_before = False

    def poll(self) -> Verdict | None:
        """The verdict once the run has ended; where it left none, one that says so.

        The scheduler must say twice that the run ended: a verdict may be on its way through a
        shared file system.
        """
        verdict = self._run.read_verdict()
        if verdict is not None or time.monotonic() < self._next_s:
            return verdict
        self._next_s = time.monotonic() + self._interval_s
        state = run_states([self._run])[self._run.id]
        if state in OPEN_STATES:
            self._ended_before = False
            return None
        if self._ended_before:
            return self._run.read_verdict() or end_state(state)
        self._ended_before = True
        return None


def wait_until_gone(run: Run) -> None:
    """Wait for the last processes of a run that has a verdict, where they are on this machine."""
    if scheduler_of(run) != "local":
        return
    scheduler = load_scheduler("local")
    deadline_s = time.monotonic() + _GONE_LIMIT_S
    while time.monotonic() < deadline_s:
        if scheduler.states([run])[run.id] not in OPEN_STATES:
            return
        time.sleep(_POLL_S)


def _ask(
    scheduler: str, runs: Sequence[Run], warn: Callable[[str], None] | None
) -> dict[str, State]:
    try:
        answers = load_scheduler(scheduler).states(runs)
    except SchedulerError as error:
        if warn is not None:
            warn(f"the states of {len(runs)} runs are not known: {error.message}")
        answers = {}
    return {run.id: _settled(run, answers.get(run.id, "lost")) for run in runs}


def _settled(run: Run, state: State) -> State:
    """A verdict that was written while the scheduler was asked has the last word."""
    if state in OPEN_STATES:
        return state
    verdict = run.read_verdict()
    return state if verdict is None else verdict.state
