"""The tables of the benchmarks: by size, by pair of nodes, by batch size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdist.base.table import Column, Format, Table, count, each, number
from hpcdist.base.text import (
    UNDEFINED,
    decimals_for,
    format_mean_sd,
    format_number,
    show_binary,
    shown,
    time_unit,
)
from hpcdist.bench.inference.figures import Cell
from hpcdist.summary.figures.benchmark_values import (
    AllReduceSummary,
    InferenceSummary,
    PairFigures,
    SizeFigures,
)
from hpcdist.summary.report.loading_table import loading_tables
from hpcdist.summary.values import RunSummary

_MOST_PAIRS = 12
_GB = 1e9


def benchmark_tables(run: RunSummary, number: int) -> Iterator[Table[Any]]:
    """What a run of a benchmark shows; nothing for others."""
    if run.all_reduce:
        yield _sizes(run.all_reduce, number)
        if run.all_reduce.pairs:
            yield _pairs(run.all_reduce, number)
    if run.inference:
        yield _batches(run.inference, number)
    if run.loading:
        yield from loading_tables(run.loading, number)


def _sizes(summary: AllReduceSummary, number: int) -> Table[SizeFigures]:
    unit_s, unit = time_unit(min(size.mean_time_s for size in summary.sizes))
    times, rates = _digits(unit_s), _digits(_GB)
    columns: list[Column[SizeFigures]] = [
        Column("size", lambda size: size.bytes, each(show_binary)),
        Column("time", lambda size: size.mean_time_s, times, unit=unit),
        Column("median", lambda size: size.median_time_s, times, unit=unit),
        Column("p95", lambda size: size.p95_time_s, times, unit=unit),
        Column("algorithm\nbandwidth", lambda size: size.algorithm_bytes_per_s, rates, unit="GB/s"),
        Column("bus\nbandwidth", lambda size: size.bus_bytes_per_s, rates, unit="GB/s"),
        Column("times", lambda size: size.iterations, count),
    ]
    kind = f" of {shown(summary.dtype)}" if summary.dtype else ""
    caption = f"#{number}: all-reduce{kind} by size, slowest of {summary.ranks:,} ranks"
    return Table(caption, columns, summary.sizes)


def _digits(per: float) -> Format:
    """Three digits of each value: over the sizes they differ by powers of ten."""
    return each(lambda value: format_number(value / per, decimals_for([value / per])))


def _pairs(summary: AllReduceSummary, number: int) -> Table[PairFigures]:
    slowest = sorted(summary.pairs, key=lambda pair: pair.bus_bytes_per_s)[:_MOST_PAIRS]
    slow = {pair.nodes for pair in summary.slow_pairs}
    of = f", the slowest of {len(summary.pairs):,}" if len(slowest) < len(summary.pairs) else ""
    caption = f"#{number}: pairs of nodes{of}, all-reduce of {show_binary(slowest[0].bytes)}"
    columns: list[Column[PairFigures]] = [
        Column("node", lambda pair: f"{pair.nodes[0]} {pair.hosts[0]}", align="left"),
        Column("node", lambda pair: f"{pair.nodes[1]} {pair.hosts[1]}", align="left"),
        Column("bus\nbandwidth", lambda pair: pair.bus_bytes_per_s, _digits(_GB), unit="GB/s"),
        Column("", lambda pair: "slow" if pair.nodes in slow else "", align="left"),
    ]
    return Table(caption, columns, slowest)


def _batches(summary: InferenceSummary, number_of_run: int) -> Table[Cell]:
    ordered = sorted(summary.cells, key=lambda cell: cell.batch_size)
    singles = {cell.batch_size: cell.mean_time_s for cell in ordered if cell.strategy == "single"}

    def time(cell: Cell) -> Cell | str:
        return cell if _is_timed(cell) else cell.error or UNDEFINED

    def against(cell: Cell) -> float | None:
        single_s = singles.get(cell.batch_size)
        return single_s / cell.mean_time_s if single_s and cell.mean_time_s else None

    columns: list[Column[Cell]] = [
        Column("batch", lambda cell: cell.batch_size, count, unit="images"),
        Column("strategy", lambda cell: cell.strategy, align="left"),
        Column("devices", lambda cell: cell.devices),
        Column("time per batch", time, each(_mean_sd_ms), unit="ms", sort=_sort_time),
        Column(
            "first\ncall",
            lambda cell: cell.cold_time_s if _is_timed(cell) else None,
            _digits(1e-3),
            unit="ms",
        ),
        Column(
            "images/s",
            lambda cell: (cell.images_per_s or 0.0) if _is_timed(cell) else None,
            number(0),
        ),
        Column(
            "against\nsingle", lambda cell: against(cell) if _is_timed(cell) else None, number(2)
        ),
    ]
    return Table(f"#{number_of_run}: inference by batch size, mean ± sd", columns, ordered)


def _is_timed(cell: Cell) -> bool:
    return bool(cell.mean_time_s) and cell.cold_time_s is not None


def _sort_time(cell: Cell | str) -> float | str | None:
    return cell if isinstance(cell, str) else cell.mean_time_s


def _mean_sd_ms(cell: Cell) -> str:
    mean_ms = (cell.mean_time_s or 0.0) * 1e3
    sd_ms = None if cell.sd_time_s is None else cell.sd_time_s * 1e3
    return format_mean_sd(mean_ms, sd_ms, decimals_for([mean_ms]))
