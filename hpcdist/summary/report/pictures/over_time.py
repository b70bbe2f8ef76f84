"""Pictures over time: loss and accuracy, step times by rank, and what a run used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import (
    LINES,
    finish,
    label,
    long_unit,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.base.text import number_of, time_unit
from hpcdist.job.goal import Goal
from hpcdist.summary.figures.series import (
    GPU_BUSY,
    Curve,
    HeatMap,
    Learning,
    UsageSeries,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = len(LINES)
_MOST_MARKERS = 12
_ACCURACY = "test accuracy (%)"
_RATE = "learning rate"


def draw_learning(runs: Mapping[str, Learning], goal: Goal | None = None) -> Figure:
    """Draw loss above accuracy, and above the learning rate where it varied, of runs by their
    names, with the `goal` that their times are for; on the left against steps, on the right against
    time."""
    has_training = _draws_training(runs)
    panels = ["loss"]
    if any(run.accuracy.values for run in runs.values()):
        panels.append(_ACCURACY)
    if any(run.has_varied_rate for run in runs.values()):
        panels.append(_RATE)
    num_rows = len(panels)
    figure = new_figure(9, 1.4 + 2.6 * num_rows)
    grid = figure.subplots(num_rows, 2, squeeze=False, sharey="row", sharex="col")
    curves = [curve for run in runs.values() for curve in run]
    unit_s, unit = long_unit(max(time_s for curve in curves for time_s in curve.times_s[-1:]))
    for column, unit_of_time_s in enumerate((None, unit_s)):
        for (name, run), style in zip(runs.items(), LINES, strict=False):
            axes = {panel: row[column] for panel, row in zip(panels, grid, strict=True)}
            drawn = run if has_training or not run.test_loss.values else _tested(run)
            _draw_run(axes, name, drawn, style=style, unit_s=unit_of_time_s)
    aim = _ACCURACY if goal and goal.quantity == "accuracy" else "loss"
    if goal is not None and aim in panels:
        value = 100 * goal.value if aim == _ACCURACY else goal.value
        for axes in grid[panels.index(aim)]:
            axes.axhline(value, color="#888888", linestyle=":", linewidth=1)
    for row, name in zip(grid, panels, strict=True):
        finish(row[0], x="", y=name)
        finish(row[1], x="", y="")
    grid[-1][0].set_xlabel("steps")
    grid[-1][1].set_xlabel(f"time since the first step ({unit})")
    losses = [value for line in grid[0][0].lines for value in line.get_ydata()]
    if losses and min(losses) > 0 and max(losses) > 100 * min(losses):
        grid[0][0].set_yscale("log")
        plain_log_ticks(grid[0][0].yaxis)
    shared_legend(figure, [grid[0][0]])
    return figure


def _draws_training(runs: Mapping[str, Learning]) -> bool:
    """Tell whether there is room for a line of training beside each one of tests."""
    return sum(1 + bool(run.test_loss.values) for run in runs.values()) <= MOST_LINES


def _tested(run: Learning) -> Learning:
    return run._replace(train_loss=Curve([], [], []))


def describe_lines(runs: Mapping[str, Learning]) -> str:
    """Say which lines are there."""
    if not any(run.test_loss.values for run in runs.values()):
        return "Loss of training."
    if _draws_training(runs):
        return "Thin lines are training, those with markers are tests."
    return "Lines are tests; with so many runs, those of training are left out."


def _draw_run(
    column: Mapping[str, Axes],
    name: str,
    run: Learning,
    *,
    style: dict[str, Any],
    unit_s: float | None,
) -> None:
    """Draw training thin, tests with markers; against steps where `unit_s` is None."""
    thin = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1, "alpha": 0.8}
    train, test, accuracy, rate = run
    has_tests = bool(test.values)
    named = f"{name}: training" if has_tests else name
    if train.values:
        _plot(column["loss"], train, unit_s, **thin, label=label(named))
    if has_tests:
        named = f"{name}: test" if train.values else name
        _plot(column["loss"], test, unit_s, **style, label=label(named))
    if accuracy.values:
        shares = accuracy._replace(values=[100 * value for value in accuracy.values])
        _plot(column[_ACCURACY], shares, unit_s, **style)
    if _RATE in column and rate.values:
        _plot(column[_RATE], rate, unit_s, **thin)


def _plot(axes: Axes, curve: Curve, unit_s: float | None, **style: Any) -> None:
    xs = curve.steps if unit_s is None else [time_s / unit_s for time_s in curve.times_s]
    every = max(1, len(xs) // _MOST_MARKERS)
    if len(xs) == 1:  # a line of one point is not to be seen
        style = {"marker": ".", **style}
    axes.plot(xs, curve.values, markevery=every, markersize=5, **style)


_MOST_NAMES = 32
_MOST_ROWS = 128
_QUANTILES = (0.01, 0.99)
"""Range of the colours: one odd window must not make all others look alike."""


def draw_heat_map(times: HeatMap) -> Figure:
    """Draw a row per rank, the lowest on top; of very many ranks one for the slowest of so many
    neighbours that rows stay visible."""
    import numpy as np

    num_ranks = len(times.ranks)
    size = -(-num_ranks // _MOST_ROWS)
    # fmax knows a time from a gap.
    rows_s = np.array(
        [
            np.fmax.reduce(np.array(times.times_s[at : at + size]))
            for at in range(0, num_ranks, size)
        ]
    )
    unit_s, unit = time_unit(float(np.nanmedian(rows_s)))
    long_s, unit_of_all = long_unit(times.whole_s)
    low_s, high_s = map(float, np.nanquantile(rows_s, _QUANTILES))
    # A rank that is slow for most of its time is within the range.
    high_s = max(high_s, *(float(np.median(row[~np.isnan(row)])) for row in rows_s))
    high_s = high_s if high_s > low_s else low_s + 1e-9
    figure = new_figure(9, 1.6 + min(6.0, max(1.0, 0.28 * len(rows_s))))
    axes = figure.subplots()
    image = axes.imshow(
        rows_s / unit_s,
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",  # told apart by all kinds of sight, and lighter is slower
        vmin=low_s / unit_s,
        vmax=high_s / unit_s,
        extent=(0, times.whole_s / long_s, len(rows_s), 0),
    )
    named = range(0, len(rows_s), -(-len(rows_s) // _MOST_NAMES))
    names = [rank_name(times.ranks[row * size], times.hosts[row * size]) for row in named]
    axes.set_yticks([row + 0.5 for row in named], names)
    axes.set_ylabel("rank and its host" if size == 1 else f"slowest of each {size} ranks, from")
    axes.set_xlabel(f"time since the first step ({unit_of_all}); gaps: no steps, or warm-up")
    bar = figure.colorbar(image, ax=axes, extend="both")
    bar.set_label(f"step time without the\nwait for others ({unit})")
    return figure


def rank_name(rank: int, host: str | None) -> str:
    """Return `3 n17`."""
    return label(f"{rank} {host}" if host else str(rank))


_HEADROOM = 1.1
_ALL = "each of all"
_ALIKE = ({"color": LINES[0]["color"], "alpha": 0.3, "linewidth": 1},)


def draw_usage(series: UsageSeries) -> Figure:
    """Draw a panel for each quantity, with a line for each GPU or node."""
    figure = new_figure(9, 1.5 + 1.7 * len(series.panels))
    column = figure.subplots(len(series.panels), 1, squeeze=False, sharex=True)[:, 0]
    all_lines = [line for lines in series.panels.values() for line in lines]
    unit_s, unit = long_unit(max(line.times_s[-1] for line in all_lines))
    for axes, (panel, lines) in zip(column, series.panels.items(), strict=True):
        # More lines than can be told apart are one, whose darkest part is where most of them are.
        are_one = len(lines) > MOST_LINES
        for line, style in zip(lines, itertools.cycle(_ALIKE if are_one else LINES)):
            axes.plot(
                [time_s / unit_s for time_s in line.times_s],
                line.values,
                label=_ALL if are_one else line.name,
                markersize=4,
                markevery=max(1, len(line.values) // _MOST_MARKERS),
                **style,
            )
        finish(axes, x="", y=panel.replace(" (", "\n("))
        largest = max(value for line in lines for value in line.values if not math.isnan(value))
        axes.set_ylim(0, 105 if panel == GPU_BUSY else _HEADROOM * largest or None)
    column[-1].set_xlabel(f"time since the ranks began ({unit})")
    if len({line.name for line in all_lines}) > 1 or len(all_lines) > len(series.panels):
        shared_legend(figure, list(column))
    return figure


def describe_usage(series: UsageSeries) -> str:
    """Say how high each quantity is, and how many nodes are left out."""
    ranges = []
    for panel, lines in series.panels.items():
        means = []
        for line in lines:
            pairs = zip(line.values, line.lengths_s, strict=True)
            whole = sum(value * length_s for value, length_s in pairs if not math.isnan(value))
            means.append(whole / (sum(line.lengths_s) or math.inf))
        low, high = f"{min(means):.3g}", f"{max(means):.3g}"
        ranges.append(f"{panel}: {low if low == high else f'{low} to {high}'}")
    left_out = series.num_left_out
    less = f" {number_of(left_out, 'node')} of {series.num_nodes} left out." if left_out else ""
    return f"Mean over time, {'; '.join(ranges)}.{less}"
