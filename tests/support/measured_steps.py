"""Which steps of a history count, by docs/figures.md: those in the files, without the warm-up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from step_histories import Attempt, History, RankHistory, Step

Window = dict[int, Step]
"""The steps by their numbers."""


def time_s(steps: Window) -> float:
    return math.fsum(step.time_s for step in steps.values())


def written_windows(rank: RankHistory) -> list[Window]:
    return [window for index, window in enumerate(rank.windows) if index not in rank.lost]


def measured_windows(rank: RankHistory) -> list[Window]:
    """Without the warm-up."""
    windows = written_windows(rank)
    return windows[_warm_up([time_s(window) / len(window) for window in windows]) :]


def measured_steps(rank: RankHistory) -> list[Step]:
    return [step for window in measured_windows(rank) for step in window.values()]


def steps_by_rank(attempts: Sequence[Attempt]) -> dict[int, list[Step]]:
    """Those that count, of the ranks that have some."""
    found: dict[int, list[Step]] = {}
    for attempt in attempts:
        for rank in attempt.ranks:
            if steps := measured_steps(rank):
                found.setdefault(rank.rank, []).extend(steps)
    return dict(sorted(found.items()))


def warm_up_steps(history: History) -> int:
    """Of the lowest rank of which there are steps."""
    lowest, measured = next(iter(steps_by_rank(history.attempts).items()))
    own = [rank for attempt in history.attempts for rank in attempt.ranks if rank.rank == lowest]
    return sum(len(window) for rank in own for window in written_windows(rank)) - len(measured)


def whole_attempts(history: History) -> list[Attempt]:
    """Those in which every rank has steps that count."""
    return [one for one in history.attempts if len(steps_by_rank([one])) == history.world_size]


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


def student(confidence: float, freedom: float) -> float:
    """Student's t that a value stays below, in amount."""
    from scipy.special import stdtrit  # takes a second, and most test processes need it not

    return float(stdtrit(freedom, (1 + confidence) / 2))
