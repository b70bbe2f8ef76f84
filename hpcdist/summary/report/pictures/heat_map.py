"""Step time of every rank over time, so that a straggler is seen at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdist.base.plotting import label, long_unit, new_figure
from hpcdist.base.text import format_time, time_unit
from hpcdist.summary.report.pictures.series import HeatMap

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_MOST_NAMES = 32
_MOST_ROWS = 128
_QUANTILES = (0.01, 0.99)
"""Colours span these: one odd window must not make all others look alike."""


class _Rows(NamedTuple):
    """What is drawn: a row for each rank, or for so many neighbours that rows stay visible."""

    size: int
    """Ranks in a row."""
    times_s: NDArray[np.float64]
    """By row and column, of the slowest rank in it."""


def draw(found: HeatMap, title: str) -> Figure:
    """A row per rank, the lowest on top."""
    rows = _rows(found)
    unit_s, unit = time_unit(_median(rows.times_s))
    long_s, unit_of_all = long_unit(found.whole_s)
    low_s, high_s = _limits(rows.times_s)
    figure = new_figure(9, 1.6 + min(6.0, max(1.0, 0.28 * len(rows.times_s))))
    axes = figure.subplots()
    image = axes.imshow(
        rows.times_s / unit_s,
        aspect="auto",
        interpolation="nearest",
        cmap="cividis",  # told apart by all kinds of sight, and lighter is slower
        vmin=low_s / unit_s,
        vmax=high_s / unit_s,
        extent=(0, found.whole_s / long_s, len(rows.times_s), 0),
    )
    _name_rows(axes, found, rows.size)
    axes.set_xlabel(f"time since the first step ({unit_of_all}); gaps: no steps")
    bar = figure.colorbar(image, ax=axes, extend="both")
    bar.set_label(f"step time without the\nwait for others ({unit})")
    figure.suptitle(title)
    return figure


def told(found: HeatMap) -> str:
    """What the picture shows, in words."""
    means = sorted(zip(map(_mean, found.times_s), range(len(found.ranks)), strict=True))
    (low_s, fastest), (high_s, slowest) = means[0], means[-1]
    return (
        f"Mean over time: from {format_time(low_s)} (rank {_name(found, fastest)}) to "
        f"{format_time(high_s)} (rank {_name(found, slowest)})."
    )


def _mean(times_s: list[float]) -> float:
    known = [time_s for time_s in times_s if not math.isnan(time_s)]
    return sum(known) / len(known) if known else 0.0


def _rows(found: HeatMap) -> _Rows:
    import numpy as np

    size = -(-len(found.ranks) // _MOST_ROWS)
    starts = range(0, len(found.ranks), size)
    # fmax knows a time from a gap.
    rows = [np.fmax.reduce(np.array(found.times_s[start : start + size])) for start in starts]
    return _Rows(size, np.array(rows))


def _median(times_s: NDArray[np.float64]) -> float:
    import numpy as np

    return float(np.nanmedian(times_s))


def _limits(times_s: NDArray[np.float64]) -> tuple[float, float]:
    """As most times are, but far enough for a rank that is slow for most of its time."""
    import numpy as np

    low_s, high_s = np.nanquantile(times_s, _QUANTILES)
    slowest_s = max(float(np.median(row[~np.isnan(row)])) for row in times_s)
    low_s, high_s = float(low_s), max(float(high_s), slowest_s)
    return low_s, high_s if high_s > low_s else low_s + 1e-9


def _name_rows(axes: Any, found: HeatMap, size: int) -> None:
    num_rows = -(-len(found.ranks) // size)
    shown = range(0, num_rows, -(-num_rows // _MOST_NAMES))
    names = [_name(found, row * size) for row in shown]
    axes.set_yticks([row + 0.5 for row in shown], names)
    axes.set_ylabel("rank and its host" if size == 1 else f"slowest of each {size} ranks, from")


def _name(found: HeatMap, index: int) -> str:
    host = found.hosts[index]
    return label(f"{found.ranks[index]}" + (f" {host}" if host else ""))
