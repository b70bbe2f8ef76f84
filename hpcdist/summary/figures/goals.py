"""When runs reached an accuracy or a loss, by their lowest rank, with restarts resolved as in
`read.timeline`."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hpcdist.job.goal import Goal, Quantity, parse_goal
from hpcdist.summary.figures.attempts import Attempts
from hpcdist.summary.figures.rank import Tested
from hpcdist.summary.read.timeline import Attempt, last_counting_steps, offsets_s
from hpcdist.summary.values import TimeToAccuracy

if TYPE_CHECKING:
    from hpcdist.summary.figures.run import MeasuredRun

_AVERAGED = 0.1
"""Share of the steps so far over which a loss of training is averaged: a single window of steps may
have a low one by chance."""

_STEPS_OF_TARGET = 1_000
"""A target that nobody gave is rounded down to a tenth of a percent."""


def list_bests(attempts: Attempts, quantity: Quantity) -> list[Tested]:
    """Return each result of a run that was better than all before it, its time from the first step
    on; by the lowest rank that has any, in the attempts in which it stepped."""
    tested = [
        figures.rank
        for ranks in attempts.values()
        for figures in ranks
        if any(getattr(test, quantity) is not None for test in figures.tests)
    ]
    lowest = min(tested, default=None)
    stepped = [
        (figures.stepping_s, figures)
        for _, ranks in sorted(attempts.items())
        for figures in ranks
        if figures.rank == lowest and figures.stepping_s is not None
    ]
    offsets = offsets_s((begin_s, figures.ended_s or begin_s) for begin_s, figures in stepped)
    last_steps = last_counting_steps([figures.first_step or 0 for _, figures in stepped])
    bests: list[Tested] = []
    for (begin_s, figures), offset_s, last_step in zip(stepped, offsets, last_steps, strict=True):
        for test in figures.tests:
            value = getattr(test, quantity)
            if value is None or (test.step or 0) > last_step:
                continue
            if not bests or _is_better(value, getattr(bests[-1], quantity), quantity):
                time_s = offset_s + max(0.0, test.time_s - begin_s)
                bests.append(test._replace(time_s=time_s))
    return bests


def _is_better(value: float, other: float, quantity: Quantity) -> bool:
    return value > other if quantity == "accuracy" else value < other


def list_train_losses(attempts: Iterable[Attempt]) -> list[Tested]:
    """Return each loss of training that was lower than all before it, as `list_bests` does."""
    bests: list[Tested] = []
    last: deque[tuple[int, float]] = deque()
    num_steps = 0
    for attempt in attempts:
        for window, end_s in attempt.windows():
            if window.mean_loss is None or not window.steps:
                continue
            last.append((window.steps, window.mean_loss))
            num_steps += window.steps
            while num_steps - last[0][0] >= _AVERAGED * window.step:
                num_steps -= last.popleft()[0]
            loss = sum(steps * loss for steps, loss in last) / num_steps
            if not bests or loss < (bests[-1].train_loss or math.inf):
                time_s = max(0.0, attempt.after_start_s(end_s))
                bests.append(Tested(time_s, window.step, window.epoch, train_loss=loss))
    return bests


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
            bests[_compared_as(run)].append(run.bests["accuracy"][-1].accuracy or 0.0)
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


def time_to_goal(
    run: MeasuredRun, wanted: Wanted | None, train_losses: Sequence[Tested]
) -> TimeToAccuracy | None:
    """Return when the goal was reached first; None where nothing was tested. `train_losses` are
    those of the run where the goal is one."""
    if wanted is None:
        return None
    goal, is_asked = wanted
    bests = train_losses if goal.quantity == "train_loss" else run.bests[goal.quantity]
    if not bests:
        return None
    first = next((test for test in bests if goal.is_reached(getattr(test, goal.quantity))), None)
    each = run.figures.samples_per_step
    return TimeToAccuracy(
        goal=goal.quantity,
        target=goal.value,
        is_asked=is_asked,
        is_reached=first is not None,
        best=getattr(bests[-1], goal.quantity),
        time_s=first.time_s if first else None,
        step=first.step if first else None,
        epoch=first.epoch if first else None,
        samples=first.step * each if first and first.step is not None and each else None,
    )


def _compared_as(run: MeasuredRun) -> str:
    return run.figures.comparison or run.figures.job
