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
from hpcdist.summary.report.runs import BASELINE_NOTE, Row, gpus_column, interval_note
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

_FORWARD_BACKWARD = "forward\nbackward"
_MIXED_HEADERS = {
    LOOKS[part.COMPUTING].header: "slower comp.\n+ comm.",
    _FORWARD_BACKWARD: "comp. +\ncomm.",
}
"""Headers of the share of computing, where it has communication in it."""
_AGAINST = "Where the time goes: lost against the ideal, in % of all the time"
_ALONE = "Where the time goes, in % of all the time"
_NOTE = (
    "all the time is that of steps, checkpoints and what restarts cost, so that in all may be more "
    "than 100 - effic."
)
_EXPOSED = footnote("exposed communication (exposed comm.)")
_MIXED = footnote("computing and communication together (comp. + comm.)")
_SEEN = 0.005
"""Smaller shares are 0 % in a table."""


_SCALING_NOTES: dict[Scaling, str] = {
    "weak": "weak scaling: each {unit} keeps its samples per step; ideal: a step takes as long",
    "strong": "strong scaling: a step keeps its samples; ideal: twice the {unit}s, half the time",
}
_YES_NO = {True: "yes", False: "no", None: None}


def speed_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Cell]]:
    """Yield a table for each group of several sizes, with a line for each size, and one of the
    sizes of other groups that were run more than once. `rows` are the runs of all groups."""
    by_id = {row.run.run: row.run for row in rows}
    compared = [group for group in groups if group.baseline]
    has_strategies = len({group.strategy for group in compared}) > 1
    for group in compared:
        last = group.cells[-1]
        unit = "GPU" if last.num_cpus is None else "rank"
        caption = {"strong": "Strong scaling", "weak": "Weak scaling", None: "Scaling"}[
            group.scaling
        ]
        if last.samples_per_step and group.scaling == "strong":
            caption += f" ({last.samples_per_step:,.0f} samples per step, shared by all {unit}s)"
        elif last.samples_per_step and group.scaling == "weak":
            samples = last.samples_per_step / last.num_gpus
            caption += f" ({samples:,.0f} samples per step for each {unit})"
        if has_strategies:
            caption = f"{shown(group.strategy or 'no strategy')}: {caption}"
        run = by_id.get(group.runs[-1])
        if run and run.differs_in:
            caption = f"{shown(run.settings_text)}: {caption}"
        notes = [_SCALING_NOTES[group.scaling].format(unit=unit)] if group.scaling else []
        yield _speed_table(caption, group.cells, notes)
    alone = [cell for group in groups if not group.baseline for cell in group.cells]
    if repeated := [cell for cell in alone if cell.num_measured > 1]:
        settings = {cell.runs[0]: by_id[cell.runs[0]].settings_text for cell in repeated}
        column = Column[Cell]("settings", lambda cell: settings[cell.runs[0]], align="left")
        columns = [
            *([column] if any(settings.values()) else []),
            gpus_column(lambda cell: cell),
            Column("runs", lambda cell: cell.num_measured),
            Column("samples/s", lambda cell: cell.samples_per_s, mean_interval()),
        ]
        yield Table("Repeats, with the 95 % confidence interval of their mean", columns, repeated)


def comparison_tables(comparison: Group) -> Iterator[Table[Cell]]:
    """Yield how fast the variants are, and what each lost."""
    cells = comparison.cells
    yield _speed_table("", cells, [])
    if any(cell.against for cell in cells):
        name: Column[Cell] = Column("variant", lambda cell: cell.name, align="left")
        lost = _share_columns(lambda cell: cell.lost, cells)
        note = "\n".join(_notes([cell for cell in cells if cell.lost]))
        yield Table("Share of the time lost against the ideal, in %", [name, *lost], cells, note)


def _speed_table(caption: str, cells: Sequence[Cell], notes: Sequence[str]) -> Table[Cell]:
    unit_s, unit = time_unit(max(cell.step_time_s or 0.0 for cell in cells))
    notes = [BASELINE_NOTE, *notes]
    if note := interval_note(cell.speedup for cell in cells):
        notes.append(note)
    spreads = {cell.samples_per_s.over for cell in cells if cell.samples_per_s}
    if {"runs", "windows"} <= spreads:
        notes.append("samples/s of what was run once: over equal parts of its run")
    forecast = next((cell.forecast for cell in cells if cell.forecast), None)
    if forecast and len(cells) >= FEWEST_SIZES:
        notes.append(forecast_sentence(forecast, cells[0]))

    def num_runs(cell: Cell) -> str:
        return f"{cell.num_measured} of {len(cell.runs)}" if cell.name else f"{cell.num_measured}"

    columns: list[Column[Cell]] = [
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
    if any(cell.name for cell in cells):
        columns.insert(0, Column("variant", lambda cell: cell.name, align="left"))
    return Table(caption, columns, cells, "\n".join(notes))


def forecast_sentence(forecast: Forecast, baseline: Cell) -> str:
    """Return `Forecast: 8 GPUs 5.9 to 6.6 times, 16 GPUs ...`, or why there is none."""
    if forecast.refused_because is not None:
        return f"No forecast for more GPUs: {forecast.refused_because}."
    unit = "GPU" if baseline.num_cpus is None else "rank"
    ranges = []
    for size in forecast.sizes:
        assert size.speedup.interval is not None
        low, high = size.speedup.interval.low, size.speedup.interval.high
        decimals = min(2, decimals_for([low]))
        times = f"{format_number(low, decimals)} to {format_number(high, decimals)} times"
        ranges.append(f"{number_of(size.gpus, unit)} {times}")
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in forecast.notes)
    ending = f"as fast as {baseline.num_gpus}, with 95 % confidence."
    return f"Forecast: {', '.join(ranges)} {ending}{notes}"


def share_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Cell]]:
    """Yield a table for each group of several sizes, and one for all other groups.

    `rows` are the runs of all groups.
    """
    numbers = {row.run.run: row.number for row in rows}
    size_columns: list[Column[Cell]] = [
        Column("#", lambda row: sorted(numbers[run] for run in row.runs), each(format_ranges)),
        gpus_column(lambda row: row),
    ]
    compared = [
        group for group in groups if group.baseline and any(cell.lost for cell in group.cells)
    ]
    has_strategies = len({group.strategy for group in compared}) > 1
    names = []
    for group in compared:
        strategy = f"{shown(group.strategy or 'no strategy')}, " if has_strategies else ""
        names.append(
            f"{strategy}{group.scaling} scaling" if group.scaling else f"{strategy}scaling"
        )
    for group, name in zip(compared, names, strict=True):
        pauses = (part.CHECKPOINTS, part.RESTARTS)
        losses = [cell.lost for cell in group.cells if cell.lost]
        has_pauses = any(abs(lost[name]) >= _SEEN for lost in losses for name in pauses)
        title = f"{_AGAINST} ({name})" if len(set(names)) > 1 else _AGAINST
        kept: Column[Cell] = Column("not\nlost", lambda row: row.overall, percent())
        lost = _share_columns(lambda row: row.lost, group.cells)
        columns = [*size_columns, kept, *lost]
        note = "\n".join([*_notes(group.cells), *([_NOTE] if has_pauses else [])])
        yield Table(title, columns, group.cells, note)
    if alone := alone_cells(groups):
        columns = _share_columns(lambda row: row.shares, alone, computing=_FORWARD_BACKWARD)
        yield Table(_ALONE, [*size_columns, *columns], alone, "\n".join(_notes(alone)))


def _notes(rows: Sequence[Any]) -> Iterator[str]:
    """Explain the columns of shares."""
    are_mixed = [row.computing_has_communication for row in rows]
    if not all(are_mixed):
        yield _EXPOSED
    if any(are_mixed):
        yield _MIXED


def alone_cells(groups: Sequence[Group]) -> list[Cell]:
    """Return the cells of groups of one size, unless all of the time is in no phase."""
    alone = [cell for group in groups if not group.baseline for cell in group.cells]
    return [cell for cell in alone if cell.shares and cell.shares[part.UNDIVIDED] < 1 - _SEEN]


def _share_columns(
    shares_of: Callable[[Any], Mapping[str, float] | None],
    rows: Sequence[Any],
    *,
    computing: str = LOOKS[part.COMPUTING].header,
) -> list[Column[Any]]:
    """Return a column for each share that some row has, in whole percent that add up, and their
    sum."""
    of_rows = [shares for row in rows if (shares := shares_of(row))]
    names = [
        name
        for name in part.SHARES
        if name in _ALWAYS or any(abs(shares[name]) >= _SEEN for shares in of_rows)
    ]

    def percents(row: Any) -> dict[str, int]:
        shares = shares_of(row)
        if shares is None:
            return {}
        return whole_percents({name: shares[name] for name in names})

    def percent_of(name: str) -> Callable[[Any], int | None]:
        return lambda row: percents(row).get(name)

    def whole(row: Any) -> int | None:
        return sum(percents(row).values()) if percents(row) else None

    if any(row.computing_has_communication for row in rows):
        computing = _MIXED_HEADERS[computing]
    headers = {name: LOOKS[name].header for name in names} | {part.COMPUTING: computing}
    columns = [Column(headers[name], percent_of(name)) for name in names]
    return [*columns, Column("in\nall", whole)]
