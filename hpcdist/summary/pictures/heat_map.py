"""Step time of every rank over time, so that a straggler is seen at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hpcdist.summary.pictures.series import HeatMap
from hpcdist.summary.pictures.style import label, long_unit, new_figure
from hpcdist.summary.text import format_time, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMES = 32
_QUANTILES = (0.01, 0.99)
"""Colours span these: one odd window must not make all others look alike."""


def draw(found: HeatMap, title: str) -> Figure:
    """A row per rank, the lowest on top."""
    import numpy as np

    times_s = np.array(found.times_s)
    unit_s, unit = time_unit(float(np.nanmedian(times_s)))
    long_s, unit_of_all = long_unit(found.whole_s)
    low, high = np.nanquantile(times_s / unit_s, _QUANTILES)
    figure = new_figure(9, 1.6 + min(6.0, max(1.0, 0.28 * len(found.ranks))))
    axes = figure.subplots()
    image = axes.imshow(
        times_s / unit_s,
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",  # told apart by all kinds of sight, and lighter is slower
        vmin=low,
        vmax=high if high > low else low + 1e-9,
        extent=(0, found.whole_s / long_s, len(found.ranks), 0),
    )
    _name_ranks(axes, found)
    axes.set_xlabel(f"time since the first step ({unit_of_all}); gaps: no steps")
    bar = figure.colorbar(image, ax=axes, extend="both")
    bar.set_label(f"step time without the\nwait for others ({unit})")
    figure.suptitle(title)
    return figure


def told(found: HeatMap) -> str:
    """What the picture shows, in words."""
    means = sorted(zip(map(_mean, found.times_s), found.ranks, strict=True))
    (low_s, fastest), (high_s, slowest) = means[0], means[-1]
    return (
        f"Mean over time: from {format_time(low_s)} (rank {fastest}) to "
        f"{format_time(high_s)} (rank {slowest})."
    )


def _mean(times_s: list[float]) -> float:
    known = [time_s for time_s in times_s if not math.isnan(time_s)]
    return sum(known) / len(known) if known else 0.0


def _name_ranks(axes: Any, found: HeatMap) -> None:
    every = -(-len(found.ranks) // _MOST_NAMES)
    shown = range(0, len(found.ranks), every)
    names = [
        label(f"{found.ranks[index]}" + (f" {host}" if (host := found.hosts[index]) else ""))
        for index in shown
    ]
    axes.set_yticks([index + 0.5 for index in shown], names)
    axes.set_ylabel("rank and its host")
