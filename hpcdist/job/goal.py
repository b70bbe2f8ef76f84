"""Goals of a training: an accuracy or a loss, to which the summary gives time and samples."""

from __future__ import annotations

import math
from typing import Literal, get_args

from msgspec import Struct

Quantity = Literal["accuracy", "loss", "train_loss"]
"""Figures that a goal may name: two of the test data, and the loss of training."""


class Goal(Struct, frozen=True):
    """The accuracy or the loss that a run is to reach."""

    quantity: Quantity
    value: float

    def is_reached(self, value: float) -> bool:
        return value >= self.value if self.quantity == "accuracy" else value <= self.value


def parse_goal(text: str) -> Goal:
    """Return the goal that `accuracy=97%`, `loss=0.5` or `train_loss=0.5` names; an accuracy may be
    0.97 and 97 too. Raises ValueError with what a goal must be."""
    key, _, value = text.partition("=")
    quantity = next((known for known in get_args(Quantity) if known == key.strip()), None)
    value = value.strip()
    try:
        number = float(value.removesuffix("%") if quantity == "accuracy" else value)
    except ValueError:
        number = math.nan
    if quantity == "accuracy" and (value.endswith("%") or number > 1):
        number /= 100
    is_possible = 0 < number <= 1 if quantity == "accuracy" else math.isfinite(number)
    if quantity is None or not is_possible:
        raise ValueError("must be accuracy=SHARE (such as 97%), loss=NUMBER or train_loss=NUMBER")
    return Goal(quantity, number)
