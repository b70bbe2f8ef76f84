"""The figures as a picture: time per batch and images/s by batch size, with error bars.

Imports matplotlib where it is used, and no window system.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base.plotting import LINES, plain_log_ticks
from hpcdist.bench.inference.figures import DATA_PARALLEL, PROCESS_PER_GPU, SINGLE, Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = dict(zip((SINGLE, DATA_PARALLEL, PROCESS_PER_GPU), LINES, strict=False))


def draw(cells: Sequence[Cell], title: str) -> bytes:
    """A PNG image."""
    file = io.BytesIO()
    make_figure(cells, title).savefig(file, format="png", dpi=150)
    return file.getvalue()


def make_figure(cells: Sequence[Cell], title: str) -> Figure:
    """The picture, before it has a format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    time_axes, rate_axes = figure.subplots(1, 2)
    ordered = sorted(cells, key=lambda cell: cell.batch_size)  # else lines run back and forth
    for strategy in dict.fromkeys(cell.strategy for cell in cells):
        timed = [cell for cell in ordered if cell.strategy == strategy and cell.mean_time_s]
        _draw_times(time_axes, strategy, timed)
        _draw_rates(rate_axes, strategy, timed)
    sizes = sorted({cell.batch_size for cell in cells})
    _finish(time_axes, sizes, "time per batch (ms)")
    _finish(rate_axes, sizes, "images/s")
    figure.suptitle(title)
    return figure


def _draw_times(axes: Axes, strategy: str, cells: Sequence[Cell]) -> None:
    means = [(cell.mean_time_s or 0.0) * 1e3 for cell in cells]
    sds = [(cell.sd_time_s or 0.0) * 1e3 for cell in cells]
    _error_bars(axes, strategy, cells, means, sds)


def _draw_rates(axes: Axes, strategy: str, cells: Sequence[Cell]) -> None:
    """The relative spread of a rate is about that of the time."""
    rates = [cell.images_per_s or 0.0 for cell in cells]
    sds = [
        rate * (cell.sd_time_s or 0.0) / (cell.mean_time_s or 1.0)
        for rate, cell in zip(rates, cells, strict=True)
    ]
    _error_bars(axes, strategy, cells, rates, sds)


def _error_bars(
    axes: Axes,
    strategy: str,
    cells: Sequence[Cell],
    values: Sequence[float],
    sds: Sequence[float],
) -> None:
    devices = max((cell.devices for cell in cells), default=1)
    # On a logarithmic axis a bar that reached 0 would have no lower end.
    lower = [min(sd, 0.9 * value) for value, sd in zip(values, sds, strict=True)]
    options: dict[str, Any] = {**_STYLES.get(strategy, LINES[-1]), "capsize": 4}
    axes.errorbar(
        [cell.batch_size for cell in cells],
        values,
        yerr=[lower, list(sds)],
        label=f"{strategy} ({devices} device{'s' if devices > 1 else ''})",
        **options,
    )


def _finish(axes: Axes, sizes: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_log_ticks(axes.yaxis)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("images per batch, over all devices")
    axes.set_ylabel(f"{label}, mean ± sd")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
