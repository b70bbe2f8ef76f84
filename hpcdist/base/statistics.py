"""Means with their spread and their interval, and the one rule for whether two of them differ.

Two means differ where the 95 % interval of their ratio leaves out 1. The relative variances of the
two add up (first-order propagation, on the logarithm),

    interval = S * exp(± t * sqrt(e1^2 + e0^2)),    e = sd / (mean * sqrt(n)),

with Welch's and Satterthwaite's degrees of freedom for t. Fieller's interval (E. C. Fieller, J. R.
Stat. Soc. Suppl. 7, 1940) is exact for normal values, but has no bounds where the denominator's own
interval reaches 0, which with two runs takes a spread of 11 % (t is 12.7). On logarithms there
always are bounds, above 0, and those of the inverse ratio are their inverses; for spreads of some
percent, as repeats have, both say the same.

Student's t is computed here, as importing scipy would take longer than the whole summary, from the
regularized incomplete beta function by its continued fraction (Abramowitz and Stegun, 26.5.8), and
its quantiles by bisection; nine digits are right up to 10,000 degrees of freedom. The standard
library's `statistics` adds up fractions, which takes ten times as long.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

CONFIDENCE = 0.95
"""Confidence of every interval that a summary gives."""

Over = Literal["runs", "windows"]
"""The values that a spread is over: repeats, or what one run measured several times. The second
does not contain how runs differ from each other, so it is the weaker statement."""

_LARGEST_EXPONENT = 300.0
"""exp of more is no number; an interval this wide says that nothing is known."""
_LARGEST_VARIATION = 1e60
"""Its fourth power is a number, too; only damaged files have as much."""
_TINY = 1e-300
_PRECISION = 1e-14
_MAX_TERMS = 100_000


class Interval(Struct, frozen=True, kw_only=True):
    """The 95 % confidence interval of a mean, or of a ratio of two."""

    low: float
    high: float


class Measure(Struct, frozen=True, kw_only=True):
    """The mean of a quantity, and how sure it is."""

    mean: float
    sd: float | None = None
    """Standard deviation of single values; None where there are fewer than two."""
    count: int | None = None
    """Number of values that the sd is over."""
    interval: Interval | None = None
    """Interval of the mean; None where no spread is known."""
    over: Over | None = None
    """The values that the sd and the interval are over."""

    @property
    def sd_over_runs(self) -> float | None:
        """The standard deviation, where it contains how runs differ from each other."""
        return self.sd if self.over == "runs" else None

    def times(self, factor: float) -> Measure:
        """Return the same in another unit."""
        ends = self.interval
        return Measure(
            mean=factor * self.mean,
            sd=None if self.sd is None else factor * self.sd,
            count=self.count,
            interval=ends and Interval(low=factor * ends.low, high=factor * ends.high),
            over=self.over,
        )


class Ratio(Measure, frozen=True, kw_only=True):
    """One mean as a multiple of another."""

    p: float | None = None
    """Probability of a ratio at least as far from 1, where the two do not differ."""


def measure(values: Sequence[float], *, over: Over = "runs") -> Measure:
    """Summarize one value or more, each of which counts alike."""
    return spread_measure(mean(values), standard_deviation(values), len(values), over=over)


def spread_measure(mean: float, sd: float | None, count: int | None, *, over: Over) -> Measure:
    """Return the measure of `count` values with this mean and sd; without an sd, the mean alone."""
    if sd is None or count is None or count < 2:
        return Measure(mean=mean)
    half = quantile(CONFIDENCE, count - 1) * sd / math.sqrt(count)
    interval = Interval(low=mean - half, high=mean + half)
    return Measure(mean=mean, sd=sd, count=count, interval=interval, over=over)


def ratio(measure: Measure, baseline: Measure) -> Ratio:
    """Divide two measures, whose means are above 0.

    A single run is taken to spread as the repeats of the other side do. Where no spread is known,
    there is no interval.
    """
    times = measure.mean / baseline.mean
    known = _error_of_ratio(measure, baseline)
    if known is None:
        return Ratio(mean=times)
    half, p = 0.0, float(times == 1)  # where nothing spreads, any difference is certain
    if known.error:
        half = min(_LARGEST_EXPONENT, quantile(CONFIDENCE, known.freedom) * known.error)
        p = two_sided((math.log(times) if times else -math.inf) / known.error, known.freedom)
    return Ratio(
        mean=times,
        sd=times * known.variation,
        interval=Interval(low=times * math.exp(-half), high=times * math.exp(half)),
        over=known.over,
        p=p,
    )


def differs(ratio: Ratio) -> bool | None:
    """Return whether the two sides of a ratio differ; None where no spread is known.

    Each ratio is judged by itself. A correction for several comparisons at once (Holm's) belongs
    here: it takes the `p` of all of them.
    """
    return None if ratio.p is None else ratio.p < 1 - CONFIDENCE


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample (n - 1); None of fewer than two values."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def weighted_standard_deviation(weighted: Sequence[tuple[float, float]]) -> float | None:
    """Return the standard deviation of (value, weight) pairs; with equal weights that of a sample
    (n - 1), and None of fewer than two."""
    if len(weighted) < 2:
        return None
    total = sum(weight for _, weight in weighted)
    middle = sum(value * weight for value, weight in weighted) / total
    squares = sum(weight * (value - middle) ** 2 for value, weight in weighted) / total
    return math.sqrt(squares * len(weighted) / (len(weighted) - 1))


def lower_median(values: Iterable[float]) -> float:
    """Return the median; of an even number of values the lower of the middle two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


@functools.cache  # the same few numbers of runs and windows come again and again
def quantile(confidence: float, freedom: float) -> float:
    """Return the t that Student's distribution stays below, in amount, with this probability."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(60):  # more than a number has bits
        middle = (low + high) / 2
        if two_sided(middle, freedom) > 1 - confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def two_sided(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's distribution is farther from 0 than `t`."""
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


class _LogError(NamedTuple):
    """The error of the logarithm of a ratio."""

    error: float
    """Standard error."""
    freedom: float
    variation: float
    """Relative sd of the ratio of two single values."""
    over: Over


def _error_of_ratio(measure: Measure, baseline: Measure) -> _LogError | None:
    """None where no spread is known, or that of one side's windows alone."""
    sides = (measure, baseline)
    over: Over = "runs" if any(side.over == "runs" for side in sides) else "windows"
    variations, counts = [], []
    for side in sides:
        if side.over == over:
            assert side.sd is not None
            assert side.count is not None
            variations.append(min(_LARGEST_VARIATION, side.sd / side.mean))
            counts.append(side.count)
    if len(counts) == 1 and over == "runs":
        (variation,), (count,) = variations, counts
        error = variation * math.sqrt(1 / count + 1)
        return _LogError(error, count - 1, math.hypot(variation, variation), over)
    if len(counts) < 2:
        return None
    squares = [variation**2 / count for variation, count in zip(variations, counts, strict=True)]
    # Degrees of freedom of a sum of squared errors, by Welch and Satterthwaite.
    parts = [square**2 / (count - 1) for square, count in zip(squares, counts, strict=True)]
    freedom = sum(squares) ** 2 / sum(parts) if sum(parts) else math.inf
    return _LogError(math.sqrt(sum(squares)), freedom, math.hypot(*variations), over)


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
    """Return the continued fraction, by Lentz's method."""
    c = 1.0
    d = 1 / _not_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, _MAX_TERMS):
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
