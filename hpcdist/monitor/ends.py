"""Watching runs for their ends: each scheduler is asked once for all that go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, SchedulerError
from hpcdist.base.polling import poll
from hpcdist.cluster.schedulers import LOCAL, SCHEDULERS
from hpcdist.monitor.states import OPEN_STATES, end_verdict, run_conditions
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers import load_scheduler, runs_here
from hpcdist.schedulers.base import Condition, Scheduler

_FIRST_INTERVAL_S = 1.0
_LOOK_S = 0.5
_GONE_LOOK_S = 0.02
_GONE_LIMIT_S = 5.0  # agents end within moments of their verdict
_FREE_LOOK_S = 0.5
_FREE_LIMIT_S = 60.0  # a script that copies and tidies up after its agents


class EndWatch:
    """Watches runs for their ends, without asking their schedulers too often."""

    def __init__(
        self,
        runs: Iterable[Run],
        *,
        interval_s: float = _FIRST_INTERVAL_S,
        conditions: Mapping[str, Condition] | None = None,
    ) -> None:
        """Watch `runs`; `conditions` is what schedulers said of all of them just now.

        Schedulers are asked after `interval_s` for the first time; the interval doubles up to
        the longest pause that their schedulers want.
        """
        self._open: dict[str, Run] = {}
        self._ended_before: set[str] = set()
        self._interval_s = interval_s
        self._next_s = time.monotonic() + interval_s
        self._longest_s = interval_s
        self.conditions: dict[str, Condition] = {}
        """Run id -> what is known of it."""
        self.unanswered: list[str] = []
        """Why schedulers did not answer the last question."""
        self.add(runs)
        if conditions is not None:
            self.conditions |= conditions
            self._ended_before = {name for name in self._open if _is_gone(conditions[name])}

    def add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._open[run.id] = run
            self.conditions[run.id] = Condition(state="pending")
            name = run.read_scheduler()
            scheduler = load_scheduler(name) if name in SCHEDULERS else Scheduler
            self._longest_s = max(self._longest_s, scheduler.longest_poll_s)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def look(self) -> dict[str, Verdict]:
        """Return the verdicts of the runs that have ended since the last look, by the run's id."""
        ended = self._close({name: run.read_verdict() for name, run in self._open.items()})
        if self._open and time.monotonic() >= self._next_s:
            ended |= self._ask()
        return ended

    def wait(
        self,
        *,
        check: Callable[[], None] = lambda: None,
        changed: Callable[[Counter[State]], None] = lambda _: None,
        interval_s: float = _LOOK_S,
        limit_s: float | None = None,
    ) -> dict[str, Verdict]:
        """Wait until all runs have ended; return the verdicts of those that have.

        `check` is called between looks and may raise, `changed` gets the number of runs by state
        whenever it is another. After `limit_s` seconds some runs may be missing.
        """
        verdicts: dict[str, Verdict] = {}
        before: Counter[State] = Counter()

        def look() -> bool | None:
            nonlocal before
            verdicts.update(self.look())
            counts = Counter(condition.state for condition in self.conditions.values())
            if counts != before:
                changed(counts)
                before = counts
            if not self._open:
                return True
            check()
            return None

        poll(look, interval_s=interval_s, limit_s=limit_s)
        return verdicts

    def _ask(self) -> dict[str, Verdict]:
        """A scheduler must say twice that a run ended: a verdict may be on its way through a shared
        file system."""
        self.unanswered = []
        answers = run_conditions(list(self._open.values()), warn=self.unanswered.append)
        self._next_s = time.monotonic() + self._interval_s
        self._interval_s = min(2 * self._interval_s, self._longest_s)
        if self.unanswered:
            return {}
        gone = {name for name, condition in answers.items() if _is_gone(condition)}
        self.conditions |= {name: answers[name] for name in answers if name not in gone}
        certain = {name: self._open[name] for name in sorted(gone & self._ended_before)}
        self._ended_before = gone
        return self._close(
            {
                name: run.read_verdict() or end_verdict(run, answers[name])
                for name, run in certain.items()
            }
        )

    def _close(self, verdicts: Mapping[str, Verdict | None]) -> dict[str, Verdict]:
        ended = {name: verdict for name, verdict in verdicts.items() if verdict is not None}
        for name, verdict in ended.items():
            del self._open[name]
            self.conditions[name] = Condition(state=verdict.state)
        return ended


def wait_until_gone(run: Run) -> None:
    """Wait for the last processes of a run that has a verdict, where they are on this machine."""
    name = run.read_scheduler() or LOCAL
    if not runs_here(name) and not (run.read_submission() or Submission()).step:
        return
    scheduler = load_scheduler(name)
    poll(
        lambda: _is_gone(scheduler.conditions([run])[run.id]) or None,
        interval_s=_GONE_LOOK_S,
        limit_s=_GONE_LIMIT_S,
    )


def wait_until_free(run: Run) -> bool:
    """Wait until nothing of a run that has a verdict is left, neither here nor in the queue of its
    scheduler; return whether that came about.

    The last of a job's script would find a run that was resumed meanwhile, which is not what it was
    submitted for, and say that the run has failed.
    """
    wait_until_gone(run)
    scheduler = load_scheduler(run.read_scheduler() or LOCAL)

    def is_free() -> bool | None:
        try:
            return _is_gone(scheduler.conditions([run])[run.id]) or None
        except SchedulerError:
            return None

    return not scheduler.has_queue or bool(
        poll(is_free, interval_s=_FREE_LOOK_S, limit_s=_FREE_LIMIT_S)
    )


def exit_code_of_all(verdicts: Iterable[Verdict | None]) -> int:
    """Return 0 where all are done; 75 where the others were stopped and can go on; else 1.

    None is a run that never started.
    """
    codes = {EXIT_FAILED if verdict is None else verdict.exit_code_of_run for verdict in verdicts}
    if codes <= {EXIT_DONE}:
        return EXIT_DONE
    return EXIT_STOPPED if codes <= {EXIT_DONE, EXIT_STOPPED} else EXIT_FAILED


def _is_gone(condition: Condition) -> bool:
    return condition.state not in OPEN_STATES
