"""Curves of a run's learning over its steps and over time, reduced to what a picture can show.

Times are those of `timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from hpcdist.base.statistics import mean
from hpcdist.summary.figures.timeline import Learned

MOST_POINTS = 200
"""Points of a curve; where there are more, neighbours are joined."""
_LARGEST = 1e100
"""Largest value that an axis can show."""


class Curve(NamedTuple):
    """One figure against steps and against time; the three are of one length."""

    steps: list[float]
    times_s: list[float]
    values: list[float]


class Learning(NamedTuple):
    """Losses, accuracy and learning rate of a run, from its lowest rank."""

    train_loss: Curve
    test_loss: Curve
    accuracy: Curve
    learning_rate: Curve

    @property
    def has_varied_rate(self) -> bool:
        """The learning rate did not stay the same throughout."""
        return len(set(self.learning_rate.values)) > 1


def decode_learning(raw: bytes | msgspec.Raw) -> Learning:
    return msgspec.msgpack.decode(raw, type=Learning)


def learning_of(learned: Sequence[Learned]) -> Learning:
    """Return the curves of what a run learned: means of neighbours, where they end."""
    curves = []
    for value in map(attrgetter, ("train_loss", "loss", "accuracy", "learning_rate")):
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
