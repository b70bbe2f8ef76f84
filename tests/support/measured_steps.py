"""Which steps of a history count, by docs/figures.md: those in the files, without the warm-up."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from step_histories import Attempt, History, RankHistory, Step


class Numbered(NamedTuple):
    """A window that is in the file, with the numbers of its steps from 1 on."""

    steps: dict[int, Step]

    @property
    def mean_time_s(self) -> float:
        return self.time_s / len(self.steps)

    @property
    def time_s(self) -> float:
        return math.fsum(step.time_s for step in self.steps.values())


def written_windows(attempt: Attempt, rank: RankHistory) -> list[Numbered]:
    numbered = iter(enumerate(rank.steps, attempt.first_step + 1))
    windows = [Numbered(dict(itertools.islice(numbered, length))) for length in rank.windows]
    lost = rank.lost | ({len(windows) - 1} if rank.tears_last_window else set())
    return [window for index, window in enumerate(windows) if index not in lost]


def measured_windows(attempt: Attempt, rank: RankHistory) -> list[Numbered]:
    """Without the warm-up."""
    windows = written_windows(attempt, rank)
    return windows[_warm_up([window.mean_time_s for window in windows]) :]


def measured_steps(attempt: Attempt, rank: RankHistory) -> list[Step]:
    return [step for window in measured_windows(attempt, rank) for step in window.steps.values()]


def warm_up_steps(history: History) -> int:
    """Of the lowest rank of which there are steps."""
    lowest = min(
        rank.rank
        for attempt in history.attempts
        for rank in attempt.ranks
        if written_windows(attempt, rank)
    )
    return sum(
        len(window.steps)
        for attempt in history.attempts
        for rank in attempt.ranks
        if rank.rank == lowest
        for window in written_windows(attempt, rank)
    ) - sum(
        len(measured_steps(attempt, rank))
        for attempt in history.attempts
        for rank in attempt.ranks
        if rank.rank == lowest
    )


def whole_attempts(history: History) -> list[Attempt]:
    """Those in which every rank has steps that count."""
    return [
        attempt
        for attempt in history.attempts
        if sum(bool(measured_steps(attempt, rank)) for rank in attempt.ranks) == history.world_size
    ]


def _warm_up(times_s: Sequence[float]) -> int:
    """How many windows."""
    if len(times_s) < 2:
        return 0
    lengths = [n for n in range(1, len(times_s) // 2 + 1) if len(times_s) - n >= 3]
    if not lengths:
        return 1
    length = min(lengths, key=lambda n: statistics.pvariance(times_s[n:]) / len(times_s[n:]))
    return length if length > 1 and _is_slower(times_s[1:length], times_s[length:]) else 1


def _is_slower(early_s: Sequence[float], rest_s: Sequence[float]) -> bool:
    """Student's t of two samples, with the spread of the rest."""
    difference_s = statistics.mean(early_s) - statistics.mean(rest_s)
    error_s = statistics.stdev(rest_s) * math.sqrt(1 / len(early_s) + 1 / len(rest_s))
    return difference_s > student(0.99, len(rest_s) - 1) * error_s


@functools.cache
def student(confidence: float, freedom: float) -> float:
    """Student's t that a value stays below, in amount: its density summed up (Simpson's rule), over
    the angle whose tangent is t / sqrt(freedom)."""
    gammas = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    number = 100

    def inside(angle: float) -> float:
        ys = [math.cos(angle * index / number) ** (freedom - 1) for index in range(number + 1)]
        simpson = ys[0] + ys[-1] + 4 * sum(ys[1::2]) + 2 * sum(ys[2:-1:2])
        return 2 * gammas / math.sqrt(math.pi) * simpson * angle / number / 3

    low, high = 0.0, math.pi / 2
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)
