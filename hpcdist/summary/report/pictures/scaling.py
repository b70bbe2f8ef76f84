"""Throughput and speed-up against GPUs, with their spread, the ideal, and the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import (
    LINES,
    PLAIN_NUMBERS,
    counts_axis,
    error_bars,
    finish,
    new_figure,
    shared_legend,
)
from hpcdist.base.statistics import Interval, Measure
from hpcdist.summary.values import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LINEAR = 16
"""Largest size, as a multiple of the smallest, with which small ones do not lie on each other."""
_LOW = 0.1
"""Below this share of a linear axis there is no room for a label between point and axis."""
_BELOW, _ABOVE, _BEFORE = (6, -12), (6, 4), (-6, 4)
"""Offsets of a label, in points; one that stands before its point ends there."""


_Points = Sequence[tuple[int, Measure]]
"""GPUs of each size, and what was measured."""


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw the values of the table of sizes, for one group of several sizes, smallest first."""
    figure = new_figure(9, 4.2)
    rate_axes, speed_axes = figure.subplots(1, 2)
    rates = [(cell.num_gpus, cell.samples_per_s) for cell in cells if cell.samples_per_s]
    speedups = [(cell.num_gpus, cell.speedup) for cell in cells[1:] if cell.speedup]
    smallest, rate = rates[0]
    forecast = next((cell.forecast.sizes for cell in cells if cell.forecast), [])
    to_come = {size.gpus: size.speedup for size in forecast}
    if forecast:  # it begins at the largest size that was measured
        largest, measured = speedups[-1]
        to_come = {largest: Measure(mean=measured.mean), **to_come}
    _draw(rate_axes, rates, to_come, rate.mean)
    _draw(speed_axes, [(smallest, Measure(mean=1.0)), *speedups], to_come, 1.0)
    on_cpus = any(cell.num_cpus is not None for cell in cells)
    spread = " (± 95 % interval)" if any(rate.interval for _, rate in rates) else ""
    x = "ranks on CPUs" if on_cpus else "GPUs"
    finish(rate_axes, x=x, y=f"samples/s{spread}")
    finish(speed_axes, x=x, y=f"speed-up against {smallest}{spread}")
    shared_legend(figure, [rate_axes])
    return figure


def _draw(axes: Axes, points: _Points, to_come: Mapping[int, Measure], unit: float) -> None:
    """`unit` is what a speed-up of 1 is on this axis; `to_come` are speed-ups by GPUs."""
    on_line = list({size: (size, measured) for size, measured in reversed(points)}.values())[::-1]
    drawn = list(dict.fromkeys([*(size for size, _ in on_line), *to_come]))
    ideal = [unit * size / drawn[0] for size in drawn]
    axes.plot(drawn, ideal, color="#888888", linestyle=":", label="ideal")
    on_more_nodes = [point for point in points if point not in on_line]
    is_linear = drawn[-1] <= _MOST_LINEAR * drawn[0] and not to_come
    highs = [measured.interval.high for _, measured in points if measured.interval]
    tallest = max([*ideal, *highs])
    is_low = is_linear and min(measured.mean for _, measured in points) < _LOW * tallest
    shift = _ABOVE if is_low else _BELOW  # of all alike, so that none comes between two others
    _draw_measured(axes, on_line, LINES[0] | {"label": "measured"}, shift)
    if on_more_nodes:
        style = LINES[1] | {"linestyle": "none", "label": "the same number on more nodes"}
        _draw_measured(axes, on_more_nodes, style, _BEFORE)
    if to_come:
        _draw_forecast(axes, to_come, unit)
    axes.margins(x=0.25, y=0.12)
    if not is_linear:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)  # so that the ideal is a straight line
        axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
    else:
        axes.set_ylim(bottom=0)
    counts_axis(axes, drawn)


def _draw_measured(
    axes: Axes, points: _Points, style: dict[str, Any], shift: tuple[int, int]
) -> None:
    """`shift` is that of the labels from their points."""
    means = [measured.mean for _, measured in points]
    sizes = [size for size, _ in points]
    bars = error_bars([measured for _, measured in points])
    axes.errorbar(sizes, means, yerr=bars, capsize=4, **style)
    for size, measured in points:
        text = f"{measured.mean:.3g}" if measured.mean < 1_000 else f"{measured.mean:,.0f}"
        axes.annotate(
            text,
            (size, measured.mean),
            xytext=shift,
            textcoords="offset points",
            ha="right" if shift is _BEFORE else "left",
        )


def _draw_forecast(axes: Axes, to_come: Mapping[int, Measure], unit: float) -> None:
    """Draw a dashed line in its 95 % interval."""
    gpus, speedups = list(to_come), list(to_come.values())
    style: dict[str, Any] = {**LINES[0], "marker": "", "linestyle": "--"}
    axes.plot(gpus, [unit * speedup.mean for speedup in speedups], **style, label="forecast")
    ends = [
        speedup.interval or Interval(low=speedup.mean, high=speedup.mean) for speedup in speedups
    ]
    axes.fill_between(
        gpus,
        [unit * end.low for end in ends],
        [unit * end.high for end in ends],
        color=LINES[0]["color"],
        alpha=0.2,
        linewidth=0,
        label="its 95 % interval",
    )
