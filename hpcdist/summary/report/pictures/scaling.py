"""Throughput and speed-up against GPUs, with their spread, the ideal, and the forecast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdist.base.plotting import (
    LINES,
    PLAIN_NUMBERS,
    counts_axis,
    finish,
    new_figure,
    shared_legend,
)
from hpcdist.base.statistics import Measure
from hpcdist.summary.compare.sizes import by_size, num_gpus
from hpcdist.summary.report.scaling import of_size
from hpcdist.summary.values import ForecastSize, RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LINEAR = 16
"""Largest size, as a multiple of the smallest, with which small ones do not lie on each other."""
_LOW = 0.1
"""Below this share of a linear axis there is no room for a label between point and axis."""
_BELOW, _ABOVE = (6, -12), (6, 4)
"""Offsets of a label, in points."""


class _Point(NamedTuple):
    """One size, and what was measured."""

    num_gpus: int
    measured: Measure


def draw(runs: Sequence[RunSummary], title: str) -> Figure:
    """Draw the values of the table of sizes, for one group of several sizes."""
    sizes = [theirs[0] for theirs in by_size(run for run in runs if run.of_size).values()]
    is_on_cpus = any(run.num_cpus is not None for run in runs)
    figure = new_figure(9, 4.2)
    rate_axes, speed_axes = figure.subplots(1, 2)
    rates = [_Point(num_gpus(run), of_size(run).samples_per_s) for run in sizes]
    speedups = [_Point(num_gpus(run), of_size(run).speedup) for run in sizes]
    speedups[0] = speedups[0]._replace(measured=Measure(mean=1.0))
    to_come = _forecast(runs, speedups[-1])
    _draw(rate_axes, rates, to_come, rates[0].measured.mean)
    _draw(speed_axes, speedups, to_come, 1.0)
    unit = "ranks (there is no GPU)" if is_on_cpus else "GPUs"
    finish(rate_axes, x=unit, y="samples/s (mean ± sd)")
    finish(speed_axes, x=unit, y=f"speed-up against {rates[0].num_gpus} (mean ± sd)")
    shared_legend(figure, [rate_axes])
    figure.suptitle(title)
    return figure


def _forecast(runs: Sequence[RunSummary], last: _Point) -> list[ForecastSize]:
    """Return the sizes of the forecast, after the largest that was measured; else nothing."""
    sizes = next((run.forecast.sizes for run in runs if run.forecast), [])
    measured = Measure(mean=last.measured.mean)
    first = ForecastSize(gpus=last.num_gpus, nodes=1, speedup=measured, efficiency=measured)
    return [first, *sizes] if sizes else []


def _draw(
    axes: Axes, points: Sequence[_Point], to_come: Sequence[ForecastSize], unit: float
) -> None:
    """`unit` is what a speed-up of 1 is on this axis."""
    sizes = list(dict.fromkeys(point.num_gpus for point in points))
    drawn = [*sizes, *(size.gpus for size in to_come[1:])]
    ideal = [unit * size / sizes[0] for size in drawn]
    axes.plot(drawn, ideal, color="#888888", linestyle=":", label="ideal")
    fewest = {point.num_gpus: point for point in reversed(points)}
    on_more_nodes = [point for point in points if fewest[point.num_gpus] is not point]
    is_linear = drawn[-1] <= _MOST_LINEAR * drawn[0] and not to_come
    is_low = is_linear and min(point.measured.mean for point in points) < _LOW * ideal[-1]
    shift = _ABOVE if is_low else _BELOW  # of all alike, so that none comes between two others
    on_line = [fewest[size] for size in sizes]
    _draw_measured(axes, on_line, LINES[0] | {"label": "measured"}, shift)
    if on_more_nodes:
        style = LINES[1] | {"linestyle": "none", "label": "as many on more nodes"}
        _draw_measured(axes, on_more_nodes, style, shift)
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
    axes: Axes, points: Sequence[_Point], style: dict[str, Any], shift: tuple[int, int]
) -> None:
    """`shift` is that of the labels from their points."""
    axes.errorbar(
        [point.num_gpus for point in points],
        [point.measured.mean for point in points],
        yerr=[point.measured.sd or 0.0 for point in points],
        capsize=4,
        **style,
    )
    for size, measured in points:
        text = f"{measured.mean:.3g}" if measured.mean < 1_000 else f"{measured.mean:,.0f}"
        axes.annotate(text, (size, measured.mean), xytext=shift, textcoords="offset points")


def _draw_forecast(axes: Axes, to_come: Sequence[ForecastSize], unit: float) -> None:
    """Draw a dashed line in its 95 % interval."""
    if not to_come:
        return
    gpus = [size.gpus for size in to_come]
    style: dict[str, Any] = {**LINES[0], "marker": "", "linestyle": "--"}
    means = [unit * size.speedup.mean for size in to_come]
    axes.plot(gpus, means, **style, label="forecast")
    ends = [
        (known.low, known.high) if (known := size.speedup.interval) else (size.speedup.mean,) * 2
        for size in to_come
    ]
    axes.fill_between(
        gpus,
        [unit * low for low, _ in ends],
        [unit * high for _, high in ends],
        color=LINES[0]["color"],
        alpha=0.2,
        linewidth=0,
        label="its 95 % interval",
    )
