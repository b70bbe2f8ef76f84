"""The tables and the picture of the benchmark dataload."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdist.base.plotting import (
    LINES,
    Picture,
    counts_axis,
    finish,
    new_figure,
    plain_log_ticks,
)
from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, count, each, mean_interval, number
from hpcdist.base.text import column_decimals, show_mean_sd, shown
from hpcdist.bench.benchmark import (
    Benchmark,
    NumberedResult,
    draw_spreads,
    spread,
)
from hpcdist.bench.dataload.conclusion import conclude, shortened, work_s
from hpcdist.bench.dataload.figures import (
    PARTS,
    DataloadCell,
    DataloadSummary,
    ModelStep,
    Series,
    by_workers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_AXES = 12
"""More would not be readable."""

_COLUMNS = 4
_LABEL_WIDTH = 34
_DECADES = 50.0
"""From this ratio on small values cannot be told apart on a linear axis."""
_MB = 1e6


class DataloadBenchmark(Benchmark[DataloadSummary]):
    """Loading batches by workers, transforms and batch sizes."""

    key = "loading"
    events: ClassVar = {"loading": DataloadCell, "model_step": ModelStep}
    measurements: ClassVar = events
    lines: ClassVar = {"loading": "cells", "model_step": "steps"}
    picture = ("loading", "Time to load a batch by workers.")

    def summarize(self, events: Mapping[str, Sequence[Any]]) -> DataloadSummary | None:
        """Return the newest figures of each way on each node: a later event of the same way has
        more passes, and replaces the earlier."""
        cells: Sequence[DataloadCell] = events["loading"]
        newest = list({(cell.node, cell.setting): cell for cell in cells}.values())
        return conclude(newest, events["model_step"]) if newest else None

    def tables(self, result: DataloadSummary, number: int) -> Iterator[Table[Any]]:
        columns = _key_columns(result.cells)
        yield _time_table(result.cells, columns, number)
        yield _part_table(result.cells, columns, number)
        if result.steps:
            yield _step_table(result.steps, number)

    def rates(self, result: DataloadSummary) -> Iterator[tuple[str, Measure]]:
        for cell in result.cells:
            yield f"images/s, {_way_in_words(cell)}", cell.rate

    def pictures(
        self, job: str, runs: Sequence[NumberedResult[DataloadSummary]]
    ) -> Iterator[Picture]:
        """List the pictures of the newest runs that timed several ways of loading."""
        return super().pictures(job, [run for run in runs if len(run.result.cells) > 1])

    def draw(self, run: NumberedResult[DataloadSummary]) -> Figure:
        return make_figure(run.result.cells)


def _way_in_words(cell: DataloadCell) -> str:
    """Name a way of loading: workers, batch, the transform, the threads and the node."""
    words = [f"{cell.setting.workers} workers", f"batch {cell.setting.batch_size}"]
    if cell.setting.transform != "none":
        words.append(f"transform {cell.setting.transform}")
    if cell.threads is not None and cell.threads > 1:
        words.append(f"{cell.threads} threads")
    return ", ".join([*words, *([f"node {cell.node}"] if cell.node else [])])


def _key_columns(cells: Sequence[DataloadCell]) -> list[Column[DataloadCell]]:
    """Make columns of transform and workers, and of what else differs."""
    columns: list[Column[DataloadCell]] = [
        Column("transform", lambda cell: cell.setting.transform, align="left"),
        Column("batch\nsize", lambda cell: cell.setting.batch_size),
        Column("workers", lambda cell: cell.setting.workers),
        Column("threads", lambda cell: cell.threads, count),
    ]
    if len({cell.threads for cell in cells}) == 1:
        columns.pop()
    if len({cell.setting.batch_size for cell in cells}) == 1:
        columns.pop(1)
    if len({cell.node for cell in cells}) > 1:
        node = Column[DataloadCell](
            "node", lambda cell: f"{cell.node} {shown(cell.host)}", align="left"
        )
        return [node, *columns]
    return columns


def _time_table(
    cells: Sequence[DataloadCell], keys: Sequence[Column[DataloadCell]], number_of_run: int
) -> Table[DataloadCell]:
    in_ms = number(per=1e-3, is_wide=True)
    decimals = column_decimals([cell.mean_time_s * 1e3 for cell in cells])
    means = mean_interval(decimals, per=1e-3)
    columns: list[Column[DataloadCell]] = [
        *keys,
        Column("time per batch", lambda cell: cell.time_s, means, unit="ms"),
        Column("images/s", lambda cell: cell.images_per_s, number(0)),
        Column("until first\nbatch", lambda cell: cell.start_time_s, in_ms, unit="ms"),
        Column("first pass,\nper batch\n", lambda cell: cell.first_time_s, in_ms, unit="ms"),
        Column("worker", lambda cell: cell.worker_bytes, number(0, per=_MB), unit="MB"),
    ]
    first = cells[0]
    several = "" if first.ranks == 1 else f" on each of {first.ranks} ranks per node"
    caption = f"#{number_of_run}: loading by workers{several}, mean ± 95 % interval over passes"
    if first.first_files != "memory":
        are_cold = all(cell.first_files == "cold" for cell in cells)
        files = "files from storage" if are_cold else "files may be in memory"
        caption += f"; first pass: {files}"
    return Table(caption, columns, _ordered(cells))


def _part_table(
    cells: Sequence[DataloadCell], keys: Sequence[Column[DataloadCell]], number_of_run: int
) -> Table[DataloadCell]:
    rows = [cell for cell in _ordered(cells) if cell.parts_s]
    in_us = number(column_decimals([work_s(cell) * 1e6 for cell in rows]), per=1e-6)

    def part_s(name: str) -> Callable[[DataloadCell], float | None]:
        return lambda cell: cell.parts_s.get(name)

    parts = [Column(name.replace("_", "-"), part_s(name), in_us) for name in PARTS]
    columns = [*keys, *parts, Column("together", work_s, in_us)]
    return Table(f"#{number_of_run}: work per image (µs)", columns, rows)


def _step_table(steps: Sequence[ModelStep], number_of_run: int) -> Table[ModelStep]:
    columns: list[Column[ModelStep]] = [
        Column("model", lambda step: step.model or "as the job says", align="left"),
        Column("images\nper batch", lambda step: step.batch_size, count),
        Column(
            "training step",
            lambda step: step,
            each(lambda step: show_mean_sd(step.mean_time_s, step.sd_time_s)),
            sort=lambda step: step.mean_time_s,
        ),
    ]
    return Table(
        f"#{number_of_run}: training steps with a batch that is already loaded", columns, steps
    )


def _ordered(cells: Sequence[DataloadCell]) -> list[DataloadCell]:
    """Sort by transform and batch size in the order of measuring, then by workers and node."""
    places = {_but_workers(cell): -index for index, cell in enumerate(reversed(cells))}
    return sorted(
        cells, key=lambda cell: (places[_but_workers(cell)], cell.setting.workers, cell.node)
    )


def _but_workers(cell: DataloadCell) -> tuple[str, int]:
    return cell.setting.transform, cell.setting.batch_size


def make_figure(cells: Sequence[DataloadCell]) -> Figure:
    """Draw the time per batch by workers, with error bars.

    Each transform, and what else was compared, has axes of its own, all with the same scale.
    """
    panels = dict(list(group_in_panels(cells).items())[:MOST_AXES])
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(6.0, 3.6 * columns), 3.1 * rows + 0.8)
    all_axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for index, (axes, (heading, series)) in enumerate(
        zip(all_axes.flat, panels.items(), strict=False)
    ):
        workers = [cell.setting.workers for cell in series]
        spreads = [spread(cell) for cell in series]
        draw_spreads(axes, workers, spreads, 1e-3, **LINES[0])
        counts_axis(axes, sorted(workers))
        y = "time per batch (ms),\nmedian and quartiles" if index % columns == 0 else ""
        finish(axes, x="workers per rank", y=y)
        axes.set_title(textwrap.fill(heading, _LABEL_WIDTH), fontsize="medium")
    for axes in all_axes.flat[len(panels) :]:
        axes.remove()
    drawn = [spread(cell) for series in panels.values() for cell in series]
    shared = all_axes.flat[0]  # of all, once their common scale is known
    if max(each.high_s for each in drawn) > _DECADES * min(each.low_s for each in drawn):
        shared.set_yscale("log")
        plain_log_ticks(shared.yaxis)
    else:
        shared.set_ylim(bottom=0)
    return figure


def group_in_panels(cells: Sequence[DataloadCell]) -> dict[str, Series]:
    """Return each series by what makes it another than the others, which is the heading of its
    axes; only the first MOST_AXES are drawn."""
    nodes = sorted({cell.node for cell in cells})
    has_sizes = len({cell.setting.batch_size for cell in cells}) > 1
    panels: dict[str, Series] = {}
    for node in nodes:
        for series in by_workers(cell for cell in cells if cell.node == node):
            setting = series[0].setting
            words = [f"node {node} ({series[0].host})"] if len(nodes) > 1 else []
            words.append(f"transform {shortened(setting.transform)}")
            words += [f"batch_size {setting.batch_size}"] if has_sizes else []
            panels[", ".join(words)] = series
    return panels
