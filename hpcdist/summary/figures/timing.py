"""From windows of steps to rates and step times: warm-up, throughput, percentiles.

Only lengths of time on one rank's own clock are used, and ranks are lined up by their step count,
never by the time of day: clocks of nodes may differ by minutes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, zip_longest
from operator import sub

from msgspec import Struct

from hpcdist.base.statistics import (
    Measure,
    count_independent,
    in_blocks,
    quantile,
    spread_measure,
    weighted_standard_deviation,
)
from hpcdist.runs.events import HISTOGRAM_RATIO, Window
from hpcdist.summary.values import StepTime

OTHER = "other"
"""The phase that is left of a step's time when all others are taken away."""


class Spans(Struct, frozen=True):
    """Stretches of one rank's steps, in order: what throughput is computed from. By columns, as
    thousands of ranks have millions of them."""

    first_steps: array[int]
    last_steps: array[int]
    wall_s: array[float]
    samples: array[int]
    stepped_s: array[float]
    """Sum of the step times."""
    waited_s: array[float]
    """Seconds of these for other ranks."""
    saved_s: array[float]
    """Seconds of these for checkpoints."""

    def __len__(self) -> int:
        return len(self.last_steps)

    def lengths(self) -> list[int]:
        """Return the steps of each span."""
        return list(map(sub, self.last_steps, self.first_steps))

    def own_s(self) -> list[float]:
        """Return the time that each took without the wait for others and without checkpoints."""
        return list(map(sub, map(sub, self.stepped_s, self.waited_s), self.saved_s))

    def is_in_step_with(self, other: Spans) -> bool:
        """Return whether each span is of the same steps."""
        return self.last_steps == other.last_steps and self.first_steps == other.first_steps


_BLOCK = 16
"""Rows of counts that begin in one block of so many buckets are added up together."""


class StepTotals:
    """Step times of any number of windows, summed up: column by column, as it takes much of the
    time of a summary."""

    def __init__(self, windows: Sequence[Window] = ()) -> None:
        times = [window.step_time_s for window in windows]
        phases_s = [window.phases_s for window in windows]
        self.steps = sum([window.steps for window in windows])
        self.sum_s = sum([own.sum for own in times], 0.0)
        self.sumsq_s2 = sum([own.sumsq for own in times], 0.0)
        self.min_s = min([own.min for own in times], default=math.inf)
        self.max_s = max([own.max for own in times], default=0.0)
        self.phases_s = {
            phase: sum([own.get(phase, 0.0) for own in phases_s])
            for phase in dict.fromkeys(chain.from_iterable(phases_s))
        }
        self.histogram: dict[int, int] = {}
        rows: dict[int, list[list[int]]] = defaultdict(list)
        for window in windows:
            for first, row in window.histogram.items():
                place = first % _BLOCK
                rows[first - place].append([0] * place + row)
        before = self.histogram.get
        for first, alike in rows.items():
            for bucket, count in enumerate(map(sum, zip_longest(*alike, fillvalue=0)), first):
                if count:
                    self.histogram[bucket] = before(bucket, 0) + count


def merged(parts: Iterable[StepTotals]) -> StepTotals:
    """Return the totals of several, which stay as they are."""
    first, *others = parts = list(parts) or [StepTotals()]
    if not others:
        return first
    totals = StepTotals()
    for part in parts:
        totals.steps += part.steps
        totals.sum_s += part.sum_s
        totals.sumsq_s2 += part.sumsq_s2
        totals.min_s = min(totals.min_s, part.min_s)
        totals.max_s = max(totals.max_s, part.max_s)
        for phase, sum_s in part.phases_s.items():
            totals.phases_s[phase] = totals.phases_s.get(phase, 0.0) + sum_s
        for bucket, count in part.histogram.items():
            totals.histogram[bucket] = totals.histogram.get(bucket, 0) + count
    return totals


def drop_warm_up(windows: Sequence[Window]) -> list[Window]:
    """Return the windows of one rank and attempt that hold steps, without those of the warm-up."""
    filled = [window for window in windows if window.steps > 0 and window.wall_s > 0]
    return filled[warm_up_length([window.wall_s / window.steps for window in filled]) :]


def to_spans(windows: Sequence[Window]) -> Spans:
    """Return the stretches of steps that windows cover."""
    phases_s = [window.phases_s for window in windows]
    return Spans(
        first_steps=array("q", [window.step - window.steps for window in windows]),
        last_steps=array("q", [window.step for window in windows]),
        wall_s=array("d", [window.wall_s for window in windows]),
        samples=array("q", [window.samples for window in windows]),
        stepped_s=array("d", [window.step_time_s.sum for window in windows]),
        waited_s=array("d", [phases.get("exposed_communication", 0.0) for phases in phases_s]),
        saved_s=array("d", [phases.get("checkpoint", 0.0) for phases in phases_s]),
    )


def stepped_s(ranks: Sequence[Spans]) -> float:
    """Return the time that the ranks of an attempt stepped, their mean."""
    return sum(sum(spans.wall_s) for spans in ranks) / len(ranks)


def throughput(attempts: Iterable[Sequence[Spans]]) -> Measure | None:
    """Return the samples/s of all ranks together, from the spans of every rank in every attempt.

    Mean: the sum of the ranks' mean rates; several attempts count by the time they stepped. Each
    rank's rate needs its own clock only, and a missing window takes its samples and its time away.
    Sd: over blocks of windows of the lowest rank, by which all go on. Blocks count by their length;
    the interval is wider where they resemble their neighbours.
    """
    weighted = 0.0
    total_s = 0.0
    rates: list[tuple[float, float]] = []
    for ranks in attempts:
        time_s = stepped_s(ranks)
        means = [sum(spans.samples) / sum(spans.wall_s) for spans in ranks]
        weighted += time_s * sum(means)
        total_s += time_s
        times = sum(means) / means[0] if means[0] else 0.0
        each = zip(ranks[0].samples, ranks[0].wall_s, strict=True)
        rates += [(times * samples / wall_s, wall_s) for samples, wall_s in each]
    if not total_s:
        return None
    blocks = in_blocks(rates)
    sd = weighted_standard_deviation(blocks)
    independent = count_independent([rate for rate, _ in blocks])
    return spread_measure(
        weighted / total_s, sd, len(blocks), over="windows", independent=independent
    )


def samples_per_step(attempts: Iterable[Sequence[Spans]]) -> float | None:
    """Return the samples of all ranks together, from the spans of every rank in every attempt, in
    the same order."""
    each = [
        sum(sum(spans.samples) for spans in own) / sum(sum(spans.lengths()) for spans in own)
        for own in zip(*attempts, strict=False)
    ]
    return sum(each) or None


def marks(spans: Spans, borders: Sequence[float]) -> list[tuple[int, float]]:
    """Return the span that each border lies in, and how much of it lies before: its steps count
    as equal."""
    firsts, lasts = spans.first_steps, spans.last_steps
    found = []
    for border in borders:
        place = bisect_left(lasts, border, 0, len(lasts) - 1)
        part = (border - firsts[place]) / (lasts[place] - firsts[place])
        found.append((place, part if 0 < part < 1 else float(part >= 1)))
    return found


def read(values: Sequence[float], at: Sequence[tuple[int, float]]) -> list[float]:
    """Return the sum of `values`, one for each span, before each mark."""
    before = [0.0, *accumulate(values)]
    return [before[place] + part * values[place] for place, part in at]


def step_time(totals: StepTotals) -> StepTime | None:
    """Return mean and sd, exact from the sums, and percentiles from the histogram, within 1 %."""
    if not totals.steps:
        return None
    mean_s = totals.sum_s / totals.steps
    squares = totals.sumsq_s2 - totals.sum_s * mean_s  # may be -0.0000001 where all are equal
    variance = max(0.0, squares) / (totals.steps - 1) if totals.steps > 1 else None
    return StepTime(
        mean=mean_s,
        sd=None if variance is None else math.sqrt(variance),
        p50=percentile(totals, 0.50),
        p95=percentile(totals, 0.95),
    )


def percentile(totals: StepTotals, share: float) -> float | None:
    """Return the step time that `share` of the steps do not exceed; None without a histogram."""
    rank = math.ceil(share * sum(totals.histogram.values()))
    counted = 0
    for bucket in sorted(totals.histogram):
        counted += totals.histogram[bucket]
        if counted >= rank > 0:
            return min(max(HISTOGRAM_RATIO**bucket, totals.min_s), totals.max_s)
    return None


_MOST_SHARE = 2
"""At most one in so many windows is warm-up."""
_FEWEST_LEFT = 3
"""Windows whose spread says something."""
_CONFIDENCE = 0.99
_LEAST_HALF = 2
"""Windows of each half of a warm-up that fades away."""


def warm_up_length(times_s: Sequence[float]) -> int:
    """Return how many of the windows with these mean step times are warm-up; never all of them.

    By MSER (K. P. White, "An effective truncation heuristic for bias reduction in simulation
    output", Simulation 69, 1997): leave out as many windows as make the standard error of the mean
    of the others smallest, at most half of all. Leaving out a window that is unlike the others
    makes their spread smaller; leaving out one that is like them only makes them fewer. Windows of
    steps are the means of batches that the method is mostly given.

    The first window always is warm-up, however few there are: memory is allocated and kernels are
    chosen in the first steps. More is only where those after the first are slower than the rest by
    more than chance makes of windows that are alike: else every run would lose its slowest window
    where that comes early. What was faster than the rest is no warm-up: where a run slows down,
    later steps are not more typical than earlier ones.

    A warm-up that fades away goes on where noise hides it, and would leave a mean that is too slow
    by as much as its interval: where its later half is slower than the rest, but less than half as
    much as its earlier one, twice the length is left out, at most three quarters of all.
    """
    num = len(times_s)
    most = min(num // _MOST_SHARE, num - _FEWEST_LEFT)
    if most < 2:
        return min(1, max(0, num - 1))
    length = _least_error(times_s, most)
    if length == 1 or not _is_slower(times_s[1:length], times_s[length:]):
        return 1
    rest_s = times_s[length:]
    steady_s = sum(rest_s) / len(rest_s)
    half = (length - 1) // 2
    early_s, late_s = times_s[1 : length - half], times_s[length - half : length]
    if half < _LEAST_HALF or not _is_slower(late_s, rest_s):
        return length
    more_s, less_s = (sum(part) / len(part) - steady_s for part in (early_s, late_s))
    return min(2 * length, 3 * num // 4) if 2 * less_s < more_s else length


def _least_error(times_s: Sequence[float], most: int) -> int:
    """Return how many to leave out, from 1 to `most`, for the least error of the others' mean."""
    shift_s = times_s[-1]  # so that no digits are lost where all are much alike
    slack = (1e-9 * shift_s) ** 2  # what rounding makes of no difference
    rest = [time_s - shift_s for time_s in times_s[most + 1 :]]
    total, squares = sum(rest), sum([value * value for value in rest])
    num = len(rest)
    length, least = most, math.inf
    for index in range(most, 0, -1):
        value = times_s[index] - shift_s
        total += value
        squares += value * value
        num += 1
        error = (squares - total * total / num) / (num * num)
        if error <= least + slack:  # of equal ones the fewest
            length, least = index, error
    return length


def _is_slower(early_s: Sequence[float], rest_s: Sequence[float]) -> bool:
    """Return whether it is beyond chance, were both of one kind."""
    mean_s = sum(rest_s) / len(rest_s)
    more_s = sum(early_s) / len(early_s) - mean_s
    if more_s <= 0:
        return False
    squares = sum([(time_s - mean_s) ** 2 for time_s in rest_s])  # stdev() takes ten times as long
    freedom = len(rest_s) - 1
    error_s = math.sqrt(squares / freedom * (1 / len(early_s) + 1 / len(rest_s)))
    return more_s > quantile(_CONFIDENCE, freedom) * error_s
