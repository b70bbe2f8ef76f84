"""The figures of each batch size under each strategy, and what they mean; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from hpcdist.base.statistics import (
    Interval,
    Measure,
    Ratio,
    differs,
    ratios,
    spread_measure,
)
from hpcdist.base.text import interval_text, number_of, show_percent
from hpcdist.bench.benchmark import PerSecond, PositiveCount, PositiveSeconds, is_shorter
from hpcdist.runs.events import Count, Seconds

SINGLE = "single"
DATA_PARALLEL = "data_parallel"
PROCESS_PER_GPU = "process_per_gpu"

_MOST_GAIN = 1.1
"""Caches and noise can give a little more than one per device; more than this is odd."""
_TELLING_SHARE = 0.05  # parts below it explain nothing
_UNSURE_SHARE = 0.5
"""Where the interval has room for this share of the ideal gain, and for none, nothing is said."""


class InferenceCell(Struct, frozen=True, kw_only=True):
    """One batch size under one strategy; times are from images on the host to logits there."""

    strategy: str
    batch_size: PositiveCount
    """Images, over all devices together."""
    devices: PositiveCount
    """GPUs, or ranks on CPUs, that the batch is spread over."""
    repeats: Count = 0
    cold_time_s: Seconds | None = None
    """The first call with this batch size."""
    mean_time_s: PositiveSeconds | None = None
    """None where it does not fit into memory."""
    sd_time_s: Seconds | None = None
    min_time_s: Seconds | None = None
    p25_time_s: Seconds | None = None
    """A quarter of the calls took no longer."""
    median_time_s: Seconds | None = None
    p75_time_s: Seconds | None = None
    images_per_s: PerSecond | None = None
    parts_s: dict[str, Seconds] = {}
    """Seconds of a call in nn.DataParallel's own parts, replicate, scatter and gather; empty where
    it has none."""
    error: str | None = None

    @property
    def time_s(self) -> Measure:
        """The mean time per batch, with its spread over the calls."""
        assert self.mean_time_s is not None
        return spread_measure(self.mean_time_s, self.sd_time_s, self.repeats, over="windows")


class Comparison(NamedTuple):
    """One batch size: single, and a parallel strategy."""

    single: InferenceCell
    parallel: InferenceCell
    time: Ratio
    """The time of the parallel strategy as a multiple of that of single."""

    @property
    def size(self) -> int:
        """Images per batch."""
        return self.single.batch_size

    @property
    def gain(self) -> float:
        """The speed of the parallel strategy as a multiple of that of single."""
        return 1 / self.time.mean

    @property
    def gain_text(self) -> str:
        """The gain with its interval: `1.60 (1.58 to 1.62)`."""
        ends = self.time.interval
        interval = ends and Interval(low=1 / ends.high, high=1 / ends.low)
        return interval_text(Measure(mean=self.gain, interval=interval), 2)

    @property
    def is_win(self) -> bool:
        """The parallel strategy is faster by more than chance explains."""
        return is_shorter(self.time)

    @property
    def is_decided(self) -> bool:
        """It can be told which of the two is faster."""
        return differs(self.time) is not False

    @property
    def times(self) -> str:
        """The time of a call of both."""
        parallel, single = (cell.time_s.mean * 1e3 for cell in (self.parallel, self.single))
        return f"takes {parallel:.3g} ms, and {single:.3g} on one device"


class InferenceSummary(Struct, frozen=True, kw_only=True):
    """Time per batch, by batch size and strategy."""

    cells: list[InferenceCell]
    conclusions: list[str]
    """A sentence for each parallel strategy."""


def share_of(batch_size: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the first and last + 1 of a rank's images; shares differ by one at most."""
    return batch_size * rank // num_ranks, batch_size * (rank + 1) // num_ranks


def pair_with_single(cells: Sequence[InferenceCell]) -> list[Comparison]:
    """Compare every parallel strategy with single at each batch size that both measured, smallest
    first; all are judged together."""
    timed = sorted((c for c in cells if c.mean_time_s), key=lambda cell: cell.batch_size)
    singles = {cell.batch_size: cell for cell in timed if cell.strategy == SINGLE}
    pairs = [
        (singles[cell.batch_size], cell)
        for cell in timed
        if cell.strategy != SINGLE and cell.batch_size in singles
    ]
    times = ratios([(parallel.time_s, single.time_s) for single, parallel in pairs])
    return [Comparison(*pair, time) for pair, time in zip(pairs, times, strict=True)]


def compare_with_single(cells: Sequence[InferenceCell]) -> list[str]:
    """Return a sentence for each parallel strategy that was measured beside single."""
    names = {cell.strategy for cell in cells}
    if SINGLE not in names:
        return []
    compared = [name for name in (DATA_PARALLEL, PROCESS_PER_GPU) if name in names]
    return [_sentence(name, cells) for name in compared]


def wins_from(comparisons: Iterable[Comparison]) -> int | None:
    """Return the smallest batch size from which on the parallel strategy is always faster."""
    largest_first = sorted(comparisons, key=lambda compared: compared.size, reverse=True)
    wins = list(itertools.takewhile(lambda compared: compared.is_win, largest_first))
    return wins[-1].size if wins else None


def _sentence(name: str, cells: Sequence[InferenceCell]) -> str:
    devices = max(cell.devices for cell in cells if cell.strategy == name)
    title = f"{name} ({number_of(devices, 'device')})"
    if devices == 1:
        return f"{title} {_ONE_DEVICE[name]}"
    comparisons = [each for each in pair_with_single(cells) if each.parallel.strategy == name]
    if not comparisons:
        return f"{title} cannot be compared: it has no batch size in common with single."
    first = wins_from(comparisons)
    if first is not None:
        return f"{title} is faster than single {_where(first, comparisons)}"
    if some := [compared.size for compared in comparisons if compared.is_win]:
        listed, largest = ", ".join(f"{size:,}" for size in some), comparisons[-1].size
        return f"{title} is faster than single with {listed} per batch, but not with {largest:,}."
    best = max(comparisons, key=lambda compared: compared.gain)
    at_best = f"at its best, with {best.size:,} per batch, it {best.times}"
    if _is_unsure(best):
        return (
            f"Whether {title} is faster than single is not certain: {at_best}: "
            f"{best.gain_text} times as fast. Repeat the calls more often "
            "(inference.repeats), with nothing else on the machine."
        )
    is_slower = all(compared.is_decided for compared in comparisons)
    verb = "is slower than single with every batch size" if is_slower else "gains nothing"
    return f"{title} {verb}: {at_best}. {_why_never(best)}"


def _is_unsure(comparison: Comparison) -> bool:
    """Return whether the noise leaves room for half of the ideal gain, as well as for none."""
    ends = comparison.time.interval
    ideal = 1 - 1 / comparison.parallel.devices
    wanted = 1 - _UNSURE_SHARE * ideal
    return not comparison.is_decided and ends is not None and ends.low < wanted


_ONE_DEVICE = {
    DATA_PARALLEL: "shows no parallelism: with fewer than 2 GPUs nn.DataParallel calls the model "
    "itself, so that its times are those of single and of a thin wrapper.",
    PROCESS_PER_GPU: "shows no parallelism: its one rank has the whole batch; ask for more with "
    "--gpus or --nodes.",
}


def _where(first: int, comparisons: Sequence[Comparison]) -> str:
    smallest, largest = comparisons[0], comparisons[-1]
    gain = f"{largest.gain_text} times with {largest.size:,}."
    if largest.gain > _MOST_GAIN * largest.parallel.devices:
        gain += " That is more than this many devices can give: something else slowed single down."
    if first == smallest.size:
        return f"with every batch size that was measured for it, from {first:,} on: {gain}"
    verb = "it is not" if smallest.is_decided else "that is not certain"
    return (
        f"from {first:,} images per batch on: {gain} With {smallest.size:,} {verb}: a call "
        f"{smallest.times}."
    )


def _why_never(best: Comparison) -> str:
    single, parallel, _ = best
    shares = {name: part_s / parallel.time_s.mean for name, part_s in parallel.parts_s.items()}
    if sum(shares.values()) > _TELLING_SHARE:
        listed = ", ".join(f"{name} {show_percent(share)}" for name, share in shares.items())
        return f"Parts of its time: {listed}."
    share = math.ceil(parallel.batch_size / parallel.devices)
    saved = max(0.0, 1 - 1 / best.gain)
    return (
        f"A share of {share:,} instead of {single.batch_size:,} images saves "
        f"{show_percent(saved)} of the time, where {parallel.devices} devices of their own would "
        f"save up to {show_percent(1 - 1 / parallel.devices)}: the rest is the fixed cost of a "
        f"call, or the devices share what they compute with."
    )
