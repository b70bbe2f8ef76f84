"""The table and the picture of the benchmark inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdist.base.plotting import (
    LINES,
    Picture,
    counts_axis,
    finish,
    new_figure,
    plain_log_ticks,
    shared_legend,
)
from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, count, each, mean_interval, number
from hpcdist.base.text import UNDEFINED, number_of
from hpcdist.bench.benchmark import (
    Benchmark,
    NumberedResult,
    draw_spreads,
    rate_measure,
    spread,
    three_digits,
)
from hpcdist.bench.inference.figures import (
    DATA_PARALLEL,
    PROCESS_PER_GPU,
    SINGLE,
    InferenceCell,
    InferenceSummary,
    compare_with_single,
    pair_with_single,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = dict(zip((SINGLE, DATA_PARALLEL, PROCESS_PER_GPU), LINES, strict=False))


class InferenceBenchmark(Benchmark[InferenceSummary]):
    """Calls of a model by batch size, and by how a batch is spread over GPUs."""

    key = "inference"
    events: ClassVar = {"inference": InferenceCell}
    measurements: ClassVar = events
    lines: ClassVar = {"inference": "cells"}
    picture = ("inference", "Time per batch and images/s by batch size.")

    def summarize(self, events: Mapping[str, Sequence[Any]]) -> InferenceSummary | None:
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
        yield _batch_table(result, number)

    def rates(self, result: InferenceSummary) -> Iterator[tuple[str, Measure]]:
        for cell in result.cells:
            if cell.images_per_s is not None and cell.mean_time_s is not None:
                rate = rate_measure(cell.images_per_s, cell.time_s)
                yield f"images/s, {cell.strategy}, batch {cell.batch_size}", rate

    def pictures(
        self, job: str, runs: Sequence[NumberedResult[InferenceSummary]]
    ) -> Iterator[Picture]:
        """List the pictures of the newest runs that timed several batch sizes."""
        timed = [
            run
            for run in runs
            if len({cell.batch_size for cell in run.result.cells if cell.mean_time_s}) > 1
        ]
        return super().pictures(job, timed)

    def draw(self, run: NumberedResult[InferenceSummary]) -> Figure:
        return make_figure(run.result.cells)


def _batch_table(summary: InferenceSummary, number_of_run: int) -> Table[InferenceCell]:
    ordered = sorted(summary.cells, key=lambda cell: cell.batch_size)
    compared = pair_with_single(summary.cells)
    gains = {(each.parallel.strategy, each.size): each.gain_text for each in compared}

    def timed(value: Callable[[InferenceCell], Any]) -> Callable[[InferenceCell], Any]:
        return lambda cell: value(cell) if cell.mean_time_s else None

    def against_single(cell: InferenceCell) -> str | None:
        if cell.strategy == SINGLE and cell.mean_time_s:
            return "1"
        return gains.get((cell.strategy, cell.batch_size))

    columns: list[Column[InferenceCell]] = [
        Column("batch", lambda cell: cell.batch_size, count, unit="images"),
        Column("strategy", lambda cell: cell.strategy, align="left"),
        Column("devices", lambda cell: cell.devices),
        Column(
            "time per batch",
            lambda cell: cell.time_s if cell.mean_time_s else cell.error or UNDEFINED,
            each(lambda time: mean_interval(per=1e-3)([time])[0]),
            unit="ms",
        ),
        Column("first\ncall", timed(lambda cell: cell.cold_time_s), three_digits(1e-3), unit="ms"),
        Column("images/s", timed(lambda cell: cell.images_per_s), number(0)),
        Column("times as fast\nas single", against_single, each(str)),
    ]
    return Table(
        f"#{number_of_run}: inference by batch size, mean ± 95 % interval over calls",
        columns,
        ordered,
    )


def make_figure(cells: Sequence[InferenceCell]) -> Figure:
    """Draw time per batch and images/s by batch size, with error bars."""
    figure = new_figure(10, 4.5)
    time_axes, rate_axes = figure.subplots(1, 2)
    ordered = sorted(cells, key=lambda cell: cell.batch_size)  # else lines run back and forth
    all_timed = [cell for cell in ordered if cell.mean_time_s]
    for strategy in dict.fromkeys(cell.strategy for cell in cells):
        timed = [cell for cell in all_timed if cell.strategy == strategy]
        if not timed:
            continue
        devices = max(cell.devices for cell in timed)
        style: dict[str, Any] = {
            **_STYLES.get(strategy, LINES[-1]),
            "label": f"{strategy} ({number_of(devices, 'device')})",
        }
        xs = [cell.batch_size for cell in timed]
        times = [spread(cell) for cell in timed]
        rates = [time.rate(cell.batch_size) for cell, time in zip(timed, times, strict=True)]
        for axes, spreads, per in ((time_axes, times, 1e-3), (rate_axes, rates, 1.0)):
            draw_spreads(axes, xs, spreads, per, **style)
    for axes, what in ((time_axes, "time per batch (ms)"), (rate_axes, "images/s")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        counts_axis(axes, sorted({cell.batch_size for cell in cells}))
        finish(axes, x="images per batch, over all devices", y=f"{what}, median and quartiles")
    shared_legend(figure, [time_axes])
    return figure
