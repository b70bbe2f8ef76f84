"""Loss and accuracy against steps and against time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdist.base.plotting import (
    LINES,
    finish,
    label,
    long_unit,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.summary.report.pictures.series import Curve, Learning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RUNS = len(LINES)
_MOST_MARKERS = 12


class Named(NamedTuple):
    """One run's curves, and what the legend calls it."""

    name: str
    learning: Learning


def draw(runs: Sequence[Named], title: str, target: float | None = None) -> Figure:
    """Loss above accuracy, where there is any, with the `target` of the time to accuracy; on the
    left against steps, on the right against time."""
    has_accuracy = any(run.learning.accuracy.values for run in runs)
    num_rows = 2 if has_accuracy else 1
    figure = new_figure(9, 1.4 + 2.6 * num_rows)
    grid = figure.subplots(num_rows, 2, squeeze=False, sharey="row", sharex="col")
    unit_s, unit = long_unit(_longest_s(runs))
    for column, unit_of_time_s in enumerate((None, unit_s)):
        for run, style in zip(runs, LINES, strict=False):
            _draw_run([row[column] for row in grid], run, style, unit_of_time_s)
    if has_accuracy and target is not None:
        for axes in grid[1]:
            axes.axhline(100 * target, color="#888888", linestyle=":", linewidth=1)
    _finish(grid, f"time since the first step ({unit})")
    shared_legend(figure, [grid[0][0]])
    figure.suptitle(title)
    return figure


def _longest_s(runs: Sequence[Named]) -> float:
    return max(time_s for run in runs for curve in run.learning for time_s in curve.times_s[-1:])


def _draw_run(
    column: Sequence[Axes], run: Named, style: dict[str, Any], unit_s: float | None
) -> None:
    """Training thin, tests with markers; `unit_s` None is against steps."""
    thin = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1, "alpha": 0.8}
    train, test, accuracy = run.learning
    _plot(column[0], train, unit_s, **thin, label=label(f"{run.name}: training"))
    if test.values:
        _plot(column[0], test, unit_s, **style, label=label(f"{run.name}: test"))
    if accuracy.values:
        shares = accuracy._replace(values=[100 * value for value in accuracy.values])
        _plot(column[1], shares, unit_s, **style)


def _plot(axes: Axes, curve: Curve, unit_s: float | None, **style: Any) -> None:
    xs = curve.steps if unit_s is None else [time_s / unit_s for time_s in curve.times_s]
    every = max(1, len(xs) // _MOST_MARKERS)
    if len(xs) == 1:  # a line of one point is not to be seen
        style = {"marker": ".", **style}
    axes.plot(xs, curve.values, markevery=every, markersize=5, **style)


def _finish(grid: Any, time_label: str) -> None:
    for row, name in zip(grid, ("loss", "test accuracy (%)"), strict=False):
        finish(row[0], x="", y=name)
        finish(row[1], x="", y="")
    grid[-1][0].set_xlabel("steps")
    grid[-1][1].set_xlabel(time_label)
    losses = [value for line in grid[0][0].lines for value in line.get_ydata()]
    if losses and min(losses) > 0 and max(losses) > 100 * min(losses):
        grid[0][0].set_yscale("log")
        plain_log_ticks(grid[0][0].yaxis)
