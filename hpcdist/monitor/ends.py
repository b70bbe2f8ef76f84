"""Watching many runs for their ends: the scheduler is asked once for all that go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from hpcdist.monitor.states import OPEN_STATES, end_verdict, run_conditions
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import Condition

_FIRST_INTERVAL_S = 1.0
_LONGEST_INTERVAL_S = 15.0  # sites frown upon more questions than that
_LOOK_S = 0.5


class EndsWatch:
    """Watches runs, without asking their scheduler too often."""

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        interval_s: float = _FIRST_INTERVAL_S,
        known: Mapping[str, Condition] | None = None,
    ) -> None:
        """`interval_s` is the time between the first two questions; it doubles up to 15 s. `known`
        is the answer to the first, where that was asked just now."""
        self._open: dict[str, Run] = {}
        self._ended_before: set[str] = set()
        self._interval_s = interval_s
        self._next_s = 0.0 if known is None else time.monotonic() + interval_s
        self.conditions: dict[str, Condition] = {}
        """What is known of each run."""
        self.unanswered: list[str] = []
        """Why schedulers did not answer the last question."""
        self.add(runs)
        if known is not None:
            self.conditions |= known
            self._ended_before = {run.id for run in runs if _is_gone(known[run.id])}

    def add(self, runs: Iterable[Run]) -> None:
        """Watch these runs too."""
        for run in runs:
            self._open[run.id] = run
            self.conditions[run.id] = Condition(state="pending")

    @property
    def is_open(self) -> bool:
        """Whether some of the runs have not ended."""
        return bool(self._open)

    def wait(
        self, *, check: Callable[[], None], changed: Callable[[Counter[State]], None]
    ) -> dict[str, Verdict]:
        """Wait until all have ended; their verdicts by the run's id.

        `changed` gets the number of runs by state whenever it is another, `check` may raise.
        """
        verdicts: dict[str, Verdict] = {}
        before: Counter[State] = Counter()
        while self._open:
            check()
            verdicts |= self.look()
            counts = Counter(one.state for one in self.conditions.values())
            if counts != before:
                changed(counts)
                before = counts
            if self._open:
                time.sleep(_LOOK_S)
        return verdicts

    def look(self) -> dict[str, Verdict]:
        """Verdicts of the runs that have ended since the last look."""
        found = self._written()
        if self._open and time.monotonic() >= self._next_s:
            found |= self._ask()
        return found

    def _written(self) -> dict[str, Verdict]:
        read = {name: run.read_verdict() for name, run in self._open.items()}
        return self._close({name: verdict for name, verdict in read.items() if verdict is not None})

    def _ask(self) -> dict[str, Verdict]:
        """A scheduler must say twice that a run ended: a verdict may be on its way."""
        self.unanswered = []
        answers = run_conditions(list(self._open.values()), warn=self.unanswered.append)
        self._next_s = time.monotonic() + self._interval_s
        self._interval_s = min(2 * self._interval_s, _LONGEST_INTERVAL_S)
        if self.unanswered:
            return {}
        gone = {name for name, one in answers.items() if _is_gone(one)}
        self.conditions |= {name: one for name, one in answers.items() if name not in gone}
        certain = gone & self._ended_before
        self._ended_before = gone
        return self._close(
            {name: end_verdict(self._open[name], answers[name]) for name in sorted(certain)}
        )

    def _close(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        for name, verdict in verdicts.items():
            del self._open[name]
            self.conditions[name] = Condition(state=verdict.state)
        return dict(verdicts)


def _is_gone(condition: Condition) -> bool:
    return condition.state not in OPEN_STATES


def exit_code_of_all(verdicts: Iterable[Verdict | None]) -> int:
    """0 where all are done; 75 where the others were stopped and can go on; else 1.

    None is a run that never started.
    """
    codes = {EXIT_FAILED if one is None else one.exit_code_of_run for one in verdicts}
    others = codes - {EXIT_DONE}
    if not others:
        return EXIT_DONE
    return EXIT_STOPPED if others == {EXIT_STOPPED} else EXIT_FAILED
