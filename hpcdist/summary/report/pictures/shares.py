"""Stacked bars of shares of the time, by size and by variant, phases by run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdist.base.plotting import error_bars, finish, label, new_figure, shared_legend
from hpcdist.base.text import format_percent, spread_text, time_unit
from hpcdist.runs.events import PHASES
from hpcdist.summary.figures.shares import COMPUTING, SHARES
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.report.cells import LOOKS
from hpcdist.summary.report.runs import Row
from hpcdist.summary.values import Cell, Comparison

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

_PHASE_STYLES: dict[str, dict[str, Any]] = {
    "data_wait": {"color": "#E69F00", "hatch": "//"},
    "host_to_device": {"color": "#F0E442", "hatch": "--"},
    "forward_backward": {"color": "#009E73"},
    "exposed_communication": {"color": "#0072B2", "hatch": "\\\\"},
    "optimizer": {"color": "#CC79A7", "hatch": "||"},
    "checkpoint": {"color": "#D55E00", "hatch": "xx"},
    OTHER: {"color": "#999999"},
}
_OTHER_PHASE: dict[str, Any] = {"color": "#56B4E9", "hatch": "++"}

Part = tuple[str, float, dict[str, Any]]
"""A part of a bar: its name, its width and its style."""


class Bar(NamedTuple):
    """One bar."""

    name: str
    parts: Sequence[Part]


def draw_sizes(sizes: Sequence[Cell], names: Sequence[str], *, unit: str) -> Figure:
    """Draw one bar for each size: what is left and all shares are 100 %. A share that won time
    reaches left of zero: all to its right is longer by as much."""
    is_compared = bool(sizes[0].against)
    bars, left = [], []
    for cell, bar in zip(sizes, names, strict=True):
        shares, kept = cell.shares or {}, cell.overall or 0.0
        lost, name = cell.lost or {}, "not lost"
        if not cell.against:
            # Without another size, what is in no phase is neither computing for certain nor lost.
            kept, lost = shares[COMPUTING], shares | {COMPUTING: 0.0}
            name = _MIXED if cell.computing_has_communication else "forward and backward"
        parts = _lost_parts(lost, is_mixed=cell.computing_has_communication)
        bars.append(Bar(bar, [(name, 100 * kept, _KEPT), *parts]))
        left.append(kept)
    ideal = "not lost, and lost to" if is_compared else "computing, and all else"
    figure = _draw_bars(bars, x=f"share of all the time (%): {ideal}", y=f"nodes x {unit}")
    (axes,) = figure.axes
    axes.axvline(0, color="#666666", linewidth=0.8)
    for place, kept in enumerate(left):
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
    return figure


def draw_phases(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draw one bar per run of what a step consists of; `rows` have phases."""
    of_rows = [row.run.phase_s or {} for row in rows]
    longest_s = max(sum(phases.values()) for phases in of_rows)
    seen_s = _VISIBLE * longest_s
    spent = {phase for phases in of_rows for phase, time_s in phases.items() if time_s >= seen_s}
    own = sorted(spent - {*PHASES, OTHER})
    ordered = [phase for phase in (*PHASES, *own, OTHER) if phase in spent]
    unit_s, unit = time_unit(longest_s)
    bars = []
    for (_, run), name in zip(rows, names, strict=True):
        phases = run.phase_s or {}
        parts: list[Part] = [
            (
                label(phase.replace("_", " ")),
                phases.get(phase, 0.0) / unit_s,
                _PHASE_STYLES.get(phase, _OTHER_PHASE),
            )
            for phase in ordered
        ]
        bars.append(Bar(label(name), parts))
    return _draw_bars(bars, x=f"mean time per step ({unit})", y="")


def _draw_bars(bars: Sequence[Bar], *, x: str, y: str) -> Figure:
    figure = new_figure(9, 1.9 + 0.42 * len(bars))
    axes = figure.subplots()
    for place, bar in enumerate(bars):
        _stack(axes, place, bar)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)  # the first one on top
    finish(axes, x=x, y=y)
    shared_legend(figure, [axes], columns=4)
    return figure


def _stack(axes: Axes, place: int, bar: Bar) -> None:
    """Draw a bar whose parts stand behind each other; those below zero to the left of it."""
    right = left = 0.0
    for name, width, style in bar.parts:
        begin = right if width >= 0 else left
        axes.barh(place, width, left=begin, height=_HEIGHT, label=name, edgecolor="white", **style)
        right, left = right + max(0.0, width), left + min(0.0, width)


def _lost_parts(lost: Mapping[str, float], *, is_mixed: bool) -> list[Part]:
    """Return the shares that can be seen, in percent; those below zero won time. `is_mixed`: that
    of computing has communication in it."""
    visible = [name for name in SHARES if abs(lost[name]) >= _VISIBLE]
    labels = {name: LOOKS[name].label for name in visible}
    if is_mixed:
        labels[COMPUTING] = f"slower {_MIXED}"
    return [(labels[name], 100 * lost[name], LOOKS[name].style) for name in visible]


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw the variants' speed-ups with their intervals, and what each step was lost to."""
    has_losses = any(variant.lost for variant in comparison.variants)
    figure = new_figure(10 if has_losses else 7, 2.2 + 0.45 * len(comparison.variants))
    all_axes = figure.subplots(1, 2 if has_losses else 1, sharey=True, squeeze=False)[0]
    speed = all_axes[0]
    _draw_speedups(speed, comparison)
    if has_losses:
        step = all_axes[1]
        for place, variant in enumerate(comparison.variants):
            parts: list[Part] = []
            if variant.lost and variant.overall is not None:
                lost = _lost_parts(variant.lost, is_mixed=variant.computing_has_communication)
                parts = [("not lost", 100 * variant.overall, _KEPT), *lost]
            _stack(step, place, Bar(label(variant.name), parts))
        step.axvline(0, color="#666666", linewidth=0.8)
        step.set_xlabel("share of the time (%): not lost, and lost to;\nleft of 0: gained")
        step.grid(visible=True, axis="x", alpha=0.3)
        step.set_axisbelow(True)
    names = [label(variant.name) for variant in comparison.variants]
    speed.set_yticks(range(len(names)), names)
    speed.set_ylim(len(names) - 0.5, -0.5)  # the first one on top
    shared_legend(figure, list(all_axes), columns=4, markerscale=0.4)
    return figure


def _draw_speedups(axes: Any, comparison: Comparison) -> None:
    from matplotlib import rcParams

    ink = rcParams["text.color"]  # black is not to be seen on a dark page
    ideals, ends = [], [1.0]
    for place, variant in enumerate(comparison.variants):
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
    has_intervals = any(each.speedup and each.speedup.interval for each in comparison.variants)
    what = " (± interval)" if has_intervals else ""
    axes.set_xlabel(f"times as fast as {label(comparison.baseline)}{what}")
