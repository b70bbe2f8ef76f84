"""Means with their spread and their interval, and the one rule for whether two of them differ.

Two means differ where the interval of their ratio leaves out 1. The relative variances of the two
add up (first-order propagation, on the logarithm),

    interval = S * exp(± t * sqrt(e1^2 + e0^2)),    e = sd / (mean * sqrt(n)),

with Welch's and Satterthwaite's degrees of freedom for t. Variants of one job, three or more, are
taken to spread alike: e is then no smaller than the mean variance of all says (`_pool`).
Fieller's interval (E. C. Fieller, J. R. Stat. Soc. Suppl. 7, 1940) is exact for normal values, but
has no bounds where the denominator's own interval reaches 0, which with two runs takes a spread of
11 % (t is 12.7). On logarithms there always are bounds, above 0, and those of the inverse ratio are
their inverses; for spreads of some percent, as repeats have, both say the same.

Several comparisons that one question needs are judged together (`ratios`), so that in 95 of 100
such families none is said to differ that does not: S. Holm, "A simple sequentially rejective
multiple test procedure", Scand. J. Stat. 6, 1979. The interval of each ratio has the confidence
that it was judged with: it leaves out 1 exactly where the two differ.

Student's t is computed here, as importing scipy would take longer than the whole summary, and the
standard library's `statistics` adds up fractions, which takes ten times as long.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

CONFIDENCE = 0.95
"""Confidence of every interval that a summary gives."""

Over = Literal["runs", "windows"]
"""The values that a spread is over: repeats, or blocks of what one run measured several times. The
second does not contain how runs differ from each other, so it is the weaker statement."""

MOST_BLOCKS = 20
"""Neighbouring windows of a run resemble each other, means over long blocks of them hardly do;
10 to 30 blocks are enough (B. Schmeiser, "Batch size effects in the analysis of simulation output",
Operations Research 30, 1982)."""

_LEAST_ROW = 8
"""Fewer values in a row do not tell how much neighbours resemble each other."""

LARGEST_EXPONENT = 300.0
"""exp of more is no number; an interval this wide says that nothing is known."""
_NEARLY_ALL = 0.95
"""Where one side has this much of all variance, it is of another kind than the others."""
_LARGEST_VARIATION = 1e60
"""Its fourth power is a number, too; only damaged files have as much."""
_TINY = 1e-300


class Interval(Struct, frozen=True, kw_only=True):
    """The confidence interval of a mean, of 95 %, or of a ratio of two, of 95 % or more."""

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
    """Probability of a ratio at least as far from 1, where the two do not differ; of several that
    are judged together, adjusted by Holm's procedure."""


def measure(values: Sequence[float], *, over: Over = "runs") -> Measure:
    """Summarize one value or more, each of which counts alike."""
    sd = weighted_standard_deviation([(value, 1.0) for value in values])
    return spread_measure(mean(values), sd, len(values), over=over)


def spread_measure(
    mean: float, sd: float | None, count: int | None, *, over: Over, independent: int | None = None
) -> Measure:
    """Return the measure of `count` values with this mean and sd; without an sd, the mean alone.
    The values count as no more than `independent` ones; of fewer than two, no interval is known."""
    if sd is None or count is None or count < 2:
        return Measure(mean=mean)
    number = count if independent is None else independent
    if number < 2:
        return Measure(mean=mean, sd=sd, count=count)
    half = quantile(CONFIDENCE, number - 1) * sd / math.sqrt(number)
    interval = Interval(low=mean - half, high=mean + half)
    return Measure(mean=mean, sd=sd, count=count, interval=interval, over=over)


def ratios(pairs: Sequence[tuple[Measure, Measure]], *, pooled: bool = False) -> list[Ratio]:
    """Divide the first measure of each pair by the second; means are above 0. All of them are
    judged as one family; `pooled`: repeats on all sides are of one kind, and spread alike.

    A single run is taken to spread as the repeats of the other side do. Where no spread is known,
    there is no interval.
    """
    found = [Ratio(mean=measure.mean / baseline.mean) for measure, baseline in pairs]
    errors = {}
    for index, pair in enumerate(pairs):
        if (error := _error_of_ratio(*pair)) is not None:
            errors[index] = error
    if pooled:
        errors = _pool(pairs, errors)
    values = []
    for index, known in errors.items():
        distance = abs(math.log(found[index].mean)) if found[index].mean else math.inf
        # Where nothing spreads, any difference is certain.
        is_equal = float(distance == 0)
        p = two_sided(distance / known.error, known.freedom) if known.error else is_equal
        values.append(p)
    for (index, known), (p, confidence) in zip(errors.items(), holm(values), strict=True):
        times = found[index].mean
        half = min(LARGEST_EXPONENT, quantile(confidence, known.freedom) * known.error)
        found[index] = Ratio(
            mean=times,
            sd=times * known.variation,
            interval=Interval(low=times * math.exp(-half), high=times * math.exp(half)),
            over=known.over,
            p=p,
        )
    return found


def differs(ratio: Ratio) -> bool | None:
    """Return whether the two sides of a ratio differ; None where no spread is known."""
    return None if ratio.p is None else ratio.p < 1 - CONFIDENCE


def holm(values: Sequence[float]) -> list[tuple[float, float]]:
    """Judge the p values of one family of comparisons, in their order.

    Returns for each the adjusted p, below 5 % where the two differ, and the confidence of the
    interval that leaves out "no difference" exactly there.
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    judged: dict[int, tuple[float, float]] = {}
    adjusted, confidence = 0.0, CONFIDENCE
    for place, index in enumerate(order):
        left = len(values) - place
        if adjusted < 1 - CONFIDENCE:  # else this one has the limit at which the procedure ended
            confidence = 1 - (1 - CONFIDENCE) / left
        adjusted = max(adjusted, min(1.0, left * values[index]))
        judged[index] = adjusted, confidence
    return [judged[index] for index in range(len(values))]


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def weighted_standard_deviation(weighted: Sequence[tuple[float, float]]) -> float | None:
    """Return the standard deviation of (value, weight) pairs; with equal weights that of a sample
    (n - 1), and None of fewer than two."""
    if len(weighted) < 2:
        return None
    total = math.fsum(weight for _, weight in weighted)
    middle = math.fsum(value * weight for value, weight in weighted) / total
    squares = math.fsum(weight * (value - middle) ** 2 for value, weight in weighted) / total
    return math.sqrt(squares * len(weighted) / (len(weighted) - 1))


def in_blocks(weighted: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join (value, weight) pairs in a row to at most 20 blocks: their means and weights."""
    num = min(len(weighted), MOST_BLOCKS)
    blocks = []
    for index in range(num):
        block = weighted[index * len(weighted) // num : (index + 1) * len(weighted) // num]
        weight = math.fsum(weight for _, weight in block)
        blocks.append((math.fsum(value * weight for value, weight in block) / weight, weight))
    return blocks


def count_independent(values: Sequence[float]) -> int:
    """Return as how many independent values those in a row count for their mean, by how much each
    resembles the next one: n (1 - r) / (1 + r), where r is the correlation of neighbours, without
    the bias that it has over few values (F. H. C. Marriott, J. A. Pope, Biometrika 41, 1954)."""
    num = len(values)
    if num < _LEAST_ROW:
        return num
    middle = mean(values)
    squares = math.fsum((value - middle) ** 2 for value in values)
    if not squares:
        return num
    pairs = itertools.pairwise(values)
    found = math.fsum((one - middle) * (other - middle) for one, other in pairs) / squares
    correlation = min(1.0, max(0.0, (num * found + 1) / (num - 4)))
    return int(num * (1 - correlation) / (1 + correlation))


def ratios_of_all(measures: Sequence[Measure]) -> dict[tuple[int, int], Ratio]:
    """Return the ratio of every measure to every other, by their places; every two of them are one
    comparison of a family, and their repeats are taken to spread alike."""
    pairs = list(itertools.combinations(range(len(measures)), 2))
    found: dict[tuple[int, int], Ratio] = {}
    for places in (pairs, [(other, one) for one, other in pairs]):
        sides = [(measures[one], measures[other]) for one, other in places]
        judged = ratios(sides, pooled=True)
        found |= dict(zip(places, judged, strict=True))
    return found


@functools.cache  # the same few numbers of runs and windows come again and again
def quantile(confidence: float, freedom: float) -> float:
    """Return the t that Student's distribution stays below, in amount, with this probability."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - confidence:
        low, high = high, 2 * high
    for _ in range(60):  # more than a number has bits
        middle = (low + high) / 2
        is_below = two_sided(middle, freedom) > 1 - confidence
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2


@functools.lru_cache
def two_sided(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's distribution is farther from 0 than `t`.

    It is the regularized incomplete beta function of x = freedom / (freedom + t²), a = freedom / 2
    and b = 1/2, by its continued fraction (DLMF 8.17.22), evaluated from behind.
    """
    if math.isinf(freedom) or t == 0:
        return math.erfc(abs(t) / math.sqrt(2))
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    is_mirrored = x > (a + 1) / (a + b + 2)  # the fraction of the other tail converges faster
    if is_mirrored:
        a, b, x = b, a, t * t / (freedom + t * t)
    fraction = 1.0
    for m in range(20 + int(2 * math.sqrt(a + b)), 0, -1):  # nine digits, and more
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        fraction = 1 + odd / (1 + even / fraction)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    logarithm += a * math.log(x or _TINY) + b * math.log1p(-x)
    tail = math.exp(logarithm) / (a * fraction)
    return 1 - tail if is_mirrored else tail


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
    variations, counts, squares = [], [], []
    for side in sides:
        if side.over == over:
            assert side.sd is not None
            assert side.count is not None
            variations.append(min(_LARGEST_VARIATION, side.sd / side.mean))
            counts.append(side.count)
            squares.append(variations[-1] ** 2 / side.count)
            if over == "windows" and side.interval is not None:  # may be wider: they resemble
                half = (side.interval.high - side.interval.low) / 2 / side.mean
                error = half / quantile(CONFIDENCE, side.count - 1)
                squares[-1] = min(_LARGEST_VARIATION, error) ** 2
    if len(counts) == 1 and over == "runs":
        (variation,), (count,) = variations, counts
        error = variation * math.sqrt(1 / count + 1)
        return _LogError(error, count - 1, math.hypot(variation, variation), over)
    if len(counts) < 2:
        return None
    # Degrees of freedom of a sum of squared errors, by Welch and Satterthwaite.
    parts = [square**2 / (count - 1) for square, count in zip(squares, counts, strict=True)]
    freedom = sum(squares) ** 2 / sum(parts) if sum(parts) else math.inf
    return _LogError(math.sqrt(sum(squares)), freedom, math.hypot(*variations), over)


def _pool(
    pairs: Sequence[tuple[Measure, Measure]], errors: dict[int, _LogError]
) -> dict[int, _LogError]:
    """Return errors that are no smaller than the mean variance of three sides or more says, and
    have the degrees of freedom of all: two or three repeats alone tell little of their spread."""
    sides = {id(side): side for pair in pairs for side in pair if side.over == "runs"}
    known = [(side.count or 2) - 1 for side in sides.values()]
    squares = [
        min(_LARGEST_VARIATION, (side.sd or 0.0) / side.mean) ** 2 for side in sides.values()
    ]
    total = math.fsum(squares)
    if len(squares) < 3 or not total or max(squares) > _NEARLY_ALL * total:
        return errors
    parts = [number * square for number, square in zip(known, squares, strict=True)]
    variance = math.fsum(parts) / sum(known)
    # By Satterthwaite, with d / (d + 2) for the bias that the square of a variance has.
    spread = math.fsum(part**2 / (number + 2) for part, number in zip(parts, known, strict=True))
    freedom = min(float(sum(known)), math.fsum(parts) ** 2 / spread)
    pooled = dict(errors)
    for index, own in errors.items():
        if own.over == "runs":
            counts = (side.count or 1 for side in pairs[index])
            error = math.sqrt(variance * sum(1 / count for count in counts))
            pooled[index] = own._replace(error=max(own.error, error), freedom=freedom)
    return pooled
