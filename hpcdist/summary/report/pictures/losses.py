"""What each size lost against the ideal, as stacked bars: what is left and all parts are 100 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcdist.base.plotting import finish, new_figure, shared_legend
from hpcdist.base.text import format_percent
from hpcdist.summary.figures.shares import COMPUTING, SHARES
from hpcdist.summary.report.pictures.parts_style import LABELS, STYLES, USED
from hpcdist.summary.values import Losses

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VISIBLE = 0.002
"""Smaller shares are thinner than a line."""
_HEIGHT = 0.66
_LABELLED = 0.08
"""A narrower bar has no room for its figure."""


def draw(sizes: Sequence[Losses], names: Sequence[str], title: str) -> Figure:
    """One bar for each size, the first on top. A part that won time reaches left of zero: all to
    its right is longer by as much."""
    figure = new_figure(9, 1.9 + 0.5 * len(sizes))
    axes = figure.subplots()
    labelled: set[str] = set()
    for place, size in enumerate(sizes):
        _draw_bar(axes, place, size, labelled)
    axes.set_yticks(range(len(sizes)), names)
    axes.set_ylim(len(sizes) - 0.4, -0.6)
    axes.axvline(0, color="#666666", linewidth=0.8)
    ideal = "not lost, and lost to" if sizes[0].against else "computing, and all else"
    finish(axes, x=f"share of all the time (%): {ideal}", y="nodes x GPUs")
    shared_legend(figure, [axes], columns=4)
    figure.suptitle(title)
    return figure


def _draw_bar(axes: Axes, place: int, size: Losses, labelled: set[str]) -> None:
    kept_name = "not lost" if size.against else "forward and backward"
    kept, lost = _kept_and_lost(size)
    right, left = 100 * kept, 0.0
    axes.barh(
        place,
        right,
        height=_HEIGHT,
        edgecolor="white",
        label=None if "kept" in labelled else kept_name,
        **USED,
    )
    labelled.add("kept")
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
    for part in SHARES:
        share = 100 * lost[part]
        if abs(share) < 100 * _VISIBLE:
            continue
        begin = right if share > 0 else left
        name = None if part in labelled else LABELS[part]
        axes.barh(
            place, share, left=begin, height=_HEIGHT, edgecolor="white", label=name, **STYLES[part]
        )
        labelled.add(part)
        if share > 0:
            right += share
        else:
            left += share


def _kept_and_lost(size: Losses) -> tuple[float, Mapping[str, float]]:
    """Without another size, what is in no phase is neither computing for certain nor lost."""
    if size.against:
        return size.efficiency, size.lost
    return size.shares[COMPUTING], size.shares | {COMPUTING: 0.0}
