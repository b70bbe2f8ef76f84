"""Pictures over time: loss and accuracy, and what a run used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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
from hpcdist.base.text import number_of
from hpcdist.job.goal import Goal
from hpcdist.summary.figures.series import (
    GPU_BUSY,
    Curve,
    Learning,
    UsageSeries,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = len(LINES)
_MOST_MARKERS = 12
_LOG_FROM = 100
_ACCURACY = "test accuracy (%)"
_CURVES = {
    "loss": ("train_loss", "test_loss"),
    _ACCURACY: ("accuracy",),
    "learning rate": ("learning_rate",),
}
"""Curves by the label of their panel."""
_THIN = ("train_loss", "learning_rate")
"""Curves without markers."""


def draw_learning(runs: Mapping[str, Sequence[Learning]], goal: Goal | None = None) -> Figure:
    """Draw loss above accuracy, and above the learning rate where it varied, with the `goal` that
    times are for; on the left against steps, on the right against time. Repeats are one line: their
    mean, in a band from the least of them to the largest."""
    every = [run for repeats in runs.values() for run in repeats]
    panels = ["loss"]
    panels += [_ACCURACY] if any(run.accuracy.values for run in every) else []
    panels += ["learning rate"] if any(run.has_varied_rate for run in every) else []
    figure = new_figure(9, 1.4 + 2.6 * len(panels))
    grid = figure.subplots(len(panels), 2, squeeze=False, sharey="row", sharex="col")
    ends_s = [time_s for run in every for curve in run for time_s in curve.times_s[-1:]]
    unit_s, unit = long_unit(max(ends_s))
    for row, panel in zip(grid, panels, strict=True):
        for (name, repeats), style in zip(runs.items(), itertools.cycle(LINES)):
            has_tests = any(run.test_loss.values for run in repeats)
            for kind in _CURVES[panel]:
                is_training = kind == "train_loss"
                text = f"{name}: {'training' if is_training else 'test'}" if has_tests else name
                thin = {"marker": "", "linewidth": 1} if kind in _THIN else {"markersize": 5}
                curves = [getattr(run, kind) for run in repeats]
                per = 0.01 if kind == "accuracy" else 1.0
                _draw_repeats(row, curves, unit_s, per, **style | thin, label=label(text))
        if goal is not None and panel == (_ACCURACY if goal.quantity == "accuracy" else "loss"):
            value = goal.value * (100 if goal.quantity == "accuracy" else 1)
            for axes in row:
                axes.axhline(value, color="#888888", linestyle=":", linewidth=1)
        finish(row[0], x="", y=panel)
        finish(row[1], x="", y="")
    grid[-1][0].set_xlabel("steps")
    grid[-1][1].set_xlabel(f"time since the first step ({unit})")
    losses = [value for line in grid[0][0].lines for value in line.get_ydata()]
    if losses and min(losses) > 0 and max(losses) > _LOG_FROM * min(losses):
        grid[0][0].set_yscale("log")
        plain_log_ticks(grid[0][0].yaxis)
    shared_legend(figure, [grid[0][0]])
    return figure


def _draw_repeats(
    row: Sequence[Axes], curves: Sequence[Curve], unit_s: float, per: float, **style: Any
) -> None:
    """Draw the mean of curves as far as all of them come, against steps and against time."""
    import numpy as np

    curves = [curve for curve in curves if curve.values]
    if not curves:
        return
    last = min(curve.steps[-1] for curve in curves)
    steps = [step for step in curves[0].steps if step <= last] or curves[0].steps[:1]
    values = np.array([np.interp(steps, curve.steps, curve.values) for curve in curves]) / per
    times = np.mean([np.interp(steps, curve.steps, curve.times_s) for curve in curves], axis=0)
    if len(steps) == 1:  # a line of one point is not to be seen
        style["marker"] = style["marker"] or "."
    every = max(1, len(steps) // _MOST_MARKERS)
    for axes, xs in zip(row, (steps, times / unit_s), strict=True):
        axes.plot(xs, values.mean(axis=0), markevery=every, **style)
        if len(curves) > 1:
            ends = values.min(axis=0), values.max(axis=0)
            axes.fill_between(xs, *ends, color=style["color"], alpha=0.2, linewidth=0)


def draw_usage(series: UsageSeries) -> Figure:
    """Draw a panel for each quantity, with a line for each GPU or node."""
    figure = new_figure(9, 1.5 + 1.7 * len(series.panels))
    column = figure.subplots(len(series.panels), 1, squeeze=False, sharex=True)[:, 0]
    lines_of_all = [line for lines in series.panels.values() for line in lines]
    unit_s, unit = long_unit(max(line.times_s[-1] for line in lines_of_all))
    for axes, (panel, lines) in zip(column, series.panels.items(), strict=True):
        # More lines than can be told apart are one, whose darkest part is where most of them are.
        are_one = len(lines) > MOST_LINES
        for line, style in zip(lines, itertools.cycle(LINES)):
            faint = {"color": LINES[0]["color"], "alpha": 0.3, "linestyle": "-", "marker": ""}
            axes.plot(
                [time_s / unit_s for time_s in line.times_s],
                line.values,
                label="each of all" if are_one else line.name,
                markersize=4,
                markevery=max(1, len(line.values) // _MOST_MARKERS),
                **(faint if are_one else style),
            )
        finish(axes, x="", y=panel.replace(" (", "\n("))
        largest = max(value for line in lines for value in line.values if not math.isnan(value))
        axes.set_ylim(0, 105 if panel == GPU_BUSY else 1.1 * largest or None)
        axes.set_xlim(left=0)
    column[-1].set_xlabel(f"time since the ranks began ({unit})")
    if len({line.name for line in lines_of_all}) > 1:
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
