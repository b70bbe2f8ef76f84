"""What a step of each run consists of, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import finish, label, new_figure, shared_legend
from hpcdist.base.text import time_unit
from hpcdist.rank.recorder import PHASES
from hpcdist.summary.figures.metrics import OTHER
from hpcdist.summary.report.runs import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RUNS = 24
_STYLES: dict[str, dict[str, Any]] = {
    "data_wait": {"color": "#E69F00", "hatch": "//"},
    "host_to_device": {"color": "#F0E442", "hatch": "--"},
    "forward_backward": {"color": "#009E73"},
    "exposed_communication": {"color": "#0072B2", "hatch": ".."},
    "optimizer": {"color": "#CC79A7", "hatch": "\\\\"},
    "checkpoint": {"color": "#D55E00", "hatch": "xx"},
    OTHER: {"color": "#999999"},
}
_UNKNOWN: dict[str, Any] = {"color": "#56B4E9", "hatch": "++"}


def draw(rows: Sequence[Row], title: str) -> Figure:
    """One bar per run; `rows` have phases."""
    phases = _phases(rows)
    unit_s, unit = time_unit(max(sum((row.run.phase_s or {}).values()) for row in rows))
    figure = new_figure(9, 1.8 + 0.42 * len(rows))
    axes = figure.subplots()
    lefts = [0.0] * len(rows)
    for phase in phases:
        widths = [(row.run.phase_s or {}).get(phase, 0.0) / unit_s for row in rows]
        style = _STYLES.get(phase, _UNKNOWN)
        name = label(phase.replace("_", " "))
        axes.barh(
            range(len(rows)), widths, left=lefts, height=0.7, label=name, edgecolor="white", **style
        )
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first one on top
    finish(axes, x=f"mean time per step ({unit})", y="")
    shared_legend(figure, [axes], columns=4)
    figure.suptitle(title)
    return figure


def _phases(rows: Sequence[Row]) -> list[str]:
    """Those that some run spent time in, in the order of a step."""
    spent = {phase for row in rows for phase, time_s in (row.run.phase_s or {}).items() if time_s}
    return [
        *(phase for phase in PHASES if phase in spent),
        *sorted(spent - {*PHASES, OTHER}),
        *([OTHER] if OTHER in spent else []),
    ]


def _name(row: Row) -> str:
    variant = f" {row.run.variant}" if row.run.variant else ""
    return label(f"#{row.number}{variant}: {row.run.nodes} x {row.run.gpus_per_node}")
