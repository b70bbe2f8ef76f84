"""A run over time: its attempts behind each other, and what of them counts after restarts.

What a restart did again counts as the newest attempt did it: of an attempt, what lies beyond the
step at which a later one began is left out. Times are those of the lowest rank; attempts are put
behind each other by its clock, and none begins before the last one ended, as after a restart the
rank may be on another host, whose clock is behind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.runs.events import Evaluation, Window
from hpcdist.runs.run import Run
from hpcdist.summary.read.collect import read_rank
from hpcdist.summary.read.records import RankRecord


class Attempt(NamedTuple):
    """One attempt, by its lowest rank."""

    record: RankRecord
    ends_s: list[float]
    """Unix time at which each window ended; where clocks say nothing, or went back, by what the
    windows took."""
    offset_s: float
    """When its first step began, after that of the first attempt."""
    last_step: float
    """The last that counts; infinite where nothing was done again."""

    @property
    def first_step(self) -> int | None:
        """Finished steps when it began to step; None where it never did."""
        return _first_step(self.record.windows)

    @property
    def begin_s(self) -> float:
        """Unix time at which its first step began, of which it has one."""
        return _begin_s(self.record.windows, self.ends_s)

    @property
    def length_s(self) -> float:
        """From its first step to its last."""
        return self.ends_s[-1] - self.begin_s

    def after_start_s(self, time_s: float) -> float:
        """Return how long after the run's first step it was at a Unix time of this attempt."""
        return time_s - self.begin_s + self.offset_s

    def windows(self) -> Iterator[tuple[Window, float]]:
        """Yield the windows that count, each with the Unix time of its end."""
        for window, end_s in zip(self.record.windows, self.ends_s, strict=True):
            if window.step <= self.last_step:
                yield window, end_s

    def evaluations(self) -> Iterator[tuple[int, float, Evaluation]]:
        """Yield the evaluations that count, each behind its step and Unix time."""
        for evaluation in self.record.evaluations:
            step, time_s = evaluation.step, evaluation.time_s
            if step is not None and time_s is not None and step <= self.last_step:
                yield step, time_s, evaluation


def read_timeline(path: Path) -> list[Attempt]:
    """Read the lowest rank of every attempt, in their order, also of those without a step."""
    files = sorted(Run(path).event_files(), key=lambda file: (file[1], file[0]))
    lowest = [next(own) for _, own in itertools.groupby(files, key=lambda file: file[1])]
    records = [read_rank(file, rank=rank, attempt=number) for rank, number, file in lowest]
    ends = [window_ends_s(record.windows) for record in records]
    spans = []  # when each began to step and when it ended, as far as that is known
    for record, own in zip(records, ends, strict=True):
        if own:
            ended_s = [end.time_s for end in record.ends if end.time_s is not None]
            spans.append((_begin_s(record.windows, own), max([own[-1], *ended_s])))
    offsets = iter(offsets_s(spans))
    last_steps = last_counting_steps([_first_step(record.windows) for record in records])
    return [
        Attempt(
            record=record,
            ends_s=own_ends,
            offset_s=next(offsets) if own_ends else 0.0,
            last_step=last_step,
        )
        for record, own_ends, last_step in zip(records, ends, last_steps, strict=True)
    ]


def last_counting_steps(first_steps: Sequence[int | None]) -> list[float]:
    """Return, for each attempt, the last step that counts, from the step at which each began; None
    is one that never stepped."""
    limits: list[float] = []
    least = math.inf
    for first_step in reversed(first_steps):
        limits.append(least)
        if first_step is not None:
            least = min(least, first_step)
    return limits[::-1]


def offsets_s(attempts: Iterable[tuple[float, float]]) -> list[float]:
    """Return when each attempt began, after the first one's beginning, from when each began and
    ended by the clock of its host."""
    offsets: list[float] = []
    zero_s: float | None = None
    ended_s = 0.0
    for begin_s, end_s in attempts:
        zero_s = begin_s if zero_s is None else zero_s
        offsets.append(max(begin_s - zero_s, ended_s))
        ended_s = offsets[-1] + max(0.0, end_s - begin_s)
    return offsets


def window_ends_s(windows: Sequence[Window]) -> list[float]:
    """Return the Unix time at which each window ended; where clocks say nothing, or went back, by
    what the windows took."""
    ends: list[float] = []
    for window in windows:
        least_s = (ends[-1] if ends else 0.0) + window.wall_s
        ends.append(max(least_s, (window.time_s or 0.0) - window.after_s))
    return ends


def _first_step(windows: Sequence[Window]) -> int | None:
    return windows[0].step - windows[0].steps if windows else None


def _begin_s(windows: Sequence[Window], ends_s: Sequence[float]) -> float:
    return ends_s[0] - windows[0].wall_s - windows[0].pause_s
