"""Student's t distribution: how sure a mean over few values is, and whether two means differ; and
Fisher's F, whether two variances do.

Computed here, as importing scipy would take longer than the whole summary. The distribution comes
from the regularized incomplete beta function by its continued fraction (Abramowitz and Stegun,
26.5.8), quantiles by bisection; nine digits are right up to 10,000 degrees of freedom.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import fmean, stdev

from msgspec import Struct

CONFIDENCE = 0.95
"""Of every interval that a summary gives."""

_TINY = 1e-300
_PRECISION = 1e-14
_MOST_TERMS = 100_000


class Interval(Struct, frozen=True, kw_only=True):
    """The 95 % confidence interval of a mean."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        """Whether some value is in both."""
        return self.low <= other.high and other.low <= self.high


class Sample(Struct, frozen=True, kw_only=True):
    """What was measured of one quantity: `count` values with this mean and standard deviation."""

    mean: float
    sd: float
    count: float

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.count)


class Difference(Struct, frozen=True, kw_only=True):
    """The second of two means less the first."""

    mean: float
    interval: Interval
    p: float
    """How likely a difference so large, either way, is where there is none."""


def interval_of(values: Sequence[float]) -> Interval | None:
    """The interval of the mean of independent values; None with fewer than two."""
    if len(values) < 2:
        return None
    half = quantile(CONFIDENCE, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    mean = fmean(values)
    return Interval(low=mean - half, high=mean + half)


def welch(first: Sample, second: Sample) -> Difference:
    """Compare two means of samples whose spreads may differ (Welch 1947); each has two values or
    more."""
    squares = (first.error**2, second.error**2)
    if sum(squares) == 0:
        return _difference(first, second, error=0.0, freedom=math.inf)
    parts = ((squares[0], first.count), (squares[1], second.count))
    freedom = sum(squares) ** 2 / sum(square**2 / (count - 1) for square, count in parts)
    return _difference(first, second, error=math.sqrt(sum(squares)), freedom=freedom)


def as_spread(first: Sample, second: Sample, *, spread: Sample) -> Difference:
    """Compare two means of which one is a single value: it is taken to spread as the other does,
    which is `spread`."""
    error = spread.sd * math.sqrt(1 / first.count + 1 / second.count)
    return _difference(first, second, error=error, freedom=spread.count - 1)


def quantile(confidence: float, freedom: float) -> float:
    """The t that a value stays below, in amount, with the probability `confidence`."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if two_sided(middle, freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def f_quantile(confidence: float, freedom: float, other: float) -> float:
    """The ratio of two variances, of `freedom` and `other` degrees of freedom, that is not exceeded
    with the probability `confidence`, where both are of one kind."""
    low, high = 0.0, 1.0
    while _f_below(high, freedom, other) < confidence:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if _f_below(middle, freedom, other) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _f_below(ratio: float, freedom: float, other: float) -> float:
    share = freedom * ratio / (freedom * ratio + other)
    return _incomplete_beta(share, freedom / 2, other / 2)


def two_sided(t: float, freedom: float) -> float:
    """The probability that a value is farther from 0 than `t`."""
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _difference(first: Sample, second: Sample, *, error: float, freedom: float) -> Difference:
    mean = second.mean - first.mean
    half = quantile(CONFIDENCE, freedom) * error
    # Where nothing spreads, any difference is certain.
    p = two_sided(mean / error, freedom) if error else float(mean == 0)
    return Difference(mean=mean, interval=Interval(low=mean - half, high=mean + half), p=p)


@functools.lru_cache
def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other tail converges faster
        return 1 - _incomplete_beta(1 - x, b, a)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction, by Lentz's method."""
    c = 1.0
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            result *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return result


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
