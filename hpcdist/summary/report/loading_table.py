"""The tables of the job dataload: time per batch by way of loading, and the work per image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcdist.base.text import (
    UNDEFINED,
    column_decimals,
    format_number,
    show_mean_sd,
    shown,
)
from hpcdist.bench.dataload.combinations import in_job, varied
from hpcdist.bench.dataload.figures import PARTS, LoadingCell, Setting, StepTime
from hpcdist.summary.figures.benchmark_values import LoadingSummary
from hpcdist.summary.report.plain_table import PlainTable

_MB = 1e6
_PART_HEADERS = dict(
    zip(PARTS, ("read", "decode", "transform", "collate", "hand-over"), strict=True)
)


def loading_tables(summary: LoadingSummary, number: int) -> Iterator[PlainTable]:
    """By way of loading; then where the time of an image goes; then the model's steps."""
    columns = _key_columns(summary.cells)
    yield _times(summary.cells, columns, number)
    yield _parts(summary.cells, columns, number)
    if summary.steps:
        yield _steps(summary.steps, number)


_Column = tuple[str, Callable[[LoadingCell], str]]


def _key_columns(cells: Sequence[LoadingCell]) -> list[_Column]:
    """The node where there are several, and the keys that vary; always transform and workers."""
    settings = [cell.setting for cell in cells]
    keys = [key for key in varied(settings) if key not in _ALWAYS]
    columns = [(key.replace("_", "\n"), _reader(key)) for key in (*_ALWAYS, *keys)]
    if len({cell.node for cell in cells}) > 1:
        columns.insert(0, ("node", lambda cell: f"{cell.node} {shown(cell.host)}"))
    return columns


_ALWAYS = ("transform", "workers")


def _reader(key: str) -> Callable[[LoadingCell], str]:
    return lambda cell: shown(in_job(getattr(cell.setting, key)))


def _times(cells: Sequence[LoadingCell], columns: Sequence[_Column], number: int) -> PlainTable:
    headers = (
        *(header for header, _ in columns),
        *("time per batch\n(ms)", "images/s", "until first\nbatch (ms)"),
        *("first pass, per\nbatch (ms)", "worker\n(MB)"),
    )
    ordered = _ordered(cells)
    times = zip(*_time_columns(ordered), strict=True)
    rows = [
        (*(read(cell) for _, read in columns), *texts)
        for cell, texts in zip(ordered, times, strict=True)
    ]
    first = cells[0]
    several = "" if first.ranks == 1 else f" on each of {first.ranks} ranks per node"
    caption = f"#{number}: loading by workers{several}, mean ± sd"
    if first.first_files != "memory":
        caption += f"; first pass: {_FIRST_FILES[_first_files(cells)]}"
    return PlainTable(caption, headers, rows)


_FIRST_FILES = {
    "cold": "files from storage",
    "warm": "files may be in memory",
    "unknown": "files may be in memory",
}


def _first_files(cells: Sequence[LoadingCell]) -> str:
    return "cold" if all(cell.first_files == "cold" for cell in cells) else "warm"


def _time_columns(cells: Sequence[LoadingCell]) -> Iterator[list[str]]:
    yield _means_ms(cells)
    yield [f"{cell.images_per_s:,.0f}" for cell in cells]
    yield _ms([cell.start_time_s for cell in cells])
    yield _ms([cell.first_time_s for cell in cells])
    yield [
        UNDEFINED if cell.worker_bytes is None else f"{cell.worker_bytes / _MB:,.0f}"
        for cell in cells
    ]


def _means_ms(cells: Sequence[LoadingCell]) -> list[str]:
    """With the sd padded, so that the means stand below each other."""
    decimals = column_decimals([cell.mean_time_s * 1e3 for cell in cells])
    spreads = [
        "" if cell.sd_time_s is None else f" ± {format_number(cell.sd_time_s * 1e3, decimals)}"
        for cell in cells
    ]
    width = max(map(len, spreads))
    return [
        format_number(cell.mean_time_s * 1e3, decimals) + _right(spread, width)
        for cell, spread in zip(cells, spreads, strict=True)
    ]


def _right(spread: str, width: int) -> str:
    """` ±   0.5` for ` ± 0.5`."""
    return spread[:3] + spread[3:].rjust(width - len(spread[:3]))


def _parts(cells: Sequence[LoadingCell], columns: Sequence[_Column], number: int) -> PlainTable:
    headers = (*(header for header, _ in columns), *_PART_HEADERS.values(), "together")
    shown_cells = [cell for cell in _ordered(cells) if cell.parts_s]
    decimals = column_decimals([sum(cell.parts_s.values()) * 1e6 for cell in shown_cells])
    rows = [
        (*(read(cell) for _, read in columns), *_part_cells(cell, decimals)) for cell in shown_cells
    ]
    return PlainTable(f"#{number}: work per image (µs)", headers, rows)


def _part_cells(cell: LoadingCell, decimals: int) -> Iterator[str]:
    for name in PARTS:
        part_s = cell.parts_s.get(name)
        yield format_number(None if part_s is None else part_s * 1e6, decimals)
    yield format_number(sum(cell.parts_s.values()) * 1e6, decimals)


def _steps(steps: Sequence[StepTime], number: int) -> PlainTable:
    rows = [
        (
            shown(step.model or "as the job says"),
            f"{step.batch_size:,}",
            show_mean_sd(step.mean_time_s, step.sd_time_s),
        )
        for step in steps
    ]
    headers = ("model", "images\nper batch", "training step")
    return PlainTable(f"#{number}: training steps with a batch that is there", headers, rows)


def _ordered(cells: Sequence[LoadingCell]) -> list[LoadingCell]:
    """By what is not workers in the order of measuring, then by workers, then by node."""
    places = {_but_workers(cell.setting): -index for index, cell in enumerate(reversed(cells))}
    return sorted(
        cells,
        key=lambda cell: (places[_but_workers(cell.setting)], cell.setting.workers, cell.node),
    )


def _but_workers(setting: Setting) -> tuple[object, ...]:
    return tuple(getattr(setting, key) for key in setting.__struct_fields__ if key != "workers")


def _ms(times_s: Sequence[float]) -> list[str]:
    decimals = column_decimals([time_s * 1e3 for time_s in times_s])
    return [format_number(time_s * 1e3, decimals) for time_s in times_s]
