"""The table and the picture of the benchmark inference."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from hpcdist.base.plotting import LINES, Picture, first, label, new_figure, plain_log_ticks
from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, count, each, number
from hpcdist.base.text import UNDEFINED, decimals_for, format_mean_sd, number_of
from hpcdist.bench.benchmark import Benchmark, NumberedResult, rate_measure, three_digits
from hpcdist.bench.inference.figures import (
    DATA_PARALLEL,
    PROCESS_PER_GPU,
    SINGLE,
    InferenceCell,
    InferenceSummary,
    compare_with_single,
)
from hpcdist.runs.run import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = dict(zip((SINGLE, DATA_PARALLEL, PROCESS_PER_GPU), LINES, strict=False))
_MOST_PICTURES = 3


class InferenceBenchmark(Benchmark[InferenceSummary]):
    """Calls of a model by batch size, and by how a batch is spread over GPUs."""

    key = "inference"
    events: ClassVar = {"inference": InferenceCell}
    measurements: ClassVar = {"inference": InferenceCell}

    def summarize(self, events: Mapping[str, Sequence[Any]]) -> InferenceSummary | None:
        """Return all cells, and what they mean."""
        cells: Sequence[InferenceCell] = events["inference"]
        if not cells:
            return None
        return InferenceSummary(cells=list(cells), conclusions=compare_with_single(cells))

    def conclusions(self, result: InferenceSummary) -> list[str]:
        """Return the most that one process and one device reach, and what is compared with it."""
        timed = [cell for cell in result.cells if cell.strategy == SINGLE and cell.images_per_s]
        if not timed:
            return result.conclusions
        best = max(timed, key=lambda cell: cell.images_per_s or 0.0)
        reached = (
            f"single reaches {best.images_per_s or 0.0:,.0f} images/s, "
            f"with {number_of(best.batch_size, 'image')} per batch."
        )
        return [reached, *result.conclusions]

    def tables(self, result: InferenceSummary, number: int) -> Iterator[Table[Any]]:
        """Make the table by batch size and strategy."""
        yield _batch_table(result, number)

    def measured(self, result: InferenceSummary) -> Iterator[tuple[str, Struct]]:
        """List all cells."""
        return (("inference", cell) for cell in result.cells)

    def rates(self, result: InferenceSummary) -> Iterator[tuple[str, Measure]]:
        """List the images per second of each strategy and batch size."""
        for cell in result.cells:
            if cell.images_per_s is not None:
                yield (
                    f"images/s, {cell.strategy}, batch {cell.batch_size}",
                    rate_measure(
                        cell.images_per_s,
                        mean_time_s=cell.mean_time_s,
                        sd_time_s=cell.sd_time_s,
                        repeats=cell.repeats,
                    ),
                )

    def points(self, result: InferenceSummary) -> Iterator[tuple[str, int, float]]:
        """List images per second by batch size."""
        for cell in result.cells:
            if cell.images_per_s is not None:
                yield f"inference/{cell.strategy}_images_per_s", cell.batch_size, cell.images_per_s

    def pictures(
        self,
        job: str,  # noqa: ARG002
        runs: Sequence[NumberedResult[InferenceSummary]],
    ) -> Iterator[Picture]:
        """List the pictures of the newest runs, which also stand in their folders."""
        drawn, left_out = first(runs[::-1], _MOST_PICTURES)
        for run in drawn:
            if any(cell.mean_time_s for cell in run.result.cells):
                title = f"#{run.number} {label(run.run)}: inference"
                draw = functools.partial(make_figure, run.result.cells, title)
                description = f"Time per batch and images/s by batch size.{left_out}"
                yield Picture(f"{slug(run.run)}-inference", title, description, draw)


def _batch_table(summary: InferenceSummary, number_of_run: int) -> Table[InferenceCell]:
    ordered = sorted(summary.cells, key=lambda cell: cell.batch_size)
    singles = {cell.batch_size: cell.mean_time_s for cell in ordered if cell.strategy == SINGLE}

    def time(cell: InferenceCell) -> InferenceCell | str:
        return cell if _is_timed(cell) else cell.error or UNDEFINED

    def against(cell: InferenceCell) -> float | None:
        single_s = singles.get(cell.batch_size)
        return single_s / cell.mean_time_s if single_s and cell.mean_time_s else None

    columns: list[Column[InferenceCell]] = [
        Column("batch", lambda cell: cell.batch_size, count, unit="images"),
        Column("strategy", lambda cell: cell.strategy, align="left"),
        Column("devices", lambda cell: cell.devices),
        Column("time per batch", time, each(_mean_sd_ms), unit="ms", sort=_sort_time),
        Column(
            "first\ncall",
            lambda cell: cell.cold_time_s if _is_timed(cell) else None,
            three_digits(1e-3),
            unit="ms",
        ),
        Column(
            "images/s",
            lambda cell: (cell.images_per_s or 0.0) if _is_timed(cell) else None,
            number(0),
        ),
        Column(
            "against\nsingle", lambda cell: against(cell) if _is_timed(cell) else None, number(2)
        ),
    ]
    return Table(f"#{number_of_run}: inference by batch size, mean ± sd", columns, ordered)


def _is_timed(cell: InferenceCell) -> bool:
    return bool(cell.mean_time_s) and cell.cold_time_s is not None


def _sort_time(cell: InferenceCell | str) -> float | str | None:
    return cell if isinstance(cell, str) else cell.mean_time_s


def _mean_sd_ms(cell: InferenceCell) -> str:
    mean_ms = (cell.mean_time_s or 0.0) * 1e3
    sd_ms = None if cell.sd_time_s is None else cell.sd_time_s * 1e3
    return format_mean_sd(mean_ms, sd_ms, decimals_for([mean_ms]))


def make_figure(cells: Sequence[InferenceCell], title: str) -> Figure:
    """Draw time per batch and images/s by batch size, with error bars."""
    figure = new_figure(10, 4.5)
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


def _draw_times(axes: Axes, strategy: str, cells: Sequence[InferenceCell]) -> None:
    means = [(cell.mean_time_s or 0.0) * 1e3 for cell in cells]
    sds = [(cell.sd_time_s or 0.0) * 1e3 for cell in cells]
    _error_bars(axes, strategy, cells, means, sds)


def _draw_rates(axes: Axes, strategy: str, cells: Sequence[InferenceCell]) -> None:
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
    cells: Sequence[InferenceCell],
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
        label=f"{strategy} ({number_of(devices, 'device')})",
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
