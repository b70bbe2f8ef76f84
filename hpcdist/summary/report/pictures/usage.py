"""What a run used over time: GPUs above CPUs and memory, all against one axis of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdist.base.plotting import LINES, finish, long_unit, new_figure, shared_legend
from hpcdist.base.text import number_of
from hpcdist.summary.report.pictures.usage_series import GPU_BUSY, Line, UsageSeries

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST_LINES = len(LINES)
_MOST_MARKERS = 12
_NUM_COLUMNS = 240
_HEADROOM = 1.1
_ALL = "mean of all, with the least and the most"


def draw(found: UsageSeries, title: str) -> Figure:
    """A panel for each quantity; of more GPUs or nodes than can be told apart, how they range."""
    figure = new_figure(9, 1.5 + 1.7 * len(found.panels))
    column = figure.subplots(len(found.panels), 1, squeeze=False, sharex=True)[:, 0]
    longest_s = max(_longest_s(lines) for lines in found.panels.values())
    unit_s, unit = long_unit(longest_s)
    for axes, (panel, lines) in zip(column, found.panels.items(), strict=True):
        if len(lines) <= MOST_LINES:
            _draw_lines(axes, lines, unit_s)
        else:
            _draw_band(axes, lines, unit_s)
        finish(axes, x="", y=panel.replace(" (", "\n("))
        axes.set_ylim(0, 105 if panel == GPU_BUSY else _HEADROOM * _largest(lines) or None)
    column[-1].set_xlabel(f"time since the ranks began ({unit})")
    shared_legend(figure, list(column))
    figure.suptitle(title)
    return figure


def told(found: UsageSeries) -> str:
    """What the picture shows, in words."""
    means = [f"{panel}: {_range(lines)}" for panel, lines in found.panels.items()]
    left_out = found.num_left_out
    less = f" {number_of(left_out, 'node')} of {found.num_nodes} left out." if left_out else ""
    return f"Mean over time, {'; '.join(means)}.{less}"


def _range(lines: Sequence[Line]) -> str:
    means = [_mean(line) for line in lines]
    low, high = f"{min(means):.3g}", f"{max(means):.3g}"
    return low if low == high else f"{low} to {high}"


def _mean(line: Line) -> float:
    pairs = zip(line.values, line.lengths_s, strict=True)
    whole = sum(value * length_s for value, length_s in pairs if not math.isnan(value))
    return whole / (sum(line.lengths_s) or math.inf)


def _longest_s(lines: Sequence[Line]) -> float:
    return max(line.times_s[-1] for line in lines)


def _largest(lines: Sequence[Line]) -> float:
    return max(value for line in lines for value in line.values if not math.isnan(value))


def _draw_lines(axes: Axes, lines: Sequence[Line], unit_s: float) -> None:
    for line, style in zip(lines, LINES, strict=False):
        axes.plot(
            [time_s / unit_s for time_s in line.times_s],
            line.values,
            label=line.name,
            markersize=4,
            markevery=max(1, len(line.values) // _MOST_MARKERS),
            **style,
        )


def _draw_band(axes: Axes, lines: Sequence[Line], unit_s: float) -> None:
    import numpy as np

    times_s = np.linspace(0.0, _longest_s(lines), _NUM_COLUMNS)
    values = np.array([_at(line, times_s) for line in lines])
    is_known = ~np.isnan(values)
    counts = is_known.sum(0)
    mean = np.where(counts, np.where(is_known, values, 0.0).sum(0) / np.maximum(counts, 1), np.nan)
    style = LINES[0]
    # fmin and fmax know a value from a gap.
    low, high = np.fmin.reduce(values), np.fmax.reduce(values)
    axes.fill_between(times_s / unit_s, low, high, color=style["color"], alpha=0.25)
    axes.plot(times_s / unit_s, mean, color=style["color"], label=_ALL)


def _at(line: Line, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The line at these times; not known before, after and between its attempts."""
    import numpy as np

    found = np.full(len(times_s), np.nan)
    own_s, values = np.array(line.times_s), np.array(line.values)
    for part in np.split(np.arange(len(own_s)), np.flatnonzero(np.isnan(own_s))):
        known = part[~np.isnan(own_s[part])]
        if len(known):
            half_s = np.array(line.lengths_s)[known[[0, -1]]] / 2
            first_s, last_s = own_s[known[0]] - half_s[0], own_s[known[-1]] + half_s[1]
            within = (times_s >= first_s) & (times_s <= last_s)
            found[within] = np.interp(times_s[within], own_s[known], values[known])
    return found
