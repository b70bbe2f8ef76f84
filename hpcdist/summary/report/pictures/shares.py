"""Stacked bars of shares of the time, by size and by variant, phases by run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import finish, label, new_figure, shared_legend
from hpcdist.base.text import format_percent, shown, time_unit
from hpcdist.rank.recorder import PHASES
from hpcdist.summary.figures.shares import (
    CHECKPOINTS,
    COMMUNICATION,
    COMPUTING,
    DATA,
    DEVICE,
    FIXED,
    RESTARTS,
    SHARES,
    STRAGGLERS,
    UNDIVIDED,
)
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.report.runs import Row
from hpcdist.summary.values import Comparison, Losses, VariantSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KEPT: dict[str, Any] = {"color": "#009E73"}
"""The style of time that was not lost."""

_STYLES: dict[str, dict[str, Any]] = {
    DATA: {"color": "#E69F00", "hatch": "//"},
    DEVICE: {"color": "#F0E442", "hatch": "--"},
    COMMUNICATION: {"color": "#0072B2", "hatch": ".."},
    STRAGGLERS: {"color": "#56B4E9", "hatch": "xx"},
    COMPUTING: {"color": "#CC79A7", "hatch": "\\\\"},
    FIXED: {"color": "#999999"},
    CHECKPOINTS: {"color": "#D55E00", "hatch": "oo"},
    RESTARTS: {"color": "#5D3A9B", "hatch": "++"},
    UNDIVIDED: {"color": "#DDDDDD", "hatch": "**"},
}
"""Colours of Okabe and Ito, told apart by all kinds of sight, with a violet for their black, which
a dark page hides; hatches for print."""

_LABELS = {
    DATA: "data wait",
    DEVICE: "to device",
    COMMUNICATION: "exposed communication",
    STRAGGLERS: "stragglers",
    COMPUTING: "slower computing",
    FIXED: "fixed cost",
    CHECKPOINTS: "checkpoints",
    RESTARTS: "restarts",
    UNDIVIDED: "in no phase",
}

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


def draw_sizes(sizes: Sequence[Losses], names: Sequence[str], title: str) -> Figure:
    """Draw one bar for each size, the first on top: what is left and all shares are 100 %. A share
    that won time reaches left of zero: all to its right is longer by as much."""
    figure = new_figure(9, 1.9 + 0.5 * len(sizes))
    axes = figure.subplots()
    for place, size in enumerate(sizes):
        _draw_size(axes, place, size)
    axes.set_yticks(range(len(sizes)), names)
    axes.set_ylim(len(sizes) - 0.4, -0.6)
    axes.axvline(0, color="#666666", linewidth=0.8)
    ideal = "not lost, and lost to" if sizes[0].against else "computing, and all else"
    finish(axes, x=f"share of all the time (%): {ideal}", y="nodes x GPUs")
    shared_legend(figure, [axes], columns=4)
    figure.suptitle(title)
    return figure


def _draw_size(axes: Axes, place: int, size: Losses) -> None:
    kept_name = "not lost" if size.against else "forward and backward"
    kept, lost = _kept_and_lost(size)
    _draw_bar(axes, place, kept, label=kept_name, **_KEPT)
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
    right, left = kept, 0.0
    for name in SHARES:
        share = lost[name]
        if abs(share) < _VISIBLE:
            continue
        begin = right if share > 0 else left
        _draw_bar(axes, place, share, begin, label=_LABELS[name], **_STYLES[name])
        if share > 0:
            right += share
        else:
            left += share


def _draw_bar(axes: Axes, place: int, share: float, left: float = 0.0, **style: Any) -> None:
    axes.barh(place, 100 * share, left=100 * left, height=_HEIGHT, edgecolor="white", **style)


def _kept_and_lost(size: Losses) -> tuple[float, Mapping[str, float]]:
    """Without another size, what is in no phase is neither computing for certain nor lost."""
    if size.against:
        return size.efficiency, size.lost
    return size.shares[COMPUTING], size.shares | {COMPUTING: 0.0}


def draw_phases(rows: Sequence[Row], title: str) -> Figure:
    """Draw one bar per run of what a step consists of; `rows` have phases."""
    phases = _phases(rows)
    unit_s, unit = time_unit(max(sum((row.run.phase_s or {}).values()) for row in rows))
    figure = new_figure(9, 1.8 + 0.42 * len(rows))
    axes = figure.subplots()
    lefts = [0.0] * len(rows)
    for phase in phases:
        widths = [(row.run.phase_s or {}).get(phase, 0.0) / unit_s for row in rows]
        style = _PHASE_STYLES.get(phase, _OTHER_PHASE)
        name = label(phase.replace("_", " "))
        axes.barh(
            range(len(rows)),
            widths,
            left=lefts,
            height=_HEIGHT,
            label=name,
            edgecolor="white",
            **style,
        )
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [_run_name(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first one on top
    finish(axes, x=f"mean time per step ({unit})", y="")
    shared_legend(figure, [axes], columns=4)
    figure.suptitle(title)
    return figure


def _phases(rows: Sequence[Row]) -> list[str]:
    """Return the phases that some run spent time in, in the order of a step."""
    spent = {phase for row in rows for phase, time_s in (row.run.phase_s or {}).items() if time_s}
    return [
        *(phase for phase in PHASES if phase in spent),
        *sorted(spent - {*PHASES, OTHER}),
        *([OTHER] if OTHER in spent else []),
    ]


def _run_name(row: Row) -> str:
    variant = f" {row.run.variant}" if row.run.variant else ""
    return label(f"#{row.number}{variant}: {row.run.nodes} x {row.run.gpus_per_node}")


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw the variants' speed-ups with their errors, and what each step was lost to."""
    figure = new_figure(10, 2.2 + 0.5 * len(comparison.variants))
    speed, step = figure.subplots(1, 2, sharey=True)
    _draw_speedups(speed, comparison)
    _draw_steps(step, comparison)
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
            mean, sd = 1.0, None
        elif variant.speedup is None:
            continue
        else:
            speedup = variant.speedup
            mean, sd = speedup.mean, speedup.sd if speedup.over == "runs" else None
        if not variant.is_without_its_gpus:
            ideals.append((variant.ideal, place))
        axes.barh(place, mean, height=_HEIGHT, **_KEPT, xerr=sd, ecolor=ink, capsize=4)
        axes.annotate(  # beside the axes, where no bar and no error is
            f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}",
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    if ideals:
        axes.scatter(*zip(*ideals, strict=True), marker="|", s=700, color=ink, label="ideal")
    axes.set_xlim(left=0)
    axes.set_xlabel(f"times as fast as {shown(comparison.baseline)} (± sd over the repeats)")


def _draw_steps(axes: Any, comparison: Comparison) -> None:
    for place, variant in enumerate(comparison.variants):
        left = 0.0
        for name, share in _shares(variant, comparison.baseline):
            label = _LABELS.get(name, "not lost")
            _draw_bar(axes, place, share, left, label=label, **_STYLES.get(name, _KEPT))
            left += share
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the time (%): not lost, and lost to")


def _shares(variant: VariantSummary, baseline: str) -> list[tuple[str, float]]:
    """Return the shares in the bar of a variant; one that won time is taken off the others."""
    if variant.name == baseline and variant.samples_per_s is not None:
        return [("kept", 1.0)]
    if variant.lost is None:
        return []
    lost = {name: max(0.0, variant.lost[name]) for name in SHARES}
    kept = min(1.0, variant.overall or 0.0)
    in_all = sum(lost.values())
    scale = (1 - kept) / in_all if in_all else 0.0
    return [
        ("kept", kept),
        *((name, share * scale) for name, share in lost.items() if share > _VISIBLE),
    ]
