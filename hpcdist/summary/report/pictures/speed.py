"""Pictures of cells: speed against size, where the time goes, and which value is best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import (
    LINES,
    error_bars,
    finish,
    label,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.base.statistics import Measure
from hpcdist.base.text import format_percent, spread_text
from hpcdist.summary.figures.shares import COMPUTING, SHARES
from hpcdist.summary.report.best import Value
from hpcdist.summary.report.cells import LEAST_SHOWN, LOOKS
from hpcdist.summary.values import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEPT: dict[str, Any] = {"color": "#009E73"}
"""The style of time that was not lost."""
_TIMES = "#4C5B6B"
"""Colour of speed-ups, which no share has."""
_HEIGHT = 0.66
_LABELLED = 0.08
"""A narrower bar has no room for its figure."""
_ROOM = 1.45
"""Length of an axis of speed-ups, as a multiple of the largest: for the figures behind the bars."""
_LOG_FROM = 10.0
"""Values that differ by such a factor stand on a logarithmic axis."""


def draw_scaling(cells: Sequence[Cell]) -> Figure:
    """Draw the speed-ups of the table of sizes, for one group of several sizes, smallest first,
    with the ideal and the forecast; on logarithmic axes the ideal is a straight line, and no size
    hides another."""
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    smallest = cells[0].num_gpus
    later = [(cell.num_gpus, cell.speedup) for cell in cells[1:] if cell.speedup]
    points: list[tuple[int, Measure]] = [(smallest, Measure(mean=1.0)), *later]
    to_come = [
        (size.gpus, size.speedup) for cell in cells if cell.forecast for size in cell.forecast.sizes
    ]
    ticks = sorted({gpus for gpus, _ in (*points, *to_come)})
    axes.plot(
        ticks, [gpus / smallest for gpus in ticks], color="#888888", linestyle=":", label="ideal"
    )
    sizes, measures = zip(*points, strict=True)
    means = [one.mean for one in measures]
    # As many GPUs on more nodes are no step of the line.
    style = LINES[0] if len({*sizes}) == len(sizes) else LINES[0] | {"linestyle": "none"}
    axes.errorbar(sizes, means, yerr=error_bars(measures), capsize=4, label="measured", **style)
    for place in zip(sizes, means, strict=True):
        axes.annotate(f"{place[1]:.3g}", place, xytext=(6, -12), textcoords="offset points")
    if to_come:  # it begins at the largest size that was measured
        ends = [
            (one.mean, one.interval.low, one.interval.high) if one.interval else (one.mean,) * 3
            for _, one in to_come
        ]
        line, lows, highs = zip((means[-1],) * 3, *ends, strict=True)
        gpus = [sizes[-1], *(size for size, _ in to_come)]
        style = LINES[0] | {"marker": "", "linestyle": "--"}
        axes.plot(gpus, line, **style, label="forecast")
        band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
        axes.fill_between(gpus, lows, highs, **band, label="its 95 % interval")
    axes.margins(x=0.25, y=0.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    axes.set_xticks(list(ticks), [f"{count:,}" for count in ticks])
    axes.minorticks_off()
    spread = " (± 95 % interval)" if any(one.interval for one in measures) else ""
    x = "ranks on CPUs" if any(cell.num_cpus is not None for cell in cells) else "GPUs"
    finish(axes, x=x, y=f"speed-up against {smallest}{spread}")
    shared_legend(figure, [axes])
    return figure


def draw_bars(cells: Sequence[Cell], names: Sequence[str], *, y: str = "") -> Figure:
    """Draw one bar for each cell: what is left and all shares are 100 %. A share that won time
    reaches left of zero: all to its right is longer by as much. Variants have their speed-ups in a
    panel of its own."""
    panels = ["speed"] if any(cell.name for cell in cells) else []
    panels += ["shares"] if any(cell.lost for cell in cells) else []
    figure = new_figure(10 if len(panels) > 1 else 8, 2.2 + 0.45 * len(cells))
    all_axes = dict(
        zip(panels, figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], strict=True)
    )
    for panel, axes in all_axes.items():
        if panel == "speed":
            _draw_speedups(axes, cells)
            continue
        for place, cell in enumerate(cells):
            if cell.lost:
                _stack(axes, place, cell)
        axes.axvline(0, color="#666666", linewidth=0.8)
        finish(axes, x="share of all the time (%):\nnot lost, and lost to; left of 0: gained", y="")
    first = next(iter(all_axes.values()))
    first.set_ylabel(y)
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.4, -0.6)  # the first one on top
    shared_legend(figure, [*all_axes.values()], columns=4, markerscale=0.4)
    return figure


def _stack(axes: Axes, place: int, cell: Cell) -> None:
    """Draw a bar of what was kept and of the shares that can be seen, behind each other; shares
    that won time stand to the left of zero."""
    lost, kept, name = cell.lost or {}, cell.overall or 0.0, "not lost"
    labels = {share: LOOKS[share].label for share in SHARES}
    if cell.computing_has_communication:
        labels[COMPUTING] = "slower computing and communication"
    parts = [(name, kept, _KEPT)]
    parts += [
        (labels[share], lost[share], LOOKS[share].style)
        for share in SHARES
        if abs(lost[share]) >= LEAST_SHOWN
    ]
    right = left = 0.0
    for text, share, style in parts:
        begin, width = right if share >= 0 else left, 100 * share
        axes.barh(place, width, left=begin, height=_HEIGHT, label=text, edgecolor="white", **style)
        right, left = right + max(0.0, width), left + min(0.0, width)
    if kept >= _LABELLED:
        axes.annotate(
            f"{format_percent(kept)} %",
            (100 * min(1.0, kept), place),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            color="white",
        )


def _draw_speedups(axes: Any, cells: Sequence[Cell]) -> None:
    from matplotlib import rcParams

    ink = rcParams["text.color"]  # black is not to be seen on a dark page
    ideals, ends = [], [1.0]
    for place, cell in enumerate(cells):
        if (speedup := cell.speedup) is None:
            continue
        behind = speedup.interval.high if speedup.interval else speedup.mean
        if not cell.is_without_its_gpus:
            ideals.append((cell.ideal, place))
            behind = max(behind, cell.ideal)
        error = error_bars([speedup]) if speedup.interval else None
        axes.barh(
            place, speedup.mean, height=_HEIGHT, xerr=error, ecolor=ink, capsize=4, color=_TIMES
        )
        # Behind the bar, its error and its ideal.
        where = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(spread_text(speedup, 2), (behind, place), **where)
        ends.append(behind)
    if ideals:
        axes.scatter(*zip(*ideals, strict=True), marker="|", s=500, color=ink, label="ideal")
    axes.set_xlim(0, _ROOM * max(ends))
    what = " (± interval)" if any(cell.speedup and cell.speedup.interval for cell in cells) else ""
    finish(axes, x=f"times as fast as {label(cells[0].name)}{what}", y="")


def draw_values(values: Sequence[Value]) -> Figure:
    """Draw what runs came to, with its interval, against the values of a setting; of two settings,
    with a line for each value of the second."""
    keys, what = list(values[0].settings), values[0].quantity
    # Values of more settings than two have names of their own.
    are_few = len(keys) <= 2
    names = [value.settings[keys[0]] if are_few else value.name for value in values]
    is_numeric = True
    try:
        places = {name: float(name) for name in names}
    except ValueError:
        is_numeric, places = False, dict(zip(dict.fromkeys(names), itertools.count(0.0)))
    lines: dict[str, list[tuple[float, Measure]]] = {}
    for name, value in zip(names, values, strict=True):
        second = f"{label(keys[1])}: {label(value.settings[keys[1]])}" if len(keys) == 2 else ""
        lines.setdefault(second, []).append((places[name], value.result))
    figure = new_figure(7, 4)
    axes = figure.subplots()
    for (second, points), style in zip(sorted(lines.items()), itertools.cycle(LINES)):
        points.sort(key=lambda point: point[0])
        axes.errorbar(
            [place for place, _ in points],
            [result.mean for _, result in points],
            yerr=error_bars([result for _, result in points]),
            capsize=4,
            label=second or None,
            **(style if is_numeric else style | {"linestyle": "none"}),
        )
    if not is_numeric:
        axes.set_xticks([*places.values()], [label(name) for name in places])
        axes.margins(x=0.2)
    elif min(places.values()) > 0 and max(places.values()) >= _LOG_FROM * min(places.values()):
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    spread = ", mean ± 95 % interval" if any(value.result.interval for value in values) else ""
    unit = f" ({what.unit})" if what.unit else ""
    finish(axes, x=label(keys[0]) if are_few else "", y=f"{what.name}{unit}{spread}")
    if len(lines) > 1:
        shared_legend(figure, [axes])
    return figure
