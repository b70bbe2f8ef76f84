"""When a run came to an accuracy on the test data: pure.

Times are those of the lowest rank, from its first step on. Its attempts are put behind each other
by its clock, and none begins before the last one ended: after a restart the rank may be on another
host, whose clock is behind. What was done again after a restart counts as it was done again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hpcdist.summary.values import RunSummary, TimeToAccuracy

if TYPE_CHECKING:
    from hpcdist.summary.figures.metrics import MeasuredRun, RankFigures

_STEPS_OF_TARGET = 1_000
"""A target that nobody gave is rounded down to a tenth of a percent."""


class Tested(NamedTuple):
    """An evaluation on the test data."""

    time_s: float
    step: int | None
    epoch: int | None
    accuracy: float


def list_bests(attempts: Mapping[int, Sequence[RankFigures]]) -> list[Tested]:
    """Each test of a run that was better than all before it, its time from the first step on."""
    bests: list[Tested] = []
    for test in _in_order(_of_lowest_rank(attempts)):
        if not bests or test.accuracy > bests[-1].accuracy:
            bests.append(test)
    return bests


def with_times_to_accuracy(
    runs: Sequence[RunSummary], measured: Sequence[MeasuredRun], *, target: float | None
) -> list[RunSummary]:
    """The runs, which are those measured, with when each reached the target; without one, the most
    that all done runs of its job, or of its comparison, came to."""
    targets = _targets(measured) if target is None else {}
    found = []
    for run, one in zip(runs, measured, strict=True):
        own = target if target is not None else targets.get(_part(one))
        reached = reach(one.bests, own) if own is not None else None
        found.append(msgspec.structs.replace(run, time_to_accuracy=reached))
    return found


def reach(bests: Sequence[Tested], target: float) -> TimeToAccuracy | None:
    """When the target was reached first; None where nothing was tested."""
    if not bests:
        return None
    best = bests[-1].accuracy
    found = next((test for test in bests if test.accuracy >= target), None)
    if found is None:
        return TimeToAccuracy(target=target, is_reached=False, best=best)
    return TimeToAccuracy(
        target=target,
        is_reached=True,
        best=best,
        time_s=found.time_s,
        step=found.step,
        epoch=found.epoch,
    )


def _targets(measured: Iterable[MeasuredRun]) -> dict[str, float]:
    bests: dict[str, list[float]] = {}
    for run in measured:
        if run.bests and run.summary.state == "done":
            bests.setdefault(_part(run), []).append(run.bests[-1].accuracy)
    return {part: _rounded(min(found)) for part, found in bests.items()}


def _part(run: MeasuredRun) -> str:
    return run.comparison or run.summary.job


def _rounded(accuracy: float) -> float:
    """Down, so that all still reach it."""
    rounded = math.floor(accuracy * _STEPS_OF_TARGET) / _STEPS_OF_TARGET
    return rounded if rounded > 0 else accuracy


def offsets_s(attempts: Iterable[tuple[float, float]]) -> list[float]:
    """When each attempt began, after the first one's beginning, from when each began and ended by
    the clock of its host."""
    found: list[float] = []
    zero_s: float | None = None
    ended_s = 0.0
    for begin_s, end_s in attempts:
        zero_s = begin_s if zero_s is None else zero_s
        found.append(max(begin_s - zero_s, ended_s))
        ended_s = found[-1] + max(0.0, end_s - begin_s)
    return found


def _of_lowest_rank(attempts: Mapping[int, Sequence[RankFigures]]) -> list[RankFigures]:
    """The attempts in which it stepped."""
    tested = [figures.rank for ranks in attempts.values() for figures in ranks if figures.tests]
    lowest = min(tested, default=-1)
    of_rank = [
        figures for ranks in attempts.values() for figures in ranks if figures.rank == lowest
    ]
    stepped = [figures for figures in of_rank if figures.stepping_s is not None]
    return sorted(stepped, key=lambda figures: figures.attempt)


def _in_order(attempts: Sequence[RankFigures]) -> list[Tested]:
    spans = [(one.stepping_s or 0.0, one.ended_s or one.stepping_s or 0.0) for one in attempts]
    tests: list[Tested] = []
    for figures, offset_s in zip(attempts, offsets_s(spans), strict=True):
        first_step = figures.first_step or 0
        while tests and (tests[-1].step or 0) > first_step:  # lost, and done again
            tests.pop()
        begin_s = figures.stepping_s or 0.0
        tests += [
            test._replace(time_s=offset_s + max(0.0, test.time_s - begin_s))
            for test in figures.tests
        ]
    return tests
