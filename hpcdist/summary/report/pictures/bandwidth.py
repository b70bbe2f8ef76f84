"""All-reduces by size: bus bandwidth, and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import (
    LINES,
    finish,
    label,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.base.text import show_binary
from hpcdist.summary.figures.benchmark_values import AllReduceSummary
from hpcdist.summary.report.runs import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RUNS = len(LINES)
_GB = 1e9
_MOST_TICKS = 7


def draw(rows: Sequence[Row], title: str) -> Figure:
    """One line per run; `rows` have all-reduces."""
    figure = new_figure(9, 4.4)
    bus_axes, time_axes = figure.subplots(1, 2)
    for row, style in zip(rows, LINES, strict=False):
        assert row.run.all_reduce is not None
        name = label(f"#{row.number}: {row.run.nodes} x {row.run.gpus_per_node}")
        _draw_run(bus_axes, time_axes, row.run.all_reduce, style | {"label": name})
    sizes = sorted({size.bytes for row in rows if row.run.all_reduce for size in _sizes(row)})
    finish(bus_axes, x="bytes of each rank", y="bus bandwidth (GB/s)")
    finish(time_axes, x="bytes of each rank", y="time (ms): median, and up to p95")
    for axes in (bus_axes, time_axes):
        _size_axis(axes, sizes)
    shared_legend(figure, [bus_axes])
    figure.suptitle(title)
    return figure


def _draw_run(
    bus_axes: Axes, time_axes: Axes, summary: AllReduceSummary, style: dict[str, Any]
) -> None:
    sizes = [size.bytes for size in summary.sizes]
    medians = [size.median_time_s * 1e3 for size in summary.sizes]
    above = [max(0.0, size.p95_time_s - size.median_time_s) * 1e3 for size in summary.sizes]
    bus_axes.plot(sizes, [size.bus_bytes_per_s / _GB for size in summary.sizes], **style)
    time_axes.errorbar(sizes, medians, yerr=[[0.0] * len(sizes), above], capsize=3, **style)


def _sizes(row: Row) -> Sequence[Any]:
    return row.run.all_reduce.sizes if row.run.all_reduce else []


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    every = -(-len(sizes) // _MOST_TICKS)
    ticks = sizes[::every]
    axes.set_xticks(ticks, [show_binary(size) for size in ticks], rotation=30)
    axes.tick_params(axis="x", which="minor", bottom=False)
