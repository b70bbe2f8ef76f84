"""From which batch size on a parallel form wins, or that it never does and why; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hpcdist.base.text import show_percent
from hpcdist.bench.inference.figures import DATA_PARALLEL, PROCESS_PER_GPU, SINGLE, Cell

_STANDARD_ERRORS = 2.0
"""A difference of the means counts from so many of its standard errors on."""

_MOST_GAIN = 1.1
"""Caches and noise can give a little more than one per device; more than this is odd."""

_TELLING_SHARE = 0.05  # parts below it explain nothing

_UNSURE_SHARE = 0.5
"""Calls that differ so much that this share of the ideal gain would not be seen tell nothing."""

Comparison = tuple[Cell, Cell]
"""The same batch size: single, and a parallel form."""


def conclude(cells: Sequence[Cell]) -> list[str]:
    """One sentence for each parallel form that was measured beside single."""
    names = {cell.strategy for cell in cells}
    if SINGLE not in names:
        return []
    compared = [name for name in (DATA_PARALLEL, PROCESS_PER_GPU) if name in names]
    return [_sentence(name, cells) for name in compared]


def wins_from(comparisons: Iterable[Comparison]) -> int | None:
    """The smallest batch size from which on the parallel form is faster at every one measured."""
    found = None
    for single, parallel in sorted(comparisons, key=_batch_size, reverse=True):
        if not is_faster(parallel, single):
            break
        found = single.batch_size
    return found


def is_faster(one: Cell, other: Cell) -> bool:
    """Whether the mean time is smaller by more than chance explains."""
    assert one.mean_time_s is not None
    assert other.mean_time_s is not None
    return other.mean_time_s - one.mean_time_s > _least_difference_s(one, other)


def _least_difference_s(one: Cell, other: Cell) -> float:
    """Of the mean times, to be more than chance explains."""
    return _STANDARD_ERRORS * math.hypot(_standard_error(one), _standard_error(other))


def _sentence(name: str, cells: Sequence[Cell]) -> str:
    parallel = [cell for cell in cells if cell.strategy == name]
    devices = max(cell.devices for cell in parallel)
    title = f"{name} ({devices} {'device' if devices == 1 else 'devices'})"
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
    if _is_unsure(best):
        return f"{title} cannot be told from single: {_at_best(best)}{_UNSURE}"
    return f"{title} is never faster than single: {_at_best(best)}{_why_never(best)}"


_UNSURE = (
    "But calls differ so much that this says nothing: repeat them more often "
    "(inference.repeats), with nothing else on the machine."
)


def _is_unsure(comparison: Comparison) -> bool:
    """Whether it seems to win, and even half of what it could gain would be lost in the noise."""
    single, parallel = comparison
    assert single.mean_time_s is not None
    ideal_s = single.mean_time_s * (1 - 1 / parallel.devices)
    least_s = _least_difference_s(parallel, single)
    return _gain(comparison) > 1 and least_s > _UNSURE_SHARE * ideal_s


_ONE_DEVICE = {
    DATA_PARALLEL: "shows no parallelism: with fewer than 2 GPUs nn.DataParallel calls the model "
    "itself, so that its times are those of single and of a thin wrapper.",
    PROCESS_PER_GPU: "shows no parallelism: its one rank has the whole batch; ask for more with "
    "--gpus or --nodes.",
}


def _compare(name: str, cells: Sequence[Cell]) -> list[Comparison]:
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
    gain = f"{_gain(largest):.2f} times with {largest[0].batch_size:,}.{_doubt(largest)}"
    if first == smallest[0].batch_size:
        return f"with every batch size that was measured for it, from {first:,} on: {gain}"
    single, parallel = smallest
    noise = "" if is_faster(single, parallel) else ", which is within the noise"
    return (
        f"from {first:,} images per batch on: {gain} With {single.batch_size:,} it is not: a call "
        f"takes {_ms(parallel)} ms, and {_ms(single)} on one device{noise}."
    )


def _doubt(comparison: Comparison) -> str:
    if _gain(comparison) <= _MOST_GAIN * comparison[1].devices:
        return ""
    return " That is more than so many devices can give: something else slowed single down."


def _at_best(best: Comparison) -> str:
    single, parallel = best
    return (
        f"at its best, with {single.batch_size:,} per batch, it takes {_ms(parallel)} ms, and "
        f"single {_ms(single)}. "
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
        return f"Of its time go to {listed}."
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


def _standard_error(cell: Cell) -> float:
    return (cell.sd_time_s or 0.0) / math.sqrt(max(1, cell.repeats))


def _batch_size(comparison: Comparison) -> int:
    return comparison[0].batch_size


def _ms(cell: Cell) -> str:
    assert cell.mean_time_s is not None
    return f"{cell.mean_time_s * 1e3:.3g}"
