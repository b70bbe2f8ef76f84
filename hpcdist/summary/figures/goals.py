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
    """Return the goal of each run: the one given, or the `record.goal` that the runs of its job, or
    of its comparison, agree on, or else the largest accuracy that all of these that are done came
    to."""
    if goal is not None:
        return [Wanted(goal, is_asked=True)] * len(measured)
    names = [run.figures.comparison or run.figures.job for run in measured]
    bests: dict[str, list[float]] = defaultdict(list)
    texts: dict[str, set[str]] = defaultdict(set)
    for name, run in zip(names, measured, strict=True):
        if run.bests["accuracy"] and run.figures.state == "done":
            bests[name].append(run.bests["accuracy"][-1].value)
        if isinstance(text := run.conditions.get("record.goal"), str):
            texts[name].add(text)
    wanted = {}
    for name, accuracies in bests.items():
        least = min(accuracies)
        common = math.floor(least * _STEPS_OF_TARGET) / _STEPS_OF_TARGET  # that all still reach
        own = Goal("accuracy", common if common > 0 else least)
        wanted[name] = Wanted(own, is_asked=False)
    for name, of_jobs in texts.items():
        with suppress(ValueError):  # of a newer version
            if len(of_jobs) == 1:
                wanted[name] = Wanted(parse_goal(*of_jobs), is_asked=True)
    return [wanted.get(name) for name in names]


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
