"""The tables of the job dataload: time per batch by way of loading, and the work per image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcdist.base.table import Column, Table, count, each, number
from hpcdist.base.text import column_decimals, format_number, show_mean_sd, shown
from hpcdist.bench.dataload.combinations import in_job, varied
from hpcdist.bench.dataload.figures import PARTS, LoadingCell, Setting, StepTime
from hpcdist.summary.figures.benchmark_values import LoadingSummary

_MB = 1e6
_PART_HEADERS = dict(
    zip(PARTS, ("read", "decode", "transform", "collate", "hand-over"), strict=True)
)
_ALWAYS = ("transform", "workers")


def loading_tables(summary: LoadingSummary, number: int) -> Iterator[Table[Any]]:
    """By way of loading; then where the time of an image goes; then the model's steps."""
    columns = _key_columns(summary.cells)
    yield _times(summary.cells, columns, number)
    yield _parts(summary.cells, columns, number)
    if summary.steps:
        yield _steps(summary.steps, number)


def _key_columns(cells: Sequence[LoadingCell]) -> list[Column[LoadingCell]]:
    """The node where there are several, and the keys that vary; always transform and workers."""
    settings = [cell.setting for cell in cells]
    keys = [key for key in varied(settings) if key not in _ALWAYS]
    columns = [_key_column(key, cells) for key in (*_ALWAYS, *keys)]
    if len({cell.node for cell in cells}) > 1:
        columns.insert(
            0, Column("node", lambda cell: f"{cell.node} {shown(cell.host)}", align="left")
        )
    return columns


def _key_column(key: str, cells: Sequence[LoadingCell]) -> Column[LoadingCell]:
    def value(cell: LoadingCell) -> Any:
        return getattr(cell.setting, key)

    are_numbers = all(type(value(cell)) is int for cell in cells)
    if are_numbers:
        return Column(key.replace("_", "\n"), value, each(in_job))
    return Column(key.replace("_", "\n"), lambda cell: in_job(value(cell)), align="left")


def _times(
    cells: Sequence[LoadingCell], keys: Sequence[Column[LoadingCell]], number_of_run: int
) -> Table[LoadingCell]:
    in_ms = number(per=1e-3, is_wide=True)
    columns: list[Column[LoadingCell]] = [
        *keys,
        Column("time per batch", lambda cell: cell, _means_ms, unit="ms", sort=_mean_time_s),
        Column("images/s", lambda cell: cell.images_per_s, number(0)),
        Column("until first\nbatch", lambda cell: cell.start_time_s, in_ms, unit="ms"),
        Column("first pass, per\nbatch", lambda cell: cell.first_time_s, in_ms, unit="ms"),
        Column("worker", lambda cell: cell.worker_bytes, number(0, per=_MB), unit="MB"),
    ]
    first = cells[0]
    several = "" if first.ranks == 1 else f" on each of {first.ranks} ranks per node"
    caption = f"#{number_of_run}: loading by workers{several}, mean ± sd"
    if first.first_files != "memory":
        caption += f"; first pass: {_first_files(cells)}"
    return Table(caption, columns, _ordered(cells))


def _first_files(cells: Sequence[LoadingCell]) -> str:
    are_cold = all(cell.first_files == "cold" for cell in cells)
    return "files from storage" if are_cold else "files may be in memory"


def _mean_time_s(cell: LoadingCell) -> float:
    return cell.mean_time_s


def _means_ms(cells: Sequence[LoadingCell]) -> list[str]:
    """With the sd padded, so that the means stand below each other."""
    decimals = column_decimals([cell.mean_time_s * 1e3 for cell in cells])
    spreads = [
        None if cell.sd_time_s is None else format_number(cell.sd_time_s * 1e3, decimals)
        for cell in cells
    ]
    width = max((len(spread) for spread in spreads if spread), default=0)
    return [
        format_number(cell.mean_time_s * 1e3, decimals)
        + (" " * (3 + width) if spread is None else f" ± {spread.rjust(width)}")
        for cell, spread in zip(cells, spreads, strict=True)
    ]


def _parts(
    cells: Sequence[LoadingCell], keys: Sequence[Column[LoadingCell]], number_of_run: int
) -> Table[LoadingCell]:
    rows = [cell for cell in _ordered(cells) if cell.parts_s]
    in_us = number(column_decimals([_together_s(cell) * 1e6 for cell in rows]), per=1e-6)

    def part_s(name: str) -> Callable[[LoadingCell], float | None]:
        return lambda cell: cell.parts_s.get(name)

    parts: list[Column[LoadingCell]] = [
        Column(header, part_s(name), in_us) for name, header in _PART_HEADERS.items()
    ]
    columns = [*keys, *parts, Column("together", _together_s, in_us)]
    return Table(f"#{number_of_run}: work per image (µs)", columns, rows)


def _together_s(cell: LoadingCell) -> float:
    return sum(cell.parts_s.values())


def _steps(steps: Sequence[StepTime], number_of_run: int) -> Table[StepTime]:
    columns: list[Column[StepTime]] = [
        Column("model", lambda step: step.model or "as the job says", align="left"),
        Column("images\nper batch", lambda step: step.batch_size, count),
        Column(
            "training step",
            lambda step: step,
            each(lambda step: show_mean_sd(step.mean_time_s, step.sd_time_s)),
            sort=lambda step: step.mean_time_s,
        ),
    ]
    return Table(f"#{number_of_run}: training steps with a batch that is there", columns, steps)


def _ordered(cells: Sequence[LoadingCell]) -> list[LoadingCell]:
    """By what is not workers in the order of measuring, then by workers, then by node."""
    places = {_but_workers(cell.setting): -index for index, cell in enumerate(reversed(cells))}
    return sorted(
        cells,
        key=lambda cell: (places[_but_workers(cell.setting)], cell.setting.workers, cell.node),
    )


def _but_workers(setting: Setting) -> tuple[object, ...]:
    return tuple(getattr(setting, key) for key in setting.__struct_fields__ if key != "workers")
