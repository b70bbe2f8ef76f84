"""Figures beside each other: those that differ in workers alone, and in other keys; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hpcdist.bench.dataload.figures import OF_WORKERS, LoadingCell, Setting

_STANDARD_ERRORS = 2.0
LEAST_DIFFERENCE = 0.03
"""A difference of the means counts from two of its standard errors on, and from 3 % on: nobody
spends a worker on less."""

_UNCLEAR = 0.13
"""Standard error to mean from which on a mean tells nothing: with 5 passes an sd of 30 %."""

Series = Sequence[LoadingCell]
"""By workers; all else is equal."""


def by_workers(cells: Iterable[LoadingCell]) -> list[Series]:
    """The series in cells of one node; what was measured without workers is in all that it fits."""
    cells = list(cells)
    with_workers = [cell for cell in cells if cell.setting.workers]
    alone = [cell for cell in cells if not cell.setting.workers]
    found: dict[Setting, list[LoadingCell]] = {}
    for cell in with_workers:
        found.setdefault(_but_workers(cell.setting), []).append(cell)
    for cell in alone:
        fitting = [key for key in found if _without_workers(key) == cell.setting]
        for key in fitting or [_but_workers(cell.setting)]:
            found.setdefault(key, []).append(cell)
    return [sorted(series, key=lambda cell: cell.setting.workers) for series in found.values()]


def recommended(series: Series) -> LoadingCell:
    """That with the fewest workers of those that none is faster than by more than chance."""
    fastest = min(series, key=lambda cell: cell.mean_time_s)
    return next(cell for cell in series if not is_faster(fastest, cell))


def is_faster(one: LoadingCell, other: LoadingCell) -> bool:
    """Whether the mean time is smaller by more than chance explains, and by enough to matter."""
    gain_s = other.mean_time_s - one.mean_time_s
    error_s = math.hypot(_standard_error(one), _standard_error(other))
    return gain_s > max(_STANDARD_ERRORS * error_s, LEAST_DIFFERENCE * other.mean_time_s)


def is_unclear(cell: LoadingCell) -> bool:
    """Whether the passes differ so much that their mean tells nothing; more passes may help."""
    return _standard_error(cell) >= _UNCLEAR * cell.mean_time_s


def spread(cell: LoadingCell) -> float:
    """Of the passes: sd to mean."""
    return (cell.sd_time_s or 0.0) / cell.mean_time_s


def best_by_transform(cells: Iterable[LoadingCell]) -> dict[str, Series]:
    """For each transform the series with most images/s, of one node."""
    best: dict[str, Series] = {}
    for series in by_workers(cells):
        transform = series[0].setting.transform
        if transform not in best or _most(series) > _most(best[transform]):
            best[transform] = series
    return best


def alternatives(
    cell: LoadingCell, cells: Iterable[LoadingCell], key: str
) -> Iterator[LoadingCell]:
    """What differs from the cell in one key alone, on the same node."""
    own = getattr(cell.setting, key)
    for other in cells:
        value = getattr(other.setting, key)
        same = msgspec.structs.replace(other.setting, **{key: own}) == cell.setting
        if value != own and same and other.node == cell.node:
            yield other


def slowest_node(cells: Sequence[LoadingCell]) -> int:
    """The node that loads least in the way in which it loads most."""
    rates: dict[int, float] = {}
    for cell in cells:
        rates[cell.node] = max(cell.images_per_s, rates.get(cell.node, 0.0))
    return min(rates, key=lambda node: (rates[node], node))


def _most(series: Series) -> float:
    return max(cell.images_per_s for cell in series)


def _but_workers(setting: Setting) -> Setting:
    return msgspec.structs.replace(setting, workers=0)


def _without_workers(setting: Setting) -> Setting:
    """As it is said where there are no workers."""
    usual = {
        field.name: field.default
        for field in msgspec.structs.fields(Setting)
        if field.name in OF_WORKERS
    }
    return msgspec.structs.replace(setting, workers=0, **usual)


def _standard_error(cell: LoadingCell) -> float:
    return (cell.sd_time_s or 0.0) / math.sqrt(cell.repeats)
