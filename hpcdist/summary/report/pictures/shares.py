"""Stacked bars of shares of the time, by size and by variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import error_bars, finish, label, new_figure, shared_legend
from hpcdist.base.text import format_percent, spread_text
from hpcdist.summary.figures.shares import COMPUTING, SHARES
from hpcdist.summary.report.cells import LOOKS
from hpcdist.summary.values import Cell, Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEPT: dict[str, Any] = {"color": "#009E73"}
"""The style of time that was not lost."""

MOST_RUNS = 24
_VISIBLE = 0.005
"""Smaller shares are 0 % in a table, and thinner than a line."""
_MIXED = "computing and communication"
_ROOM = 1.3
"""Length of an axis of speed-ups, as a multiple of the largest: for the figures behind the bars."""
_WIDE_TEXT, _MORE_ROOM = 12, 1.25
"""Characters of a figure that needs more of it, and by how much."""
_HEIGHT = 0.66
_LABELLED = 0.08
"""A narrower bar has no room for its figure."""


def draw_sizes(sizes: Sequence[Cell], names: Sequence[str], *, unit: str) -> Figure:
    """Draw one bar for each size: what is left and all shares are 100 %. A share that won time
    reaches left of zero: all to its right is longer by as much."""
    figure = new_figure(9, 1.9 + 0.42 * len(sizes))
    axes = figure.subplots()
    for place, cell in enumerate(sizes):
        shares, kept = cell.shares or {}, cell.overall or 0.0
        lost, name = cell.lost or {}, "not lost"
        if not cell.against:
            # Without another size, what is in no phase is neither computing for certain nor lost.
            kept, lost = shares[COMPUTING], shares | {COMPUTING: 0.0}
            name = _MIXED if cell.computing_has_communication else "forward and backward"
        _stack(axes, place, (name, kept), lost, is_mixed=cell.computing_has_communication)
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
    axes.set_yticks(range(len(sizes)), names)
    axes.set_ylim(len(sizes) - 0.4, -0.6)  # the first one on top
    axes.axvline(0, color="#666666", linewidth=0.8)
    ideal = "not lost, and lost to" if sizes[0].against else "computing, and all else"
    finish(axes, x=f"share of all the time (%): {ideal}", y=f"nodes x {unit}")
    shared_legend(figure, [axes], columns=4)
    return figure


def _stack(
    axes: Axes, place: int, kept: tuple[str, float], lost: Mapping[str, float], *, is_mixed: bool
) -> None:
    """Draw a bar of what was kept and of the shares that can be seen, behind each other; shares
    that won time stand to the left of zero. `is_mixed`: that of computing has communication in
    it."""
    visible = [name for name in SHARES if abs(lost[name]) >= _VISIBLE]
    labels = {name: LOOKS[name].label for name in visible}
    if is_mixed:
        labels[COMPUTING] = f"slower {_MIXED}"
    parts = [(*kept, _KEPT), *((labels[name], lost[name], LOOKS[name].style) for name in visible)]
    right = left = 0.0
    for label_of, share, style in parts:
        begin, width = right if share >= 0 else left, 100 * share
        axes.barh(
            place, width, left=begin, height=_HEIGHT, label=label_of, edgecolor="white", **style
        )
        right, left = right + max(0.0, width), left + min(0.0, width)


def draw_comparison(comparison: Group) -> Figure:
    """Draw the variants' speed-ups with their intervals, and what each step was lost to."""
    has_losses = any(variant.against for variant in comparison.cells)
    figure = new_figure(10 if has_losses else 7, 2.2 + 0.45 * len(comparison.cells))
    all_axes = figure.subplots(1, 2 if has_losses else 1, sharey=True, squeeze=False)[0]
    speed = all_axes[0]
    _draw_speedups(speed, comparison)
    if has_losses:
        step = all_axes[1]
        for place, variant in enumerate(comparison.cells):
            if variant.lost and variant.overall is not None:
                is_mixed = variant.computing_has_communication
                _stack(step, place, ("not lost", variant.overall), variant.lost, is_mixed=is_mixed)
        step.axvline(0, color="#666666", linewidth=0.8)
        step.set_xlabel("share of the time (%): not lost, and lost to;\nleft of 0: gained")
        step.grid(visible=True, axis="x", alpha=0.3)
        step.set_axisbelow(True)
    names = [label(variant.name) for variant in comparison.cells]
    speed.set_yticks(range(len(names)), names)
    speed.set_ylim(len(names) - 0.5, -0.5)  # the first one on top
    shared_legend(figure, list(all_axes), columns=4, markerscale=0.4)
    return figure


def _draw_speedups(axes: Any, comparison: Group) -> None:
    from matplotlib import rcParams

    ink = rcParams["text.color"]  # black is not to be seen on a dark page
    ideals, ends = [], [1.0]
    for place, variant in enumerate(comparison.cells):
        speedup = variant.speedup
        if speedup is None:
            continue
        if not variant.is_without_its_gpus:
            ideals.append((variant.ideal, place))
        high = speedup.interval.high if speedup.interval else speedup.mean
        behind = high if variant.is_without_its_gpus else max(high, variant.ideal)
        error = None if speedup.interval is None else error_bars([speedup])
        axes.barh(place, speedup.mean, height=_HEIGHT, **_KEPT, xerr=error, ecolor=ink, capsize=4)
        text = spread_text(speedup, 2)
        axes.annotate(  # behind the bar, its error and its ideal
            text,
            (behind, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
        is_wide = len(text) > _WIDE_TEXT
        ends.append(behind * (_MORE_ROOM if is_wide else 1))
    if ideals:
        axes.scatter(*zip(*ideals, strict=True), marker="|", s=500, color=ink, label="ideal")
    axes.set_xlim(0, _ROOM * max(ends))
    has_intervals = any(each.speedup and each.speedup.interval for each in comparison.cells)
    what = " (± interval)" if has_intervals else ""
    axes.set_xlabel(f"times as fast as {label(comparison.cells[0].name)}{what}")
