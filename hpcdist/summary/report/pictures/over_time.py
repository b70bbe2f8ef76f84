"""The picture of loss and accuracy over time."""

from __future__ import annotations

import itertools
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
from hpcdist.job.goal import Goal
from hpcdist.summary.figures.learning import Curve, Learning

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
}
"""Curves by the label of their panel."""


def draw_learning(runs: Mapping[str, Sequence[Learning]], goal: Goal | None = None) -> Figure:
    """Draw loss above accuracy, with the `goal` that times are for; on the left against steps, on
    the right against time. Repeats are one line: their mean, in a band from the least of them to
    the largest."""
    every = [run for repeats in runs.values() for run in repeats]
    panels = ["loss", _ACCURACY] if any(run.accuracy.values for run in every) else ["loss"]
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
                thin = {"marker": "", "linewidth": 1} if is_training else {"markersize": 5}
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
