"""Tables of cells: how fast sizes, variants and repeats are and how sure that is, what more GPUs
would bring, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.base.table import Column, Table, each, mean_interval, number, percent
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_ranges,
    number_of,
    shown,
    spread_text,
    time_unit,
    whole_percents,
)
from hpcdist.summary.compare.forecast import FEWEST_SIZES
from hpcdist.summary.figures import shares as part
from hpcdist.summary.report.runs import Row, gpus_column, known
from hpcdist.summary.report.words import footnote
from hpcdist.summary.values import Cell, Forecast, Group, Scaling


class Look(NamedTuple):
    """The look of a share of the time in tables and pictures."""

    header: str
    """The header of its column in tables."""
    label: str
    """Its name in the legend of pictures."""
    style: dict[str, Any]
    """Options of its bars."""


# Colours of Okabe and Ito, told apart by all kinds of sight, with a violet for their black, which
# a dark page hides; hatches for print, without
# circles, which make an SVG ten times as large.
LOOKS = {
    part.DATA: Look("data\nwait", "data wait", {"color": "#E69F00", "hatch": "//"}),
    part.DEVICE: Look("to\ndev.", "to device", {"color": "#F0E442", "hatch": "--"}),
    part.COMMUNICATION: Look(
        "exposed\ncomm.", "exposed communication", {"color": "#0072B2", "hatch": "\\\\"}
    ),
    part.STRAGGLERS: Look("strag-\nglers", "stragglers", {"color": "#56B4E9", "hatch": "xx"}),
    part.COMPUTING: Look("slower\ncomp.", "slower computing", {"color": "#CC79A7", "hatch": "||"}),
    part.FIXED: Look("fixed\ncost", "fixed cost", {"color": "#999999"}),
    part.CHECKPOINTS: Look("check-\npoint", "checkpoints", {"color": "#D55E00", "hatch": "++"}),
    part.RESTARTS: Look("re-\nstarts", "restarts", {"color": "#5D3A9B", "hatch": "/"}),
    part.UNDIVIDED: Look("in no\nphase", "in no phase", {"color": "#DDDDDD", "hatch": "-"}),
}
_ALWAYS = {part.DATA, part.COMMUNICATION, part.STRAGGLERS, part.COMPUTING, part.FIXED}
"""Shares that always have a column; others have one where some row has them."""
_PAUSES = (part.CHECKPOINTS, part.RESTARTS)
LEAST_SHOWN = 0.005
"""Smaller shares are 0 % in a table, and thinner than a line in a picture."""

_BASELINE_NOTE = "* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal"
_SCALING_NOTES: dict[Scaling | None, tuple[str, str]] = {
    "weak": (
        "Weak scaling ({each:,.0f} samples per step for each {unit})",
        "weak scaling: each {unit} keeps its samples per step; ideal: a step takes as long",
    ),
    "strong": (
        "Strong scaling ({all:,.0f} samples per step, shared by all {unit}s)",
        "strong scaling: a step keeps its samples; ideal: twice the {unit}s, half the time",
    ),
    None: ("Scaling", ""),
}
"""Caption and note."""
_YES_NO = {True: "yes", False: "no", None: None}
_PARTS = "±: 95 % confidence interval over "


def speed_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Cell]]:
    """Yield a table for each group of several sizes, or of variants, with a line for each; and one
    of the sizes of other groups that were run more than once. `rows` are the runs of all groups."""
    by_id = {row.run.run: row.run for row in rows}
    compared = [group for group in groups if group.baseline and not group.name]
    has_strategies = len({group.strategy for group in compared}) > 1
    for group in groups:
        caption = note = ""
        is_compared = bool(group.baseline and not group.name)
        if is_compared:
            last = group.cells[-1]
            unit, samples = last.unit, last.samples_per_step or 0.0
            caption, note = (
                text.format(unit=unit, all=samples, each=samples / last.num_gpus)
                for text in _SCALING_NOTES[group.scaling]
            )
            if has_strategies:
                caption = f"{shown(group.strategy or 'no strategy')}: {caption}"
            run = by_id.get(group.runs[-1])
            if run and run.differs_in:
                caption = f"{shown(run.settings_text)}: {caption}"
        if is_compared or group.name:
            yield _speed_table(caption, group.cells, [note] if note else [])
    alone = [cell for group in groups if not group.baseline for cell in group.cells]
    if repeated := [cell for cell in alone if cell.num_measured > 1 and not cell.name]:
        settings = {cell.runs[0]: by_id[cell.runs[0]].settings_text for cell in repeated}
        columns: list[Column[Cell]] = [
            Column("settings", lambda cell: settings[cell.runs[0]] or None, align="left"),
            gpus_column(lambda cell: cell),
            Column("runs", lambda cell: cell.num_measured),
            Column("samples/s", lambda cell: cell.samples_per_s, mean_interval()),
        ]
        caption = "Repeats, with the 95 % confidence interval of their mean"
        yield Table(caption, known(columns, repeated), repeated)


def _speed_table(caption: str, cells: Sequence[Cell], notes: Sequence[str]) -> Table[Cell]:
    unit_s, unit = time_unit(max(cell.step_time_s or 0.0 for cell in cells))
    notes = [_BASELINE_NOTE, *notes]
    judged = [cell.speedup.over for cell in cells if cell.speedup and cell.speedup.over]
    if "windows" in judged:
        notes.append(
            f"{_PARTS}equal parts of one run; it does not include how runs differ from each other, "
            "which --repeat 3 shows"
        )
    elif judged:
        notes.append(f"{_PARTS}repeated runs")
    if len(judged) > 1:
        notes.append("that of a speed-up is wider, as several are compared at once (Holm's method)")
    if {"runs", "windows"} <= {cell.samples_per_s.over for cell in cells if cell.samples_per_s}:
        notes.append("samples/s of what was run once: over equal parts of its run")
    forecast = next((cell.forecast for cell in cells if cell.forecast), None)
    if forecast and len(cells) >= FEWEST_SIZES:
        notes.append(forecast_sentence(forecast, cells[0]))

    def num_runs(cell: Cell) -> str:
        return f"{cell.num_measured} of {len(cell.runs)}" if cell.name else f"{cell.num_measured}"

    columns: list[Column[Cell]] = [
        Column("variant", lambda cell: cell.name or None, align="left"),
        gpus_column(lambda cell: cell),
        Column("runs", num_runs, align="right"),
        Column("samples/s", lambda cell: cell.samples_per_s, mean_interval()),
        Column("step", lambda cell: cell.step_time_s, number(per=unit_s), unit=unit),
        Column(
            "speed-\nup",
            lambda cell: "1" if cell.is_baseline else cell.speedup,
            each(lambda value: spread_text(value, 2)),
            is_marked=lambda cell: cell.is_baseline,
        ),
        Column(
            "effic.", lambda cell: cell.efficiency and cell.efficiency.mean, percent(), unit="%"
        ),
        Column("differs\nfrom *", lambda cell: _YES_NO[cell.differs_from_baseline], align="left"),
    ]
    return Table(caption, known(columns, cells), cells, "\n".join(notes))


def forecast_sentence(forecast: Forecast, baseline: Cell) -> str:
    """Return `Forecast: 8 GPUs 5.9 to 6.6 times, 16 GPUs ...`, or why there is none."""
    if forecast.refused_because is not None:
        return f"No forecast for more GPUs: {forecast.refused_because}."
    ranges = []
    for size in forecast.sizes:
        assert size.speedup.interval is not None
        low, high = size.speedup.interval.low, size.speedup.interval.high
        decimals = min(2, decimals_for([low]))
        times = f"{format_number(low, decimals)} to {format_number(high, decimals)} times"
        ranges.append(f"{number_of(size.gpus, baseline.unit)} {times}")
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in forecast.notes)
    ending = f"as fast as {baseline.num_gpus}, with 95 % confidence."
    return f"Forecast: {', '.join(ranges)} {ending}{notes}"


def share_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Cell]]:
    """Yield a table for each group of several sizes or of variants, and one for all other groups.

    `rows` are the runs of all groups.
    """
    numbers = {row.run.run: row.number for row in rows}
    columns: list[Column[Cell]] = [
        Column("#", lambda cell: sorted(numbers[run] for run in cell.runs), each(format_ranges)),
        gpus_column(lambda cell: cell),
    ]
    variant: Column[Cell] = Column("variant", lambda cell: cell.name, align="left")
    kept: Column[Cell] = Column("not\nlost", lambda cell: cell.overall, percent())
    compared = [group for group in groups if any(cell.against for cell in group.cells)]
    has_strategies = len({group.strategy for group in compared}) > 1
    names = []
    for group in compared:
        strategy = f"{shown(group.strategy or 'no strategy')}, " if has_strategies else ""
        names.append(f"{strategy}{group.scaling or ''} scaling".replace("  ", " "))
    for group, name in zip(compared, names, strict=True):
        losses = [cell.lost for cell in group.cells if cell.lost]
        notes = _notes([cell for cell in group.cells if cell.lost])
        if any(abs(lost[pause]) >= LEAST_SHOWN for lost in losses for pause in _PAUSES):
            notes.append(
                "all the time is that of steps, checkpoints and what restarts cost, so that in all "
                "may be more than 100 - effic."
            )
        title = "Where the time goes: lost against the ideal, in % of all the time"
        if len(set(names)) > 1:
            title = f"{title} ({name})"
        lost = [kept, *_share_columns(lambda cell: cell.lost, group.cells)]
        first = [variant] if group.name else columns
        yield Table(title, [*first, *lost], group.cells, "\n".join(notes))
    if alone := alone_cells(groups):
        shares = _share_columns(lambda cell: cell.shares, alone, is_alone=True)
        caption = "Where the time goes, in % of all the time"
        yield Table(caption, [*columns, *shares], alone, "\n".join(_notes(alone)))


def _notes(cells: Sequence[Cell]) -> list[str]:
    """Explain the columns of shares."""
    are_mixed = {cell.computing_has_communication for cell in cells}
    words = {
        False: "exposed communication (exposed comm.)",
        True: "computing and communication together (comp. + comm.)",
    }
    return [footnote(words[is_mixed]) for is_mixed in sorted(are_mixed)]


def alone_cells(groups: Sequence[Group]) -> list[Cell]:
    """Return the cells of groups of one size, unless all of the time is in no phase."""
    alone = [cell for group in groups if not group.baseline for cell in group.cells]
    return [cell for cell in alone if cell.shares and cell.shares[part.UNDIVIDED] < 1 - LEAST_SHOWN]


def _share_columns(
    shares_of: Callable[[Cell], Mapping[str, float] | None],
    cells: Sequence[Cell],
    *,
    is_alone: bool = False,
) -> list[Column[Cell]]:
    """Return a column for each share that some cell has, in whole percent that add up, and their
    sum; `is_alone`: that of computing is all of it."""
    of_cells = [shares for cell in cells if (shares := shares_of(cell))]
    names = [
        name
        for name in part.SHARES
        if name in _ALWAYS or any(abs(shares[name]) >= LEAST_SHOWN for shares in of_cells)
    ]
    headers = {name: LOOKS[name].header for name in names}
    if is_alone:
        headers[part.COMPUTING] = "forward\nbackward"
    if any(cell.computing_has_communication for cell in cells):
        headers[part.COMPUTING] = "comp. +\ncomm." if is_alone else "slower comp.\n+ comm."

    def percents(cell: Cell) -> dict[str, int]:
        shares = shares_of(cell)
        return whole_percents({name: shares[name] for name in names}) if shares else {}

    def percent_of(name: str) -> Callable[[Cell], int | None]:
        return lambda cell: percents(cell).get(name)

    def whole(cell: Cell) -> int | None:
        return sum(percents(cell).values()) if percents(cell) else None

    columns = [Column(headers[name], percent_of(name)) for name in names]
    return [*columns, Column("in\nall", whole)]
