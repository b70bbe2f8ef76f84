"""The figures of each batch size under each strategy, and what they mean; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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


Comparison = tuple[InferenceCell, InferenceCell]
"""The same batch size: single, and a parallel strategy."""


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
    smallest = None
    for single, parallel in sorted(comparisons, key=_batch_size, reverse=True):
        if not is_faster(parallel, single):
            break
        smallest = single.batch_size
    return smallest


def is_faster(cell: InferenceCell, other: InferenceCell) -> bool:
    """Return whether the mean time is smaller by more than chance explains."""
    return is_shorter(cell.time_s, other.time_s)


def _sentence(name: str, cells: Sequence[InferenceCell]) -> str:
    devices = max(cell.devices for cell in cells if cell.strategy == name)
    title = f"{name} ({number_of(devices, 'device')})"
    if devices == 1:
        return f"{title} {_ONE_DEVICE[name]}"
    comparisons = _compare(name, cells)
    if not comparisons:
        return f"{title} cannot be compared: it has no batch size in common with single."
    first = wins_from(comparisons)
    if first is not None:
        return f"{title} is faster than single {_where(first, comparisons)}"
    some = [single.batch_size for single, other in comparisons if is_faster(other, single)]
    if some:
        listed = ", ".join(f"{size:,}" for size in some)
        largest = max(comparisons, key=_batch_size)[0].batch_size
        return f"{title} is faster than single with {listed} per batch, but not with {largest:,}."
    best = max(comparisons, key=_gain)
    single, parallel = best
    at_best = (
        f"at its best, with {single.batch_size:,} per batch, it takes {_ms(parallel)} ms, and "
        f"single {_ms(single)}."
    )
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


def _compare(name: str, cells: Sequence[InferenceCell]) -> list[Comparison]:
    timed = [cell for cell in cells if cell.mean_time_s is not None]
    singles = {cell.batch_size: cell for cell in timed if cell.strategy == SINGLE}
    return [
        (singles[cell.batch_size], cell)
        for cell in timed
        if cell.strategy == name and cell.batch_size in singles
    ]


def _where(first: int, comparisons: Sequence[Comparison]) -> str:
    smallest = min(comparisons, key=_batch_size)
    largest = max(comparisons, key=_batch_size)
    gain = f"{_gain(largest):.2f} times with {largest[0].batch_size:,}."
    if _gain(largest) > _MOST_GAIN * largest[1].devices:
        gain += " That is more than so many devices can give: something else slowed single down."
    if first == smallest[0].batch_size:
        return f"with every batch size that was measured for it, from {first:,} on: {gain}"
    single, parallel = smallest
    noise = "" if is_faster(single, parallel) else ", which is within the noise"
    return (
        f"from {first:,} images per batch on: {gain} With {single.batch_size:,} it is not: a call "
        f"takes {_ms(parallel)} ms, and {_ms(single)} on one device{noise}."
    )


def _why_never(best: Comparison) -> str:
    single, parallel = best
    assert parallel.mean_time_s is not None
    parts_s = sum(parallel.parts_s.values())
    if parts_s > _TELLING_SHARE * parallel.mean_time_s:
        listed = ", ".join(
            f"{name} {show_percent(time_s / parallel.mean_time_s)}"
            for name, time_s in parallel.parts_s.items()
        )
        return f"Parts of its time: {listed}."
    share = math.ceil(parallel.batch_size / parallel.devices)
    saved = max(0.0, 1 - 1 / _gain(best))
    return (
        f"A share of {share:,} instead of {single.batch_size:,} images saves "
        f"{show_percent(saved)} of the time, where {parallel.devices} devices of their own would "
        f"save up to {show_percent(1 - 1 / parallel.devices)}: the rest is the fixed cost of a "
        f"call, or the devices share what they compute with."
    )


def _gain(comparison: Comparison) -> float:
    single, parallel = comparison
    assert single.mean_time_s is not None
    assert parallel.mean_time_s is not None
    return single.mean_time_s / parallel.mean_time_s


def _batch_size(comparison: Comparison) -> int:
    return comparison[0].batch_size


def _ms(cell: InferenceCell) -> str:
    assert cell.mean_time_s is not None
    return f"{cell.mean_time_s * 1e3:.3g}"
