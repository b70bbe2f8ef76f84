"""The figures as a picture: time per batch by workers, with error bars, one line per transform.

What else was compared has axes of its own, all with the same scale. Imports matplotlib where it is
used, and no window system.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import LINES
from hpcdist.bench.dataload.combinations import in_job, varied
from hpcdist.bench.dataload.figures import LoadingCell
from hpcdist.bench.dataload.series import Series, by_workers
from hpcdist.bench.dataload.words import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_AXES = 12
"""More would not be readable."""

_COLUMNS = 4
_LABEL_WIDTH = 34
_APART = 0.015  # of the axis


def draw(cells: Sequence[LoadingCell], title: str) -> bytes:
    """A PNG image."""
    file = io.BytesIO()
    make_figure(cells, title).savefig(file, format="png", dpi=150)
    return file.getvalue()


def make_figure(cells: Sequence[LoadingCell], title: str) -> Figure:
    """The picture, before it has a format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(cells)
    names = list(dict.fromkeys(cell.setting.transform for cell in cells))
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(7.0, 3.6 * columns), 3.4 * rows + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for index, (axes, (label, found)) in enumerate(
        zip(all_axes.flat, panels.items(), strict=False)
    ):
        step = _APART * max(cell.setting.workers for cell in cells)
        for series in found:
            number = names.index(series[0].setting.transform)
            _draw_series(axes, series, number, shift=step * (number - (len(names) - 1) / 2))
        _finish(axes, label, found, is_first=index % columns == 0)
    for axes in all_axes.flat[len(panels) :]:
        axes.remove()
    all_axes.flat[0].set_ylim(bottom=0)  # of all, once their common scale is known
    _legend(figure, list(all_axes.flat[: len(panels)]))
    figure.suptitle(title)
    return figure


def num_panels(cells: Sequence[LoadingCell]) -> int:
    """How many axes all of it would take; only the first MOST_AXES are drawn."""
    return len(_all_panels(cells))


def _panels(cells: Sequence[LoadingCell]) -> dict[str, list[Series]]:
    return dict(list(_all_panels(cells).items())[:MOST_AXES])


def _all_panels(cells: Sequence[LoadingCell]) -> dict[str, list[Series]]:
    """Series by what they have in common beside the transform."""
    keys = [key for key in varied([cell.setting for cell in cells]) if key not in _ON_AXES]
    nodes = sorted({cell.node for cell in cells})
    found: dict[str, list[Series]] = {}
    for node in nodes:
        for series in by_workers(cell for cell in cells if cell.node == node):
            setting = series[-1].setting  # with workers, whose keys the others lack
            words = [f"{key} {in_job(getattr(setting, key))}" for key in keys]
            if len(nodes) > 1:
                words.insert(0, f"node {node} ({series[0].host})")
            found.setdefault(", ".join(words), []).append(series)
    return found


_ON_AXES = ("workers", "transform")


def _draw_series(axes: Axes, series: Series, number: int, *, shift: float) -> None:
    """`shift`, along the workers, keeps bars of several lines apart."""
    means = [cell.mean_time_s * 1e3 for cell in series]
    sds = [(cell.sd_time_s or 0.0) * 1e3 for cell in series]
    axes.errorbar(
        [cell.setting.workers + shift for cell in series],
        means,
        yerr=sds,
        capsize=4,
        label=shortened(series[0].setting.transform),
        **LINES[number % len(LINES)],
    )


def _finish(axes: Axes, label: str, found: Sequence[Series], *, is_first: bool) -> None:
    workers = sorted({cell.setting.workers for series in found for cell in series})
    axes.set_xticks(workers, [str(number) for number in workers])
    axes.set_xlabel("workers per rank")
    if is_first:
        axes.set_ylabel("time per batch (ms), mean ± sd")
    axes.set_title(textwrap.fill(label, _LABEL_WIDTH), fontsize="medium")
    axes.grid(visible=True, alpha=0.3)


def _legend(figure: Any, all_axes: Sequence[Axes]) -> None:
    """One for all axes, which may lack some of the lines."""
    lines: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, handle)
    figure.legend(
        lines.values(),
        lines.keys(),
        title="transform",
        loc="outside lower center",
        ncols=min(4, len(lines)),
    )
