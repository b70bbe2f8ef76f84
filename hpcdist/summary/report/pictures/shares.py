"""Stacked bars of shares of the time, by size and by variant, phases by run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import error_bars, finish, label, new_figure, shared_legend
from hpcdist.base.statistics import Measure
from hpcdist.base.text import format_percent, shown, spread_text, time_unit
from hpcdist.rank.recorder import PHASES
from hpcdist.summary.figures.shares import COMPUTING, SHARES
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.report.runs import Row
from hpcdist.summary.report.shares import LOOKS
from hpcdist.summary.values import Comparison, Losses, VariantSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEPT: dict[str, Any] = {"color": "#009E73"}
"""The style of time that was not lost."""

MOST_RUNS = 24
_VISIBLE = 0.002
"""Smaller shares are thinner than a line."""
_HEIGHT = 0.66
_LABELLED = 0.08
"""A narrower bar has no room for its figure."""

_PHASE_STYLES: dict[str, dict[str, Any]] = {
    "data_wait": {"color": "#E69F00", "hatch": "//"},
    "host_to_device": {"color": "#F0E442", "hatch": "--"},
    "forward_backward": {"color": "#009E73"},
    "exposed_communication": {"color": "#0072B2", "hatch": ".."},
    "optimizer": {"color": "#CC79A7", "hatch": "\\\\"},
    "checkpoint": {"color": "#D55E00", "hatch": "xx"},
    OTHER: {"color": "#999999"},
}
_OTHER_PHASE: dict[str, Any] = {"color": "#56B4E9", "hatch": "++"}

Part = tuple[str, float, dict[str, Any]]
"""A part of a bar: its name, its width and its style."""


def draw_sizes(sizes: Sequence[Losses], names: Sequence[str]) -> Figure:
    """Draw one bar for each size: what is left and all shares are 100 %. A share that won time
    reaches left of zero: all to its right is longer by as much."""
    is_compared = bool(sizes[0].against)
    stacks, left = [], []
    for size in sizes:
        # Without another size, what is in no phase is neither computing for certain nor lost.
        kept = size.efficiency if size.against else size.shares[COMPUTING]
        lost = size.lost if size.against else size.shares | {COMPUTING: 0.0}
        name = "not lost" if size.against else "forward and backward"
        stacks.append([(name, 100 * kept, _KEPT), *_lost_parts(lost)])
        left.append(kept)
    ideal = "not lost, and lost to" if is_compared else "computing, and all else"
    x = f"share of all the time (%): {ideal}"
    figure = _draw_stacks(stacks, names, x=x, y="nodes x GPUs")
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


def draw_phases(rows: Sequence[Row]) -> Figure:
    """Draw one bar per run of what a step consists of; `rows` have phases."""
    of_rows = [row.run.phase_s or {} for row in rows]
    spent = {phase for phases in of_rows for phase, time_s in phases.items() if time_s}
    own = sorted(spent - {*PHASES, OTHER})
    ordered = [phase for phase in (*PHASES, *own, OTHER) if phase in spent]
    unit_s, unit = time_unit(max(sum(phases.values()) for phases in of_rows))
    stacks = [
        [
            (
                label(phase.replace("_", " ")),
                phases.get(phase, 0.0) / unit_s,
                _PHASE_STYLES.get(phase, _OTHER_PHASE),
            )
            for phase in ordered
        ]
        for phases in of_rows
    ]
    names = []
    for number, run in rows:
        variant = f" {run.variant}" if run.variant else ""
        names.append(label(f"#{number}{variant}: {run.nodes} x {run.gpus_per_node}"))
    return _draw_stacks(stacks, names, x=f"mean time per step ({unit})", y="")


def _draw_stacks(
    stacks: Sequence[Iterable[Part]], names: Sequence[str], *, x: str, y: str
) -> Figure:
    figure = new_figure(9, 1.9 + 0.5 * len(stacks))
    axes = figure.subplots()
    for place, parts in enumerate(stacks):
        _stack(axes, place, parts)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first one on top
    finish(axes, x=x, y=y)
    shared_legend(figure, [axes], columns=4)
    return figure


def _stack(axes: Axes, place: int, parts: Iterable[Part]) -> None:
    """Draw a bar whose parts stand behind each other; those below zero to the left of it."""
    right = left = 0.0
    for name, width, style in parts:
        begin = right if width >= 0 else left
        axes.barh(place, width, left=begin, height=_HEIGHT, label=name, edgecolor="white", **style)
        right, left = right + max(0.0, width), left + min(0.0, width)


def _lost_parts(lost: Mapping[str, float]) -> list[Part]:
    """Return the shares that can be seen, in percent; those below zero won time."""
    visible = [name for name in SHARES if abs(lost[name]) >= _VISIBLE]
    return [(LOOKS[name].label, 100 * lost[name], LOOKS[name].style) for name in visible]


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw the variants' speed-ups with their intervals, and what each step was lost to."""
    figure = new_figure(10, 2.2 + 0.5 * len(comparison.variants))
    speed, step = figure.subplots(1, 2, sharey=True)
    _draw_speedups(speed, comparison)
    for place, variant in enumerate(comparison.variants):
        _stack(step, place, _variant_parts(variant, comparison.baseline))
    step.axvline(0, color="#666666", linewidth=0.8)
    step.set_xlabel("share of the time (%): not lost, and lost to;\nleft of 0: gained")
    names = [shown(variant.name) for variant in comparison.variants]
    speed.set_yticks(range(len(names)), names)
    speed.set_ylim(len(names) - 0.5, -0.5)  # the first one on top
    shared_legend(figure, [speed, step], columns=4, loc="outside upper center", markerscale=0.4)
    return figure


def _draw_speedups(axes: Any, comparison: Comparison) -> None:
    from matplotlib import rcParams

    ink = rcParams["text.color"]  # black is not to be seen on a dark page
    ideals = []
    for place, variant in enumerate(comparison.variants):
        if variant.name == comparison.baseline:
            speedup = Measure(mean=1.0)
        elif variant.speedup is None:
            continue
        else:
            speedup = variant.speedup
        if not variant.is_without_its_gpus:
            ideals.append((variant.ideal, place))
        bars = None if speedup.interval is None else error_bars([speedup])
        style = {**_KEPT, "xerr": bars, "ecolor": ink, "capsize": 4}
        axes.barh(place, speedup.mean, height=_HEIGHT, **style)
        axes.annotate(  # beside the axes, where no bar and no error is
            spread_text(speedup, 2),
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    if ideals:
        axes.scatter(*zip(*ideals, strict=True), marker="|", s=700, color=ink, label="ideal")
    axes.set_xlim(left=0)
    axes.set_xlabel(f"times as fast as {shown(comparison.baseline)} (± interval)")


def _variant_parts(variant: VariantSummary, baseline: str) -> list[Part]:
    """Return the parts of the bar of a variant, as the table has them."""
    if variant.name == baseline and variant.samples_per_s is not None:
        return [("not lost", 100.0, _KEPT)]
    if variant.lost is None or variant.overall is None:
        return []
    return [("not lost", 100 * variant.overall, _KEPT), *_lost_parts(variant.lost)]
