"""All runs that are watched: what is known of each now, and how those that have ended did."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcdist.monitor.ends import EndsWatch
from hpcdist.monitor.follow.beginning import waiting_sentence
from hpcdist.monitor.states import OPEN_STATES, run_conditions
from hpcdist.monitor.watch.running import RanksSeen, RunningRun
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import Condition

_INTERVAL_S = 5.0
_RECENT_S = 20.0
_SHOWN_ENDED = 5
"""Runs that had ended before, where none is named."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as it is shown."""

    run: str
    state: State
    ranks: RanksSeen | None = None
    details: list[str] = []
    """Why it waits, what troubles it, or why it ended."""


class Board:
    """Looks at runs again and again; each look reads only what is new.

    Schedulers are asked once for all runs, at first after 5 s, later every 15 s.
    """

    def __init__(self, runs: Sequence[Run], *, folder: Path | None = None) -> None:
        """With a folder, whose runs are given, only those that go on and the last of the others
        are watched, and those that appear there later."""
        self.verdicts: dict[str, Verdict] = {}
        """On the runs that have ended."""
        self._folder = folder
        self._seen = _names(folder)
        unanswered: list[str] = []
        known = run_conditions(runs, warn=unanswered.append)
        if folder is not None:
            runs = _of_interest(runs, known)
        self._runs = {run.id: run for run in runs}
        self._ends = EndsWatch(runs, interval_s=_INTERVAL_S, known=known)
        self._ends.unanswered = unanswered
        self._running: dict[str, RunningRun] = {}
        self._last_seen: dict[str, RanksSeen] = {}

    @property
    def is_over(self) -> bool:
        """Whether all runs have ended, and no other can appear."""
        return self._folder is None and not self._ends.is_open

    @property
    def unanswered(self) -> list[str]:
        """Why schedulers do not answer."""
        return self._ends.unanswered

    def look(self) -> list[RunView]:
        """Every run as it is now, in the order in which they were given."""
        for run in self._new_runs():
            self._runs[run.id] = run
            self._ends.add([run])
        self.verdicts |= self._ends.look()
        return [self._view(run) for run in self._runs.values()]

    def _new_runs(self) -> Iterator[Run]:
        if self._folder is None:
            return
        for name in sorted(_names(self._folder) - self._seen):
            run = Run(self._folder / name)
            # A run's folder is there before the run is submitted.
            if run.submission_file.exists():
                self._seen.add(name)
                yield run

    def _view(self, run: Run) -> RunView:
        verdict = self.verdicts.get(run.id)
        if verdict is not None:
            self._running.pop(run.id, None)
            ranks = self._last_seen.get(run.id)
            return RunView(run=run.id, state=verdict.state, ranks=ranks, details=_why(verdict))
        if run.id not in self._running:
            self._running[run.id] = RunningRun(run)
        ranks = self._running[run.id].look()
        if ranks is not None:
            self._last_seen[run.id] = ranks
        return open_view(run, self._ends.conditions[run.id], ranks)


def open_view(run: Run, condition: Condition, ranks: RanksSeen | None) -> RunView:
    """A run without a verdict."""
    state = condition.state
    if state == "pending" and ranks is not None and ranks.num_alive and ranks.quiet_s < _RECENT_S:
        condition = Condition(state="running")  # it began after the scheduler was asked
    waiting = waiting_sentence(condition) if state == "pending" else condition.reason
    troubles = ranks.troubles if ranks is not None and condition.state == "running" else []
    details = [waiting] if waiting else []
    return RunView(run=run.id, state=condition.state, ranks=ranks, details=[*details, *troubles])


def _of_interest(runs: Sequence[Run], known: Mapping[str, Condition]) -> list[Run]:
    ended = [run.id for run in runs if known[run.id].state not in OPEN_STATES]
    forgotten = set(ended[:-_SHOWN_ENDED])
    return [run for run in runs if run.id not in forgotten]


def _why(verdict: Verdict) -> list[str]:
    return [] if verdict.state == "done" else [verdict.message]


def _names(folder: Path | None) -> set[str]:
    try:
        return set() if folder is None else set(os.listdir(folder))
    except OSError:  # not there yet
        return set()
