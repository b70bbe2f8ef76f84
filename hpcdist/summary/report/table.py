"""Single runs as text for people: figures, then what went wrong.

Three narrow tables, tied by a number per run, fit into 80 columns where one wide table would not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcdist.base.text import (
    UNDEFINED,
    decimals_for,
    format_integer,
    format_mean_sd,
    format_number,
    format_percent,
    format_ranges,
    shown,
    time_unit,
)
from hpcdist.summary.figures.metrics import OTHER
from hpcdist.summary.report.grid import Grid
from hpcdist.summary.report.plain_table import PlainTable
from hpcdist.summary.report.remarks import is_baseline, is_benchmark, remarks
from hpcdist.summary.report.resources_table import resource_columns
from hpcdist.summary.values import RunSummary

WIDTH_WITHOUT_TERMINAL = 120

_BASELINE_NOTE = "* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal"
_SPEED_CAPTION = "Speed of all ranks together, mean ± sd over stretches of the run"
_STEP_CAPTION = "Time of one step, mean ± sd over all steps and ranks; what was learned; memory"
_STRAGGLING_NOTE = (
    "slowest to fastest rank: 1.20 (3 / 0) is rank 3 taking 1.20 times as long as rank 0 for its"
    " own part of a step"
)
_MIB = 2**20
_WHOLE_MIB = 100
_HUGE_LOSS = 1e6
_STATE_STYLES = {"done": "green", "failed": "red", "lost": "red", "running": "cyan"}
_PHASE_HEADERS = {
    "data_wait": "data\nwait",
    "host_to_device": "to\ndevice",
    "forward_backward": "forward\nbackward",
    "exposed_communication": "exposed\ncomm.",
    "optimizer": "opti-\nmizer",
    "checkpoint": "check-\npoint",
}


class Row(NamedTuple):
    """One run in the tables, and the number that ties its rows together."""

    number: int
    run: RunSummary


class Column(NamedTuple):
    """A header with its unit, and the text of a cell, from what its row is about."""

    header: str
    cell: Callable[[Any], str | Text]
    is_number: bool = True


class Titled(NamedTuple):
    """A table of runs or variants, and what stands above and below it."""

    caption: str
    rows: Sequence[Any]
    columns: list[Column]
    footnote: str = ""


def make_console(file: TextIO | None = None) -> Console:
    """A console on `file`, or on stdout; what is not a terminal gets no colour and a fixed
    width."""
    is_terminal = (file or sys.stdout).isatty()
    return Console(file=file, width=None if is_terminal else WIDTH_WITHOUT_TERMINAL)


def speed_table(rows: Sequence[Row], *, has_speedups: bool = True, note: str = "") -> Titled:
    """A line for each run: its state and its speed; against others only with `has_speedups`."""
    runs = [row.run for row in rows]
    is_scaled = has_speedups and any(run.speedup is not None for run in runs)
    is_trained = any(run.samples_per_s for run in runs) and not all(map(is_benchmark, runs))
    notes = [_BASELINE_NOTE, *([note] if note else [])] if is_scaled else []
    columns = _speed_columns(runs, has_speedups=has_speedups)
    return Titled(_SPEED_CAPTION if is_trained else "", rows, columns, "\n".join(notes))


def step_tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """The time of a step, what was learned, and memory."""
    if stepped := _stepped(rows):
        yield Titled(_STEP_CAPTION, stepped, _step_columns([row.run for row in stepped]))


def phase_tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """What a step consists of, as it was recorded."""
    if stepped := _stepped(rows):
        runs = [row.run for row in stepped]
        note = _STRAGGLING_NOTE if any(run.slowest_rank for run in runs) else ""
        yield Titled("Share of step time by phase, in %", stepped, _phase_columns(runs), note)


def memory_tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """What model, gradients and optimizer hold."""
    if held := [row for row in rows if row.run.model_states]:
        yield Titled("Memory of the rank that has most, in MiB", held, _memory_columns())


def resource_tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """What the runs held, used and cost."""
    caption, found = resource_columns([row.run for row in rows])
    if found:
        number = Column("#", lambda row: str(row.number))
        columns = [number, *(Column(header, cell) for header, cell in found)]
        yield Titled(caption, rows, columns)


def _stepped(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.run.step_time_s]


def print_titled(console: Console, titled: Titled) -> None:
    """Print a table with what belongs to it, and an empty line."""
    if titled.caption:
        say(console, titled.caption)
    console.print(make_table(titled.rows, titled.columns))
    if titled.footnote:
        say(console, titled.footnote)
    console.print()


def _speed_columns(runs: Sequence[RunSummary], *, has_speedups: bool) -> list[Column]:
    decimals = decimals_for([run.samples_per_s.mean for run in runs if run.samples_per_s])

    def samples_per_s(row: Row) -> str:
        rate = row.run.samples_per_s
        return format_mean_sd(rate.mean, rate.sd, decimals) if rate else UNDEFINED

    def speedup(row: Row) -> str:
        if row.run.speedup is None:
            return UNDEFINED
        return f"{row.run.speedup:.2f}{' *' if is_baseline(row.run) else '  '}"

    columns = [
        Column("#", lambda row: str(row.number)),
        Column("run", lambda row: shown(row.run.run), is_number=False),
        *(
            [Column("variant", lambda row: shown(row.run.variant or ""), is_number=False)]
            if any(run.variant for run in runs)
            else []
        ),
        Column("state", _state, is_number=False),
        Column("nodes\nx gpus", lambda row: f"{row.run.nodes} x {row.run.gpus_per_node}"),
    ]
    if all(is_benchmark(run) for run in runs):  # they have tables of their own
        return columns
    if any(run.samples_per_s for run in runs):
        columns.append(Column("samples/s", samples_per_s))
    if not has_speedups:
        return columns
    return [
        *columns,
        Column("speed-\nup  ", speedup),
        Column("effic.\n(%)", lambda row: format_percent(row.run.efficiency)),
    ]


def _step_columns(runs: Sequence[RunSummary]) -> list[Column]:
    means = [run.step_time_s.mean for run in runs if run.step_time_s]
    unit_s, unit = time_unit(max(means))
    decimals = decimals_for([mean / unit_s for mean in means])

    def mean_sd(row: Row) -> str:
        time = row.run.step_time_s
        if time is None:
            return UNDEFINED
        sd = None if time.sd is None else time.sd / unit_s
        return format_mean_sd(time.mean / unit_s, sd, decimals)

    def quantile(name: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            time_s: float | None = getattr(row.run.step_time_s, name)
            return format_number(None if time_s is None else time_s / unit_s, decimals)

        return cell

    return [
        Column("#", lambda row: str(row.number)),
        Column(f"step time\n({unit})", mean_sd),
        Column(f"median\n({unit})", quantile("p50")),
        Column(f"p95\n({unit})", quantile("p95")),
        Column("epochs", lambda row: format_integer(row.run.epochs)),
        Column("test\nloss", lambda row: _loss(row.run.final.loss)),
        Column("accuracy\n(%)", lambda row: format_percent(row.run.final.accuracy, decimals=2)),
        Column("peak mem.\n(MiB)", _memory),
        Column("re-\nstarts", lambda row: str(row.run.restarts)),
    ]


def _loss(loss: float | None) -> str:
    """That of a training that diverged has any number of digits."""
    is_huge = loss is not None and abs(loss) >= _HUGE_LOSS
    return f"{loss:.3g}" if is_huge else format_number(loss, 4)


def _phase_columns(runs: Sequence[RunSummary]) -> list[Column]:
    phases = dict.fromkeys(phase for run in runs for phase in run.phase_s or {})
    # Phases in the order of a step, those of other workloads after them, the rest last.
    known = [phase for phase in _PHASE_HEADERS if phase in phases]
    unknown = [phase for phase in phases if phase not in {*_PHASE_HEADERS, OTHER}]

    def share(phase: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            assert row.run.step_time_s is not None
            phase_s = (row.run.phase_s or {}).get(phase, 0.0)
            mean_s = row.run.step_time_s.mean
            return format_percent(phase_s / mean_s if mean_s else None)

        return cell

    return [
        Column("#", lambda row: str(row.number)),
        *(
            Column(_PHASE_HEADERS.get(phase, shown(phase)), share(phase))
            for phase in (*known, *unknown, OTHER)
        ),
        Column("slowest to\nfastest rank", _straggling),
    ]


def _memory_columns() -> list[Column]:
    def states(kind: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            assert row.run.model_states is not None
            return _mib(getattr(row.run.model_states, f"{kind}_bytes"))

        return cell

    return [
        Column("#", lambda row: str(row.number)),
        Column("model\nstates", states("total")),
        Column("para-\nmeters", states("parameter")),
        Column("gra-\ndients", states("gradient")),
        Column("opti-\nmizer", states("optimizer")),
        Column("peak of\nprocess", _memory),
        Column("peak on\nGPU", lambda row: _mib(row.run.peak_cuda_bytes)),
    ]


def _straggling(row: Row) -> str:
    slowest, fastest = row.run.slowest_rank, row.run.fastest_rank
    if slowest is None or fastest is None or not fastest.own_time_s:
        return UNDEFINED
    ratio = slowest.own_time_s / fastest.own_time_s
    return f"{ratio:.2f} ({slowest.rank} / {fastest.rank})"


def _memory(row: Row) -> str:
    return _mib(row.run.peak_rss_bytes)


def _mib(num_bytes: int | None) -> str:
    if num_bytes is None:
        return UNDEFINED
    mib = num_bytes / _MIB
    return f"{mib:,.0f}" if mib >= _WHOLE_MIB else f"{mib:,.2f}"


def _state(row: Row) -> Text:
    state = row.run.state
    return Text(state or UNDEFINED, style=_STATE_STYLES.get(state or "", "yellow"))


def make_table(rows: Iterable[Any], columns: Sequence[Column]) -> Grid:
    """One line for each row, from the cells of the columns."""
    grid = Grid(
        [column.header for column in columns], are_numbers=[column.is_number for column in columns]
    )
    for row in rows:
        grid.add_row([column.cell(row) for column in columns])
    return grid


def print_plain(console: Console, plain: PlainTable) -> None:
    """Print the table of a benchmark, and an empty line."""
    say(console, plain.caption)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, header in enumerate(plain.headers):
        is_text = _is_text([row[place] for row in plain.rows])
        table.add_column(
            Text(header),
            justify="left" if is_text else "right",
            vertical="bottom",
            overflow="fold",
        )
    for row in plain.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()


def _is_text(cells: Sequence[str]) -> bool:
    """Words stand left, numbers, also those with a unit or not known, right."""
    return not any(cell[:1].isdigit() or cell == UNDEFINED for cell in cells)


def print_remarks(console: Console, rows: Sequence[Row]) -> None:
    """Print what the figures do not say."""
    told = numbered_remarks(rows)
    say_each(console, told)
    if told:
        console.print()


def numbered_remarks(rows: Sequence[Row]) -> list[str]:
    """What the figures do not say; what holds for several runs is said once."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        for remark in remarks(row.run, is_alone=len(rows) == 1):
            numbers.setdefault(remark, []).append(row.number)
    return [f"#{format_ranges(runs)}: {remark}" for remark, runs in numbers.items()]


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text as it is: brackets in it mean nothing."""
    console.print(Text(text, style=style))


def say_each(console: Console, texts: Iterable[str]) -> None:
    """Print texts, indented, each from a line of its own on."""
    for text in texts:
        console.print(Padding(Text(shown(text)), (0, 0, 0, 2), expand=False))
