"""Learning of a run: its curves over steps and over time, reduced to what a picture can show, and
when it reached a goal. Times are those of `timeline`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec

from hpcdist.base.statistics import mean
from hpcdist.job.goal import Goal, Quantity
from hpcdist.runs.events import Evaluation
from hpcdist.summary.figures.timeline import Attempt, offsets_s
from hpcdist.summary.values import TimeToAccuracy

MOST_POINTS = 200
"""Points of a curve; where there are more, neighbours are joined."""
_LARGEST = 1e100
"""Largest value that an axis can show."""
_AVERAGED = 0.1
"""Share of the steps so far over which a loss of training is averaged: a single window of steps may
have a low one by chance."""


class Learned(NamedTuple):
    """The values of a window of steps, or of a test: how good a run was at one moment."""

    time_s: float
    """From its first step on, evaluations, pauses and time lost by restarts included."""
    step: int | None
    epoch: int | None
    steps: int = 0
    train_loss: float | None = None
    loss: float | None = None
    accuracy: float | None = None


class Best(NamedTuple):
    """A value that was better than all before it."""

    time_s: float
    step: int | None
    epoch: int | None
    value: float


Bests: TypeAlias = dict[Quantity, list[Best]]
"""Each result that was better than all before it, from the first step on."""


def list_learned(attempts: Sequence[Attempt]) -> list[Learned]:
    """Return what the run learned in the steps that count, by the lowest rank, and by the lowest
    that tested."""
    learned: list[Learned] = []
    offsets, least_step = offsets_s(attempts), math.inf
    for attempt in reversed([own for own in attempts if own.number in offsets]):
        offset_s, tests = offsets[attempt.number], list[Learned]()
        for rank in attempt.ranks:
            begin_s = rank.stepping_s
            if begin_s is not None and not tests:
                tests = [
                    Learned(
                        offset_s + max(0.0, test.time_s - begin_s),
                        test.step,
                        test.epoch,
                        loss=test.loss,
                        accuracy=test.accuracy,
                    )
                    for test in rank.events.all(Evaluation)
                    if test.time_s is not None
                ]
        zero_s = attempt.stepping_s or 0.0
        windows = [
            Learned(
                max(0.0, (own.time_s or 0.0) - own.after_s - zero_s + offset_s),
                own.step,
                own.epoch,
                own.steps,
                own.mean_loss,
            )
            for own in attempt.ranks[0].progress
        ]
        counting = [own for own in (*windows, *tests) if (own.step or 0) <= least_step]
        learned = counting + learned
        least_step = min(least_step, attempt.first_step or 0)
    return learned


def list_bests(learned: Sequence[Learned], quantity: Quantity) -> list[Best]:
    """Return each value that was better than all before it; losses of training are averaged over
    the last tenth of the steps so far."""
    bests: list[Best] = []
    last: deque[tuple[int, float]] = deque()
    num_steps = 0
    for own in learned:
        value = getattr(own, quantity)
        if value is None or (quantity == "train_loss" and not own.steps):
            continue
        if quantity == "train_loss":
            last.append((own.steps, value))
            num_steps += own.steps
            while num_steps - last[0][0] >= _AVERAGED * (own.step or 0):
                num_steps -= last.popleft()[0]
            value = sum(steps * loss for steps, loss in last) / num_steps
        sign = 1 if quantity == "accuracy" else -1
        if not bests or sign * value > sign * bests[-1].value:
            bests.append(Best(own.time_s, own.step, own.epoch, value))
    return bests


def time_to_goal(raw: bytes, goal: Goal | None, *, each: float | None) -> TimeToAccuracy | None:
    """Return when the goal was reached first, by encoded `Bests`, with `each` samples per step;
    None without a goal, and where nothing was tested."""
    if goal is None or not (bests := msgspec.msgpack.decode(raw, type=Bests)[goal.quantity]):
        return None
    first = next((best for best in bests if goal.is_reached(best.value)), None)
    return TimeToAccuracy(
        goal=goal.quantity,
        target=goal.value,
        is_reached=first is not None,
        best=bests[-1].value,
        time_s=first.time_s if first else None,
        step=first.step if first else None,
        epoch=first.epoch if first else None,
        samples=first.step * each if first and first.step is not None and each else None,
    )


class Curve(NamedTuple):
    """One figure against steps and against time; the three are of one length."""

    steps: list[float]
    times_s: list[float]
    values: list[float]


class Learning(NamedTuple):
    """Losses and accuracy of a run, from its lowest rank."""

    train_loss: Curve
    test_loss: Curve
    accuracy: Curve


def decode_learning(raw: bytes) -> Learning:
    return msgspec.msgpack.decode(raw, type=Learning)


def learning_of(learned: Sequence[Learned]) -> Learning:
    """Return the curves of what a run learned: means of neighbours, where they end."""
    curves = []
    for value in map(attrgetter, ("train_loss", "loss", "accuracy")):
        points = [
            (float(own.step), own.time_s, value(own))  # damaged files have any number
            for own in learned
            if own.step is not None and abs(value(own) or 0.0) < _LARGEST  # which NaN is not
            if value(own) is not None
        ]
        size = max(1, -(-len(points) // MOST_POINTS))
        parts = [points[first : first + size] for first in range(0, len(points), size)]
        points = [(*part[-1][:2], mean(value for *_, value in part)) for part in parts]
        curves.append(Curve(*map(list, zip(*points, strict=True))) if points else Curve([], [], []))
    return Learning(*curves)
