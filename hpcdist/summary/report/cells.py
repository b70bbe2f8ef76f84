"""Tables of cells: how fast sizes, variants and repeats are and how sure that is, what more GPUs
would bring, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hpcdist.base.table import Column, Table, each, mean_interval, number, percent
from hpcdist.base.text import format_ranges, shown, spread_text, time_unit, whole_percents
from hpcdist.summary.compare.forecast import FEWEST_SIZES
from hpcdist.summary.figures import shares as part
from hpcdist.summary.report.runs import Row, gpus_column, known
from hpcdist.summary.report.sentences import forecast_sentence
from hpcdist.summary.values import Cell, Group, Scaling


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
LEAST_SHOWN = 0.005
"""Smaller shares are 0 % in a table, and thinner than a line in a picture."""

_BASELINE_NOTE = "* baseline of the speed-up; efficiency is speed-up per rank, 100 % is ideal"
_SCALING: dict[Scaling | None, str] = {
    "weak": "Weak scaling ({each:,.0f} samples per step for each {unit})",
    "strong": "Strong scaling ({all:,.0f} samples per step, shared by all {unit}s)",
    None: "Scaling",
}
"""Captions of the table of sizes."""
_SPREAD = (
    "±: 95 % confidence interval over repeated runs; of what was run once, over equal parts of the "
    "run, which does not show how runs differ"
)
_YES_NO = {True: "yes", False: "no", None: None}
_NOTES = {
    False: "exposed comm.: the time that ranks wait for communication that no computing hides",
    True: "comp. + comm.: computing and communication together, where nothing separates the two",
}
"""The meaning of a column of shares, by whether nothing separates the two."""


def speed_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Cell]]:
    """Yield a table for each group of several sizes, or of variants, with a line for each; and one
    of the sizes of other groups that were run more than once. `rows` are the runs of all groups."""
    settings = {row.run.run: shown(row.run.settings_text) for row in rows}
    compared = [group for group in groups if group.baseline]
    has_strategies = len({group.cells[-1].strategy for group in compared}) > 1
    for group in compared:
        last = group.cells[-1]
        unit, samples = last.unit, last.samples_per_step or 0.0
        each_one = samples / last.num_gpus
        caption = _SCALING[last.scaling].format(unit=unit, all=samples, each=each_one)
        strategy = shown(last.strategy or "no strategy") if has_strategies else ""
        caption = ": ".join(filter(None, [settings.get(group.runs[-1]), strategy, caption]))
        yield _speed_table("" if group.name else caption, group.cells, [_BASELINE_NOTE])
    alone = [cell for group in groups if not group.baseline for cell in group.cells]
    if repeated := [cell for cell in alone if cell.num_measured > 1]:
        named = [msgspec.structs.replace(cell, name=settings[cell.runs[0]]) for cell in repeated]
        yield _speed_table("Repeats", named, [])


def _speed_table(caption: str, cells: Sequence[Cell], notes: Sequence[str]) -> Table[Cell]:
    unit_s, unit = time_unit(max(cell.step_time_s or 0.0 for cell in cells))
    notes = [*notes, _SPREAD]
    forecast = next((cell.forecast for cell in cells if cell.forecast), None)
    if forecast and len(cells) >= FEWEST_SIZES:
        notes.append(forecast_sentence(forecast, cells[0]))
    columns: list[Column[Cell]] = [
        Column("variant", lambda cell: cell.name or None, align="left"),
        gpus_column(lambda cell: cell),
        Column("runs", lambda cell: cell.num_measured),
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


def share_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Cell]]:
    """Yield a table for each group of several sizes or of variants, and one for all other groups;
    `rows` are the runs of all groups."""
    numbers = {row.run.run: row.number for row in rows}
    firsts: list[Column[Cell]] = [
        Column("#", lambda cell: sorted(numbers[run] for run in cell.runs), each(format_ranges)),
        Column("variant", lambda cell: cell.name or None, align="left"),
        gpus_column(lambda cell: cell),
        Column("not\nlost", lambda cell: cell.overall if cell.against else None, percent()),
    ]
    compared = [group for group in groups if any(cell.against for cell in group.cells)]
    for group in compared:
        title = "Where the time goes: lost against the ideal, in % of all the time"
        if len(compared) > 1:
            last = group.cells[-1]
            names = [shown(last.strategy or ""), f"{last.scaling} scaling"]
            title += f" ({', '.join(filter(None, names))})"
        lost = {cell.runs[0]: cell.lost for cell in group.cells if cell.lost}
        yield _share_table(title, firsts, group.cells, lost)
    if alone := alone_cells(groups):
        shares = {cell.runs[0]: cell.shares for cell in alone if cell.shares}
        yield _share_table("Where the time goes, in % of all the time", firsts, alone, shares)


def alone_cells(groups: Sequence[Group]) -> list[Cell]:
    """Return the cells of groups of one size, unless all of the time is in no phase."""
    alone = [cell for group in groups if not group.baseline for cell in group.cells]
    return [cell for cell in alone if cell.shares and cell.shares[part.UNDIVIDED] < 1 - LEAST_SHOWN]


def _share_table(
    title: str,
    firsts: Sequence[Column[Cell]],
    cells: Sequence[Cell],
    shares: Mapping[str, Mapping[str, float]],
) -> Table[Cell]:
    """Return a table with a column for each share that some cell has, in whole percent that add up,
    and their sum. `shares` are those of a cell by the first of its runs."""
    percents = {run: whole_percents(own) for run, own in shares.items()}
    names = [name for name in part.SHARES if any(own[name] for own in percents.values())]
    are_mixed = {cell.computing_has_communication for cell in cells}
    headers = {name: LOOKS[name].header for name in names}
    if not any(cell.against for cell in cells):  # computing is all of it
        headers[part.COMPUTING] = "comp. +\ncomm." if True in are_mixed else "forward\nbackward"
    elif True in are_mixed:
        headers[part.COMPUTING] = "slower comp.\n+ comm."

    def percent_of(name: str) -> Callable[[Cell], int | None]:
        return lambda cell: percents.get(cell.runs[0], {}).get(name)

    whole: Column[Cell] = Column(
        "in\nall", lambda cell: sum(percents[cell.runs[0]].values()) if cell.lost else None
    )
    columns = [*firsts, *(Column(headers[name], percent_of(name)) for name in names), whole]
    notes = [_NOTES[True]] if True in are_mixed else []
    notes += [_NOTES[False]] if part.COMMUNICATION in names else []
    return Table(title, known(columns, cells), cells, "\n".join(notes))
