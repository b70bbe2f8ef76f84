"""How many passes over how many batches fit into the time that there is; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_PASSES = 2
"""Of one turn, where so many are wanted: one has no spread."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Passes, and the batches of each."""

    passes: int
    batches: int


def turns(repeats: int) -> list[int]:
    """Passes in each turn: all ways of loading take one turn after the other, then once more in the
    opposite order, so that what drifts with the time falls on all alike."""
    first = math.ceil(repeats / 2)
    return [first, repeats - first] if repeats > 1 else [repeats]


def first_batches(wanted: int, *, distinct: int, batch_time_s: float, time_s: float) -> int:
    """Batches of a first pass: none twice, and no more than fit into the time."""
    fitting = int(time_s / batch_time_s) if batch_time_s > 0 else wanted
    return max(1, min(wanted, distinct, fitting))


def fit(wanted: Effort, *, batch_time_s: float, time_s: float) -> Effort:
    """What is measured in about so many seconds: fewer passes at first, then shorter ones."""
    if batch_time_s <= 0:
        return wanted
    least = min(wanted.passes, LEAST_PASSES)
    affordable = int(time_s / (batch_time_s * wanted.batches))
    passes = min(wanted.passes, max(least, affordable))
    batches = int(time_s / (batch_time_s * passes)) if passes else wanted.batches
    return Effort(passes=passes, batches=max(1, min(wanted.batches, batches)))
