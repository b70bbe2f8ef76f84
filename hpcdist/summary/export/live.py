"""A run in a tracker while it runs: what is new in its files, now and then.

A tracker has one run of a run of ours, whatever attempts and lives that has. What was brought there
stands in `tracking/<tracker>.json`, by the time of the last point of each series, so that another
life goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from hpcdist.base import files
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State
from hpcdist.summary import summarize
from hpcdist.summary.export.series import Export, History, Point, make_export, read_history

_PAUSE_S = 2.0
_MOST_LOAD = 0.02
"""Share of one processor that reading may take: the ranks need it more."""
_RETRY_S = 5.0
_LONGEST_RETRY_S = 60.0


class NewPoint(NamedTuple):
    """A point that the tracker does not have yet."""

    name: str
    """Name of its series."""
    point: Point


class Tracker(Protocol):
    """One run in a tracker, which is there already where a life before this one began it."""

    def begin(self, export: Export) -> None:
        """Begin, or go on with, the run, and give its settings."""

    def add(self, points: list[NewPoint]) -> None:
        """Give points, in the order of their times."""

    def end(self, export: Export, *, is_over: bool) -> None:
        """Say how the run ended, or close what is open where another life is to follow."""


class _Reached(msgspec.Struct):
    """Content of the file."""

    last_s: dict[str, float] = {}
    """Unix time of the last point, by the name of its series."""


class Live:
    """Brings what is new of a run to its tracker; where that fails, later."""

    def __init__(self, run: Run, name: str, tracker: Tracker, log: Callable[[str], None]) -> None:
        self._run = run
        self._file = run.path / "tracking" / f"{name}.json"
        self._tracker = tracker
        self._log = log
        self._has_begun = False
        self._seen: list[tuple[str, int]] = []
        self._retry_s = _RETRY_S
        try:
            self._reached = files.convert(files.read_json(self._file), _Reached)
        except msgspec.ValidationError:
            self._reached = _Reached()

    def look(self) -> float:
        """Bring what is new; return the seconds until the next look."""
        begun_s = time.monotonic()
        if (sizes := self._sizes()) == self._seen:
            return _PAUSE_S
        try:
            if not self._has_begun and not self._begin("running"):
                return _PAUSE_S
            self._add(read_history(self._run.path))
        except Exception as error:  # noqa: BLE001 - whatever a tracker's package raises
            self._log(f"not tracked now, tried again later: {type(error).__name__}: {error}")
            self._retry_s = min(_LONGEST_RETRY_S, 2 * self._retry_s)
            return self._retry_s
        self._seen = sizes
        return max(_PAUSE_S, (time.monotonic() - begun_s) / _MOST_LOAD)

    def finish(self, state: State, *, is_over: bool) -> None:
        """Bring all that is left, and how the run ended; raises what the tracker's package does."""
        export = self._export(state)
        if export is None:
            return
        if not self._has_begun:
            self._tracker.begin(export)
        self._add(export.read_history() if is_over else read_history(self._run.path))
        self._tracker.end(export, is_over=is_over)

    def _begin(self, state: State) -> bool:
        export = self._export(state)
        if export is not None:
            self._tracker.begin(export)
            self._has_begun = True
        return self._has_begun

    def _export(self, state: State) -> Export | None:
        """Return the run with its figures up to now; None where it has nothing to show yet."""
        runs = summarize([self._run], {self._run.id: state}).runs
        return make_export(runs[0]) if runs else None

    def _add(self, history: History) -> None:
        last_s = self._reached.last_s
        new = [
            NewPoint(name, point)
            for name, points in history.items()
            for point in points
            if point.time_s > last_s.get(name, 0.0)
        ]
        if not new:
            return
        self._tracker.add(sorted(new, key=lambda each: (each.point.time_s, each.point.step)))
        for name, point in new:
            last_s[name] = max(point.time_s, last_s.get(name, 0.0))
        with suppress(OSError):  # a full disk: points come twice in the next life
            files.write_json(self._file, msgspec.to_builtins(self._reached))

    def _sizes(self) -> list[tuple[str, int]]:
        """Return the sizes of the files of the lowest rank and node: others write as often."""
        run = self._run
        first = [sorted(found, key=lambda each: (-each[1], each[0]))[:1] for found in _files(run)]
        found = []
        for _, _, path in (each for listed in first for each in listed):
            with suppress(OSError):
                found.append((path.name, path.stat().st_size))
        return found


def _files(run: Run) -> Iterable[list[tuple[int, int, Path]]]:
    return run.event_files(), run.usage_files()
