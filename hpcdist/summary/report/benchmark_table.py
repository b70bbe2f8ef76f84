"""The tables of the benchmarks: by size, by pair of nodes, by batch size. Columns as plain text."""

from __future__ import annotations

from collections.abc import Iterator

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
from hpcdist.summary.figures.benchmark_values import AllReduceSummary, InferenceSummary, PairFigures
from hpcdist.summary.report.loading_table import loading_tables
from hpcdist.summary.report.plain_table import PlainTable
from hpcdist.summary.values import RunSummary

_MOST_PAIRS = 12
_GB = 1e9


def benchmark_tables(run: RunSummary, number: int) -> Iterator[PlainTable]:
    """What a run of a benchmark shows; nothing for others."""
    if run.all_reduce:
        yield _sizes(run.all_reduce, number)
        if run.all_reduce.pairs:
            yield _pairs(run.all_reduce, number)
    if run.inference:
        yield _batches(run.inference, number)
    if run.loading:
        yield from loading_tables(run.loading, number)


def _sizes(summary: AllReduceSummary, number: int) -> PlainTable:
    unit_s, unit = time_unit(min(size.mean_time_s for size in summary.sizes))
    headers = (
        *("size", f"time\n({unit})", f"median\n({unit})", f"p95\n({unit})"),
        *("algorithm\nbandwidth (GB/s)", "bus\nbandwidth (GB/s)", "times"),
    )
    rows = [
        (
            show_binary(size.bytes),
            *(
                format_number(time_s / unit_s, _decimals(time_s / unit_s))
                for time_s in (size.mean_time_s, size.median_time_s, size.p95_time_s)
            ),
            *map(_gigabytes, (size.algorithm_bytes_per_s, size.bus_bytes_per_s)),
            f"{size.iterations:,}",
        )
        for size in summary.sizes
    ]
    kind = f" of {shown(summary.dtype)}" if summary.dtype else ""
    caption = f"#{number}: all-reduce{kind} by size, slowest of {summary.ranks:,} ranks"
    return PlainTable(caption, headers, rows)


def _pairs(summary: AllReduceSummary, number: int) -> PlainTable:
    slowest = sorted(summary.pairs, key=lambda pair: pair.bus_bytes_per_s)[:_MOST_PAIRS]
    slow = {pair.nodes for pair in summary.slow_pairs}
    rows = [
        (*_hosts(pair), _gigabytes(pair.bus_bytes_per_s), _mark(pair, slow)) for pair in slowest
    ]
    of = f", the slowest of {len(summary.pairs):,}" if len(slowest) < len(summary.pairs) else ""
    caption = f"#{number}: pairs of nodes{of}, all-reduce of {show_binary(slowest[0].bytes)}"
    return PlainTable(caption, ("node", "node", "bus\nbandwidth (GB/s)", ""), rows)


def _hosts(pair: PairFigures) -> tuple[str, str]:
    a, b = (f"{node} {shown(host)}" for node, host in zip(pair.nodes, pair.hosts, strict=True))
    return a, b


def _mark(pair: PairFigures, slow: set[tuple[int, int]]) -> str:
    return "slow" if pair.nodes in slow else ""


def _batches(summary: InferenceSummary, number: int) -> PlainTable:
    headers = (
        *("batch\n(images)", "strategy", "devices", "time per batch\n(ms)"),
        *("first\ncall (ms)", "images/s", "against\nsingle"),
    )
    ordered = sorted(summary.cells, key=lambda cell: cell.batch_size)
    singles = {cell.batch_size: cell.mean_time_s for cell in ordered if cell.strategy == "single"}
    rows = [_batch(cell, singles.get(cell.batch_size)) for cell in ordered]
    return PlainTable(f"#{number}: inference by batch size, mean ± sd", headers, rows)


def _batch(cell: Cell, single_s: float | None) -> tuple[str, ...]:
    head = (f"{cell.batch_size:,}", cell.strategy, str(cell.devices))
    if not cell.mean_time_s or cell.cold_time_s is None:
        return (*head, shown(cell.error or UNDEFINED), UNDEFINED, UNDEFINED, UNDEFINED)
    mean_ms, sd_s = cell.mean_time_s * 1e3, cell.sd_time_s
    return (
        *head,
        format_mean_sd(mean_ms, None if sd_s is None else sd_s * 1e3, _decimals(mean_ms)),
        format_number(cell.cold_time_s * 1e3, _decimals(cell.cold_time_s * 1e3)),
        f"{cell.images_per_s or 0.0:,.0f}",
        f"{single_s / cell.mean_time_s:.2f}" if single_s else UNDEFINED,
    )


def _gigabytes(bytes_per_s: float) -> str:
    return format_number(bytes_per_s / _GB, _decimals(bytes_per_s / _GB))


def _decimals(value: float) -> int:
    """Three digits of each value: over the sizes they differ by powers of ten."""
    return decimals_for([value])
