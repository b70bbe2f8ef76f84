"""When runs reached an accuracy or a loss."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpcdist.job.goal import Goal, parse_goal
from hpcdist.summary.values import TimeToAccuracy

if TYPE_CHECKING:
    from hpcdist.summary.figures.run import MeasuredRun

_STEPS_OF_TARGET = 1_000
"""A target that nobody gave is rounded down to a tenth of a percent."""


class Wanted(NamedTuple):
    """The goal whose time is shown for a run."""

    goal: Goal
    is_asked: bool
    """By the user, or by the job."""


def wanted_goals(measured: Sequence[MeasuredRun], *, goal: Goal | None) -> list[Wanted | None]:
    """Return the goal of each run: the one given, or that of its job, or else the largest accuracy
    that all done runs of its job, or of its comparison, came to."""
    if goal is not None:
        return [Wanted(goal, is_asked=True)] * len(measured)
    wanted = {name: Wanted(own, is_asked=False) for name, own in _common_goals(measured).items()}
    for name, own in _goals_of_jobs(measured).items():
        wanted[name] = Wanted(own, is_asked=True)
    return [wanted.get(_compared_as(run)) for run in measured]


def _common_goals(measured: Sequence[MeasuredRun]) -> dict[str, Goal]:
    bests: dict[str, list[float]] = defaultdict(list)
    for run in measured:
        if run.bests["accuracy"] and run.figures.state == "done":
            bests[_compared_as(run)].append(run.bests["accuracy"][-1].value)
    goals = {}
    for name, accuracies in bests.items():
        least = min(accuracies)
        common = math.floor(least * _STEPS_OF_TARGET) / _STEPS_OF_TARGET  # that all still reach
        goals[name] = Goal("accuracy", common if common > 0 else least)
    return goals


def _goals_of_jobs(measured: Sequence[MeasuredRun]) -> dict[str, Goal]:
    """Return the `record.goal` of the runs of each job, or comparison, that agree on one."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in measured:
        if isinstance(text := run.conditions.get("record.goal"), str):
            found[_compared_as(run)].add(text)
    goals = {}
    for name, texts in found.items():
        with suppress(ValueError):  # of a newer version
            if len(texts) == 1:
                goals[name] = parse_goal(*texts)
    return goals


def time_to_goal(run: MeasuredRun, wanted: Wanted | None) -> TimeToAccuracy | None:
    """Return when the goal was reached first; None where nothing was tested."""
    if wanted is None or not (bests := run.bests[wanted.goal.quantity]):
        return None
    goal, is_asked = wanted
    first = next((best for best in bests if goal.is_reached(best.value)), None)
    each = run.figures.samples_per_step
    return TimeToAccuracy(
        goal=goal.quantity,
        target=goal.value,
        is_asked=is_asked,
        is_reached=first is not None,
        best=bests[-1].value,
        time_s=first.time_s if first else None,
        step=first.step if first else None,
        epoch=first.epoch if first else None,
        samples=first.step * each if first and first.step is not None and each else None,
    )


def _compared_as(run: MeasuredRun) -> str:
    return run.figures.comparison or run.figures.job
