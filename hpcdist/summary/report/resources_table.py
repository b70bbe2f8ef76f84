"""What runs held, used and cost as a table; columns that hold nothing are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hpcdist.base.text import (
    UNDEFINED,
    column_decimals,
    format_number,
    format_percent,
)
from hpcdist.summary.report.pictures.style import long_unit
from hpcdist.summary.values import RunSummary

if TYPE_CHECKING:
    from hpcdist.summary.report.table import Row

_CAPTION = "Resources: means over time; memory of the fullest node"
_CAPTION_OF_GPUS = "Resources: means over time; power of a GPU; memory of the fullest GPU and node"

_GIB = 2**30
_WH_J = 3600.0

Cell = Callable[["Row"], str]


def resource_columns(runs: Sequence[RunSummary]) -> tuple[str, list[tuple[str, Cell]]]:
    """Caption, then header and cells of every column that says something of one of the runs."""
    gpus = list(_gpus(runs))
    columns = [*_times(runs), *_costs(runs), *gpus, *_cpus(runs), *_books(runs)]
    has_gpus = any(is_known for _, _, is_known in gpus)
    known = [(header, cell) for header, cell, is_known in columns if is_known]
    return _CAPTION_OF_GPUS if has_gpus else _CAPTION, known


_Column = tuple[str, Cell, bool]
"""Header, cell, and whether one of the runs has a value."""


def _numbers(
    header: str,
    runs: Sequence[RunSummary],
    read: Callable[[RunSummary], float | None],
    *,
    most_decimals: int = 2,
) -> _Column:
    values = [value for run in runs if (value := read(run)) is not None]
    decimals = min(most_decimals, column_decimals(values))
    return header, lambda row: format_number(read(row.run), decimals), bool(values)


def _shares(
    header: str, runs: Sequence[RunSummary], read: Callable[[RunSummary], float | None]
) -> _Column:
    is_known = any(read(run) is not None for run in runs)
    return header, lambda row: format_percent(read(row.run)), is_known


def _times(runs: Sequence[RunSummary]) -> Iterator[_Column]:
    def wait_s(run: RunSummary) -> float | None:
        return run.accounting.queue_wait_s if run.accounting else None

    def held_s(run: RunSummary) -> float | None:
        return run.cost.held_s if run.cost else None

    for header, read in (("queue\nwait ({})", wait_s), ("run\ntime ({})", held_s)):
        longest_s = _largest(read(run) for run in runs)
        unit_s, unit = long_unit(longest_s)
        yield _numbers(header.format(unit), runs, _scaled(read, unit_s), most_decimals=1)


def _costs(runs: Sequence[RunSummary]) -> Iterator[_Column]:
    def of(name: str) -> Callable[[RunSummary], float | None]:
        return lambda run: getattr(run.cost, name) if run.cost else None

    yield _numbers("GPU-\nhours", runs, of("gpu_hours"), most_decimals=4)
    yield _numbers("CPU-\nhours", runs, of("cpu_hours"), most_decimals=4)
    yield _shares("restarts (%\nof run time)", runs, of("lost_share"))


def _gpus(runs: Sequence[RunSummary]) -> Iterator[_Column]:
    yield _shares("GPU\nbusy (%)", runs, _of_usage("gpu_utilization"))
    memory = _scaled(_of_usage("max_gpu_memory_bytes"), _GIB)
    yield _numbers("GPU mem.\n(GiB)", runs, memory)
    yield _numbers("power\n(W)", runs, _of_usage("gpu_power_w"), most_decimals=0)
    yield _numbers("energy\n(Wh)", runs, _scaled(_of_usage("energy_j"), _WH_J))


def _cpus(runs: Sequence[RunSummary]) -> Iterator[_Column]:
    def busy(row: Row) -> str:
        usage = row.run.usage
        if usage is None or usage.cpus_busy is None:
            return UNDEFINED
        of_all = "" if usage.num_cpus is None else f" of {usage.num_cpus:,.4g}"
        return f"{usage.cpus_busy:,.1f}{of_all}"

    yield "CPUs\nbusy", busy, any(run.usage and run.usage.cpus_busy is not None for run in runs)
    memory = _scaled(_of_usage("max_memory_bytes"), _GIB)
    yield _numbers("memory\n(GiB)", runs, memory)


def _books(runs: Sequence[RunSummary]) -> Iterator[_Column]:
    """What the scheduler measured itself."""

    def of(name: str) -> Callable[[RunSummary], float | None]:
        return lambda run: getattr(run.accounting, name) if run.accounting else None

    yield _numbers("MaxRSS\n(GiB)", runs, _scaled(of("max_rss_bytes"), _GIB))
    yield _numbers("job's en-\nergy (Wh)", runs, _scaled(of("energy_j"), _WH_J))


def _of_usage(name: str) -> Callable[[RunSummary], float | None]:
    return lambda run: getattr(run.usage, name) if run.usage else None


def _scaled(
    read: Callable[[RunSummary], float | None], unit: float
) -> Callable[[RunSummary], float | None]:
    def scaled(run: RunSummary) -> float | None:
        value = read(run)
        return None if value is None else value / unit

    return scaled


def _largest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)
