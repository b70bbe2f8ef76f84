"""Throughput and speed-up against GPUs, with their errors, the ideal, and what more would bring."""

from __future__ import annotations

from collections import defaultdict
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
from hpcdist.base.statistics import Measure, measure, ratio
from hpcdist.summary.compare.sizes import Size
from hpcdist.summary.compare.sizes import size as size_of
from hpcdist.summary.values import ForecastSize, RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LINEAR = 16
"""Larger sizes are so many times the smallest that the small ones would lie on each other."""
_LOW = 0.1
"""Below this share of a linear axis there is no room for a label between point and axis."""
_BELOW, _ABOVE = (6, -12), (6, 4)
"""Where a label is, in points."""


class Point(NamedTuple):
    """All runs of one size, which are repeats of each other."""

    num_gpus: int
    nodes: int
    samples_per_s: Measure
    """Mean and sd over the runs; of a single run, the sd over its windows."""
    speedup: Measure


def points(runs: Sequence[RunSummary]) -> list[Point]:
    """By GPUs, then by nodes, smallest first; the speed-up is against the mean of the smallest."""
    rates: dict[Size, list[Measure]] = defaultdict(list)
    for run in runs:
        if run.samples_per_s is not None:
            rates[size_of(run)].append(run.samples_per_s)
    means = {key: _mean(rates[key]) for key in sorted(rates)}
    baseline = next(iter(means.values()))
    return [
        Point(*key, rate, Measure(mean=1.0) if rate is baseline else ratio(rate, baseline))
        for key, rate in means.items()
    ]


def draw(runs: Sequence[RunSummary], title: str) -> Figure:
    """The runs of one group, which has several sizes."""
    found = points(runs)
    is_on_cpus = any(run.num_cpus is not None for run in runs)
    figure = new_figure(9, 4.2)
    rate_axes, speed_axes = figure.subplots(1, 2)
    smallest = found[0].samples_per_s.mean
    to_come = _forecast(runs, found[-1])
    _draw(rate_axes, found, [point.samples_per_s for point in found], to_come, smallest)
    _draw(speed_axes, found, [point.speedup for point in found], to_come, 1.0)
    unit = "ranks (there is no GPU)" if is_on_cpus else "GPUs"
    finish(rate_axes, x=unit, y="samples/s (mean ± sd)")
    finish(speed_axes, x=unit, y=f"speed-up against {found[0].num_gpus} (mean ± sd)")
    shared_legend(figure, [rate_axes])
    figure.suptitle(title)
    return figure


def _forecast(runs: Sequence[RunSummary], last: Point) -> list[ForecastSize]:
    """The sizes to come, after the largest that was measured; empty where there is no forecast."""
    found = next((run.forecast.sizes for run in runs if run.forecast), [])
    measured = Measure(mean=last.speedup.mean)
    first = ForecastSize(gpus=last.num_gpus, nodes=1, speedup=measured, efficiency=measured)
    return [first, *found] if found else []


def _draw(
    axes: Axes,
    found: Sequence[Point],
    rates: Sequence[Measure],
    to_come: Sequence[ForecastSize],
    unit: float,
) -> None:
    """`unit` is what a speed-up of 1 is on this axis."""
    sizes = list(dict.fromkeys(point.num_gpus for point in found))
    drawn = [*sizes, *(size.gpus for size in to_come[1:])]
    ideal = [unit * size / sizes[0] for size in drawn]
    axes.plot(drawn, ideal, color="#888888", linestyle=":", label="ideal")
    fewest: dict[int, Measure] = {}
    others: list[tuple[int, Measure]] = []
    for point, rate in zip(found, rates, strict=True):
        if fewest.setdefault(point.num_gpus, rate) is not rate:
            others.append((point.num_gpus, rate))
    is_linear = drawn[-1] <= _MOST_LINEAR * drawn[0] and not to_come
    is_low = is_linear and min(rate.mean for rate in rates) < _LOW * ideal[-1]
    shift = _ABOVE if is_low else _BELOW  # of all alike, so that none comes between two others
    _draw_measured(axes, list(fewest.items()), LINES[0] | {"label": "measured"}, shift)
    if others:
        style = LINES[1] | {"linestyle": "none", "label": "as many on more nodes"}
        _draw_measured(axes, others, style, shift)
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
    axes: Axes,
    measured: Sequence[tuple[int, Measure]],
    style: dict[str, Any],
    shift: tuple[int, int],
) -> None:
    """`shift` is that of the labels from their points."""
    axes.errorbar(
        [size for size, _ in measured],
        [rate.mean for _, rate in measured],
        yerr=[rate.sd or 0.0 for _, rate in measured],
        capsize=4,
        **style,
    )
    for size, rate in measured:
        text = f"{rate.mean:.3g}" if rate.mean < 1_000 else f"{rate.mean:,.0f}"
        axes.annotate(text, (size, rate.mean), xytext=shift, textcoords="offset points")


def _draw_forecast(axes: Axes, to_come: Sequence[ForecastSize], unit: float) -> None:
    """Dashed, within its 95 % interval."""
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


def _mean(rates: Sequence[Measure]) -> Measure:
    return rates[0] if len(rates) == 1 else measure([rate.mean for rate in rates])
