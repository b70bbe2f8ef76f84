"""The table of what runs held, used and cost; columns without a value are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hpcdist.base.plotting import long_unit
from hpcdist.base.table import Column, Format, Table, each, number, percent
from hpcdist.summary.report.runs import Row

_CAPTION = "Resources: means over time; memory of the fullest node"
_CAPTION_OF_GPUS = "Resources: means over time; power of a GPU; memory of the fullest GPU and node"

_GIB = 2**30
_WH_J = 3600.0


def resource_tables(rows: Sequence[Row]) -> Iterator[Table[Row]]:
    """Yield one table, where something is known."""

    def is_known(column: Column[Row]) -> bool:
        return any(column.value(row) is not None for row in rows)

    gpus = list(filter(is_known, _gpus()))
    columns = [*_times(rows), *_costs(), *gpus, *_cpus(), *_books()]
    if known := list(filter(is_known, columns)):
        numbered: Column[Row] = Column("#", lambda row: row.number)
        yield Table(_CAPTION_OF_GPUS if gpus else _CAPTION, [numbered, *known], rows)


def _of(part: str, name: str) -> Callable[[Row], Any]:
    """Read a figure of a part of the summary, which a run may not have."""
    return lambda row: getattr(getattr(row.run, part), name, None)


def _numbers(per: float = 1.0, *, most: int = 2) -> Format:
    return number(per=per, most=most, is_wide=True)


def _times(rows: Sequence[Row]) -> Iterator[Column[Row]]:
    for header, read in (
        ("queue\nwait", _of("accounting", "queue_wait_s")),
        ("run\ntime", _of("cost", "held_s")),
    ):
        unit_s, unit = long_unit(_largest(map(read, rows)))
        yield Column(header, read, _numbers(unit_s, most=1), unit=unit)


def _costs() -> Iterator[Column[Row]]:
    yield Column("GPU-\nhours", _of("cost", "gpu_hours"), _numbers(most=4))
    yield Column("CPU-\nhours", _of("cost", "cpu_hours"), _numbers(most=4))
    yield Column("restarts (%\nof run time)", _of("cost", "lost_share"), percent())


def _gpus() -> Iterator[Column[Row]]:
    yield Column("GPU\nbusy", _of("usage", "gpu_utilization"), percent(), unit="%")
    yield Column("GPU mem.", _of("usage", "max_gpu_memory_bytes"), _numbers(_GIB), unit="GiB")
    yield Column("power", _of("usage", "gpu_power_w"), _numbers(most=0), unit="W")
    yield Column("energy", _of("usage", "energy_j"), _numbers(_WH_J), unit="Wh")


def _cpus() -> Iterator[Column[Row]]:
    yield Column("CPUs\nbusy", _busy_cpus, each(_busy_of_all))
    yield Column("memory", _of("usage", "max_memory_bytes"), _numbers(_GIB), unit="GiB")


def _busy_cpus(row: Row) -> tuple[float, float | None] | None:
    usage = row.run.usage
    if usage is None or usage.cpus_busy is None:
        return None
    return usage.cpus_busy, usage.num_cpus


def _busy_of_all(cpus: tuple[float, float | None]) -> str:
    busy, num_cpus = cpus
    return f"{busy:,.1f}" + ("" if num_cpus is None else f" of {num_cpus:,.4g}")


def _books() -> Iterator[Column[Row]]:
    """Yield what the scheduler measured itself."""
    yield Column("MaxRSS", _of("accounting", "max_rss_bytes"), _numbers(_GIB), unit="GiB")
    yield Column("job's en-\nergy", _of("accounting", "energy_j"), _numbers(_WH_J), unit="Wh")


def _largest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)
