"""A figure with how sure it is, and ratios of two of them, whose means were measured apart.

The relative variances of the two means add up: first-order propagation, on the logarithm,

    interval = S * exp(± t * sqrt(e1^2 + e0^2)),    e = sd / (mean * sqrt(n)),

with Welch's and Satterthwaite's degrees of freedom for t. Fieller's interval (E. C. Fieller, J. R.
Stat. Soc. Suppl. 7, 1940) is exact for normal values, but has no bounds where the denominator's own
interval reaches 0, which with two runs takes a spread of 11 % (t is 12.7). On logarithms there
always are bounds, above 0, and those of the inverse ratio are their inverses; for spreads of some
percent, as repeats have, both say the same.
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from hpcdist.base.student import CONFIDENCE, Interval, Sample, quantile

Over = Literal["runs", "windows"]
"""What a spread is that of: repeats, or the windows of steps within one run, which do not tell how
runs differ from one to the next."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A figure, and how sure it is."""

    mean: float
    sd: float | None = None
    interval: Interval | None = None
    """Of the mean, with 95 % confidence; None where no spread is known."""
    over: Over | None = None
    """What the sd and the interval are over."""

    def times(self, factor: float) -> Estimate:
        """The same in another unit."""
        known = self.interval
        return Estimate(
            mean=factor * self.mean,
            sd=None if self.sd is None else factor * self.sd,
            interval=known and Interval(low=factor * known.low, high=factor * known.high),
            over=self.over,
        )


class Measured(Sample, frozen=True, kw_only=True):
    """The mean of some values above 0, and their spread."""

    over: Over | None
    """None for a single value."""

    @property
    def variation(self) -> float:
        """The sd as a share of the mean."""
        return self.sd / self.mean


def estimate(measured: Measured) -> Estimate:
    """The mean with Student's interval."""
    if measured.over is None:
        return Estimate(mean=measured.mean)
    half = quantile(CONFIDENCE, measured.count - 1) * measured.error
    interval = Interval(low=measured.mean - half, high=measured.mean + half)
    return Estimate(mean=measured.mean, sd=measured.sd, interval=interval, over=measured.over)


def ratio(measured: Measured, baseline: Measured) -> Estimate:
    """How many times the baseline. A single run is taken to spread as the repeats of the other side
    do; without any spread there is no interval."""
    times = measured.mean / baseline.mean
    pair = _with_spreads(measured, baseline)
    if pair is None:
        return Estimate(mean=times)
    squares = [(one.variation**2 / one.count, _freedom(one)) for one in pair]
    if measured.over != baseline.over:  # one spread, known from one side
        repeated = measured if measured.over == "runs" else baseline
        squares = [(sum(square for square, _ in squares), repeated.count - 1)]
    half = _half_width(squares)
    return Estimate(
        mean=times,
        sd=times * math.hypot(pair[0].variation, pair[1].variation),
        interval=Interval(low=times * math.exp(-half), high=times * math.exp(half)),
        over=pair[0].over,
    )


def differ(one: Estimate, other: Estimate) -> bool | None:
    """Whether the intervals of two means do not overlap; None where one is not known."""
    if one.interval is None or other.interval is None:
        return None
    return not one.interval.overlaps(other.interval)


def _with_spreads(one: Measured, other: Measured) -> tuple[Measured, Measured] | None:
    """The two as they count: both over runs, or both over windows."""
    if one.over == other.over:
        return None if one.over is None else (one, other)
    if one.over == "runs":
        return one, _single(other, like=one)
    if other.over == "runs":
        return _single(one, like=other), other
    return None


def _single(value: Measured, *, like: Measured) -> Measured:
    return Measured(mean=value.mean, sd=value.mean * like.variation, count=1, over=like.over)


def _freedom(measured: Measured) -> float:
    return measured.count - 1


def _half_width(squares: list[tuple[float, float]]) -> float:
    """Of the logarithm's interval, from squared errors and their degrees of freedom."""
    whole = sum(square for square, _ in squares)
    if not whole:
        return 0.0
    freedom = whole**2 / sum(square**2 / freedom for square, freedom in squares if square)
    return min(_MOST, quantile(CONFIDENCE, freedom) * math.sqrt(whole))


_MOST = 300.0
"""exp of more is no number; of this it is beyond any doubt that nothing is known."""
