"""The figures of each batch size under each strategy, and what they mean; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from hpcdist.base.statistics import Measure, ratio, spread_measure
from hpcdist.base.text import number_of, show_percent
from hpcdist.bench.benchmark import (
    Count,
    PerSecond,
    PositiveCount,
    PositiveSeconds,
    Seconds,
    is_shorter,
)

SINGLE = "single"
DATA_PARALLEL = "data_parallel"
PROCESS_PER_GPU = "process_per_gpu"

_MOST_GAIN = 1.1
"""Caches and noise can give a little more than one per device; more than this is odd."""
_TELLING_SHARE = 0.05  # parts below it explain nothing
_UNSURE_SHARE = 0.5
"""Calls that differ so much that this share of the ideal gain would not be seen tell nothing."""


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
    """A quarter of the calls took no longer; older runs lack this and the next two."""
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

    @property
    def size(self) -> int:
        """Images per batch."""
        return self.single.batch_size

    @property
    def gain(self) -> float:
        """The speed of the parallel strategy as a multiple of that of single."""
        return self.single.time_s.mean / self.parallel.time_s.mean

    @property
    def is_win(self) -> bool:
        """The parallel strategy is faster by more than chance explains."""
        return is_shorter(self.parallel.time_s, self.single.time_s)

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
    timed = sorted((c for c in cells if c.mean_time_s), key=lambda cell: cell.batch_size)
    singles = {cell.batch_size: cell for cell in timed if cell.strategy == SINGLE}
    comparisons = [
        Comparison(singles[cell.batch_size], cell)
        for cell in timed
        if cell.strategy == name and cell.batch_size in singles
    ]
    if not comparisons:
        return f"{title} cannot be compared: it has no batch size in common with single."
    first = wins_from(comparisons)
    if first is not None:
        return f"{title} is faster than single {_where(first, comparisons)}"
    if some := [compared.size for compared in comparisons if compared.is_win]:
        listed, largest = ", ".join(f"{size:,}" for size in some), comparisons[-1].size
        return f"{title} is faster than single with {listed} per batch, but not with {largest:,}."
    best = max(comparisons, key=lambda compared: compared.gain)
    at_best = f"at its best, with {best.size:,} per batch, it {best.times}."
    if _is_unsure(best):
        return (
            f"{title} cannot be distinguished from single: {at_best} But calls differ too much to "
            "conclude from that: repeat them more often (inference.repeats), with nothing else on "
            "the machine."
        )
    return f"{title} is never faster than single: {at_best} {_why_never(best)}"


def _is_unsure(comparison: Comparison) -> bool:
    """Return whether it seems faster, but half of the ideal gain would be lost in the noise."""
    single, parallel = comparison
    compared = ratio(parallel.time_s, single.time_s)
    ends = compared.interval
    half_width = (ends.high - ends.low) / 2 if ends else 0.0
    ideal = 1 - 1 / parallel.devices
    return compared.mean < 1 and half_width > _UNSURE_SHARE * ideal


_ONE_DEVICE = {
    DATA_PARALLEL: "shows no parallelism: with fewer than 2 GPUs nn.DataParallel calls the model "
    "itself, so that its times are those of single and of a thin wrapper.",
    PROCESS_PER_GPU: "shows no parallelism: its one rank has the whole batch; ask for more with "
    "--gpus or --nodes.",
}


def _where(first: int, comparisons: Sequence[Comparison]) -> str:
    smallest, largest = comparisons[0], comparisons[-1]
    gain = f"{largest.gain:.2f} times with {largest.size:,}."
    if largest.gain > _MOST_GAIN * largest.parallel.devices:
        gain += " That is more than so many devices can give: something else slowed single down."
    if first == smallest.size:
        return f"with every batch size that was measured for it, from {first:,} on: {gain}"
    is_loss = is_shorter(smallest.single.time_s, smallest.parallel.time_s)
    noise = "" if is_loss else ", which is within the noise"
    return (
        f"from {first:,} images per batch on: {gain} With {smallest.size:,} it is not: a call "
        f"{smallest.times}{noise}."
    )


def _why_never(best: Comparison) -> str:
    single, parallel = best
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
