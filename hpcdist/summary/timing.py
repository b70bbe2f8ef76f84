"""From windows of steps to rates and step times: warm-up, throughput, percentiles.

Only lengths of time on one rank's own clock are used, and ranks are lined up by their step count,
never by the time of day: clocks of nodes may differ by minutes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from hpcdist.recording import HISTOGRAM_RATIO
from hpcdist.summary.records import Window
from hpcdist.summary.values import Rate, StepTime
from hpcdist.summary.warm_up import warm_up_length


class Span(NamedTuple):
    """A stretch of one rank's steps: what throughput is computed from."""

    first_step: int
    last_step: int
    wall_s: float
    samples: int
    stepped_s: float = 0.0
    """Sum of its step times."""
    waited_s: float = 0.0
    """Of these, for other ranks."""
    saved_s: float = 0.0
    """Of these, for checkpoints."""


_FIRST_AND_LAST_STEP = operator.itemgetter(0, 1)


class StepTotals:
    """Step times of any number of windows, summed up; grows by `add` and `merge`."""

    def __init__(self) -> None:
        self.steps = 0
        self.sum_s = 0.0
        self.sumsq_s2 = 0.0
        self.min_s = math.inf
        self.max_s = 0.0
        self.phases_s: dict[str, float] = {}
        self.histogram: dict[int, int] = {}

    def add(self, windows: Iterable[Window]) -> None:
        """Take windows in: with local names, as it takes much of the time of a summary."""
        phases_s = self.phases_s
        phase_before = phases_s.get
        rows: dict[int, list[list[int]]] = {}
        rows_of = rows.setdefault
        sum_s, sumsq_s2, min_s, max_s = self.sum_s, self.sumsq_s2, self.min_s, self.max_s
        for window in windows:
            times = window.step_time_s
            self.steps += window.steps
            sum_s += times.sum
            sumsq_s2 += times.sumsq
            if times.min < min_s:  # noqa: PLR1730 - a call takes longer than all of this
                min_s = times.min
            if times.max > max_s:  # noqa: PLR1730
                max_s = times.max
            for phase, phase_s in window.phases_s.items():
                phases_s[phase] = phase_before(phase, 0.0) + phase_s
            for first, row in window.histogram.items():
                rows_of(first, []).append(row)
        self.sum_s, self.sumsq_s2, self.min_s, self.max_s = sum_s, sumsq_s2, min_s, max_s
        _add_counts(self.histogram, _by_bucket(rows))

    def merge(self, other: StepTotals) -> None:
        """Take the steps of another rank or attempt in."""
        self.steps += other.steps
        self.sum_s += other.sum_s
        self.sumsq_s2 += other.sumsq_s2
        self.min_s = min(self.min_s, other.min_s)
        self.max_s = max(self.max_s, other.max_s)
        for phase, sum_s in other.phases_s.items():
            self.phases_s[phase] = self.phases_s.get(phase, 0.0) + sum_s
        _add_counts(self.histogram, other.histogram)

    def own_time_s(self) -> float:
        """Seconds of all steps without the wait for other ranks."""
        return self.sum_s - self.phases_s.get("exposed_communication", 0.0)


def drop_warm_up(windows: Sequence[Window]) -> list[Window]:
    """The windows of one rank and attempt that hold steps, without those of the warm-up."""
    filled = [window for window in windows if window.steps > 0 and window.wall_s > 0]
    return filled[warm_up_length([window.wall_s / window.steps for window in filled]) :]


def to_spans(windows: Iterable[Window]) -> list[Span]:
    """The stretches of steps that windows cover."""
    make = tuple.__new__  # a third of the time of Span()
    return [
        make(
            Span,
            (
                window.step - window.steps,
                window.step,
                window.wall_s,
                window.samples,
                window.step_time_s.sum,
                window.phases_s.get("exposed_communication", 0.0),
                window.phases_s.get("checkpoint", 0.0),
            ),
        )
        for window in windows
    ]


def mean_rate(spans: Sequence[Span]) -> float:
    """Samples per second of one rank: all its samples in all its time."""
    return sum(span.samples for span in spans) / sum(span.wall_s for span in spans)


def throughput(attempts: Iterable[Sequence[Sequence[Span]]]) -> Rate | None:
    """Samples per second of all ranks together, from the spans of every rank in every attempt.

    Mean: the sum of the ranks' mean rates; several attempts count by the time they stepped. Each
    rank's rate needs its own clock only, and a missing window takes its samples and its time away.
    Sd: over the windows of the lowest rank. The other ranks' windows begin and end elsewhere, so
    their time and samples for the same steps are interpolated; windows that not every rank covers
    are left out. Windows count by their length.
    """
    weighted = 0.0
    total_s = 0.0
    rates: list[tuple[float, float]] = []
    for ranks in attempts:
        stepped_s = sum(span.wall_s for spans in ranks for span in spans) / len(ranks)
        weighted += stepped_s * sum(mean_rate(spans) for spans in ranks)
        total_s += stepped_s
        rates += rates_by_window(ranks)
    if not total_s:
        return None
    sd = _weighted_sd(rates)
    return Rate(mean=weighted / total_s, sd=sd, count=None if sd is None else len(rates))


def samples_per_step(attempts: Iterable[Sequence[Sequence[Span]]]) -> float | None:
    """Of all ranks together, from the spans of every rank in every attempt, in the same order."""
    by_rank: dict[int, list[int]] = {}
    for ranks in attempts:
        for place, spans in enumerate(ranks):
            found = by_rank.setdefault(place, [0, 0])
            found[0] += sum([span.samples for span in spans])
            found[1] += sum([span.last_step - span.first_step for span in spans])
    return sum(samples / steps for samples, steps in by_rank.values()) or None


def rates_by_window(ranks: Sequence[Sequence[Span]]) -> list[tuple[float, float]]:
    """(samples per second of all ranks, seconds) for each window of the first rank."""
    reference, *others = ranks
    rates = [span.samples / span.wall_s for span in reference]
    is_covered = [True] * len(reference)
    steps = _steps_of(reference)
    for spans in others:
        if _steps_of(spans) == steps:  # ranks that step together
            rates = [
                rate + span.samples / span.wall_s for rate, span in zip(rates, spans, strict=True)
            ]
            continue
        for index, rate in enumerate(rates_over(reference, spans)):
            if rate is None:
                is_covered[index] = False
            else:
                rates[index] += rate
    return [
        (rate, span.wall_s)
        for rate, span, covered in zip(rates, reference, is_covered, strict=True)
        if covered
    ]


def _steps_of(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """First and last step of each span."""
    return list(map(_FIRST_AND_LAST_STEP, spans))


def rates_over(reference: Sequence[Span], spans: Sequence[Span]) -> list[float | None]:
    """Samples per second of one rank over the steps of each reference span; None where it lacks
    some of them."""
    rates: list[float | None] = []
    start = 0
    for span in reference:
        while start < len(spans) and spans[start].last_step <= span.first_step:
            start += 1
        rates.append(_rate_between(span.first_step, span.last_step, spans, start))
    return rates


def _rate_between(
    first_step: int, last_step: int, spans: Sequence[Span], start: int
) -> float | None:
    wall_s = samples = 0.0
    covered = 0
    for index in range(start, len(spans)):
        span = spans[index]
        if span.first_step >= last_step:
            break
        steps = min(span.last_step, last_step) - max(span.first_step, first_step)
        part = steps / (span.last_step - span.first_step)
        covered += steps
        wall_s += part * span.wall_s
        samples += part * span.samples
    return samples / wall_s if covered == last_step - first_step else None


def _weighted_sd(rates: Sequence[tuple[float, float]]) -> float | None:
    """Standard deviation with weights; with equal weights that of a sample (n - 1)."""
    if len(rates) < 2:
        return None
    total_s = sum(weight_s for _, weight_s in rates)
    mean = sum(rate * weight_s for rate, weight_s in rates) / total_s
    squares = sum(weight_s * (rate - mean) ** 2 for rate, weight_s in rates) / total_s
    return math.sqrt(squares * len(rates) / (len(rates) - 1))


def step_time(totals: StepTotals) -> StepTime | None:
    """Mean and sd, exact from the sums; percentiles from the histogram, within 1 %."""
    if not totals.steps:
        return None
    mean_s = totals.sum_s / totals.steps
    return StepTime(
        mean=mean_s,
        sd=_sd_from_sums(totals, mean_s),
        p50=percentile(totals, 0.50),
        p95=percentile(totals, 0.95),
    )


def _sd_from_sums(totals: StepTotals, mean_s: float) -> float | None:
    if totals.steps < 2:
        return None
    squares = totals.sumsq_s2 - totals.sum_s * mean_s  # may be -0.0000001 where all are equal
    return math.sqrt(max(0.0, squares) / (totals.steps - 1))


def percentile(totals: StepTotals, share: float) -> float | None:
    """The step time that `share` of the steps do not exceed; None without a histogram."""
    rank = math.ceil(share * sum(totals.histogram.values()))
    counted = 0
    for bucket in sorted(totals.histogram):
        counted += totals.histogram[bucket]
        if counted >= rank > 0:
            return min(max(HISTOGRAM_RATIO**bucket, totals.min_s), totals.max_s)
    return None


def _by_bucket(rows: Mapping[int, Sequence[Sequence[int]]]) -> dict[int, int]:
    """Bucket -> count, from rows of counts by the bucket that each begins with."""
    first = min(rows, default=0)
    columns = [
        [0] * (bucket - first) + list(map(sum, zip_longest(*same, fillvalue=0)))
        for bucket, same in rows.items()
    ]
    counts = map(sum, zip_longest(*columns, fillvalue=0))
    return {bucket: count for bucket, count in enumerate(counts, first) if count}


def _add_counts(counts: dict[int, int], more: Mapping[int, int]) -> None:
    for bucket, count in more.items():
        counts[bucket] = counts.get(bucket, 0) + count
