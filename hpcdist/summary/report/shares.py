"""Tables of shares of the time, by size, and by variant of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, each, mean_interval, percent
from hpcdist.base.text import format_ranges, shown, spread_text, whole_percents
from hpcdist.summary.figures import shares as part
from hpcdist.summary.report.runs import BASELINE_NOTE, Row, gpus_column, interval_note
from hpcdist.summary.report.words import footnote
from hpcdist.summary.values import Comparison, Group, Losses, VariantSummary


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


def share_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Losses]]:
    """Yield a table for each group of several sizes, and one for all other groups.

    `rows` are the runs of all groups.
    """
    numbers = {row.run.run: row.number for row in rows}
    size_columns: list[Column[Losses]] = [
        Column("#", lambda row: sorted(numbers[run] for run in row.runs), each(format_ranges)),
        gpus_column(lambda row: row),
    ]
    compared = [group for group in groups if group.baseline and group.losses]
    has_strategies = len({group.strategy for group in compared}) > 1
    names = []
    for group in compared:
        strategy = f"{shown(group.strategy or 'no strategy')}, " if has_strategies else ""
        names.append(
            f"{strategy}{group.scaling} scaling" if group.scaling else f"{strategy}scaling"
        )
    for group, name in zip(compared, names, strict=True):
        pauses = (part.CHECKPOINTS, part.RESTARTS)
        has_pauses = any(abs(size.lost[name]) >= _SEEN for size in group.losses for name in pauses)
        title = f"{_AGAINST} ({name})" if len(set(names)) > 1 else _AGAINST
        kept: Column[Losses] = Column("not\nlost", lambda row: row.efficiency, percent())
        lost = _share_columns(lambda row: row.lost, group.losses)
        columns = [*size_columns, kept, *lost]
        note = "\n".join([*_notes(group.losses), *([_NOTE] if has_pauses else [])])
        yield Table(title, columns, group.losses, note)
    if alone := alone_losses(groups):
        columns = _share_columns(lambda row: row.shares, alone, computing=_FORWARD_BACKWARD)
        yield Table(_ALONE, [*size_columns, *columns], alone, "\n".join(_notes(alone)))


def _notes(rows: Sequence[Any]) -> Iterator[str]:
    """Explain the columns of shares."""
    are_mixed = [row.computing_has_communication for row in rows]
    if not all(are_mixed):
        yield _EXPOSED
    if any(are_mixed):
        yield _MIXED


def alone_losses(groups: Sequence[Group]) -> list[Losses]:
    """Return the shares of groups of one size, unless all of the time is in no phase."""
    alone = [losses for group in groups if not group.baseline for losses in group.losses]
    return [losses for losses in alone if losses.shares[part.UNDIVIDED] < 1 - _SEEN]


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


def comparison_tables(comparison: Comparison) -> Iterator[Table[VariantSummary]]:
    """Yield how fast the variants are, and what each lost."""
    variants = comparison.variants
    name: Column[VariantSummary] = Column("variant", lambda variant: variant.name, align="left")

    def is_baseline(variant: VariantSummary) -> bool:
        return variant.name == comparison.baseline

    def speedup(variant: VariantSummary) -> Measure | str | None:
        return "1" if is_baseline(variant) else variant.speedup

    def num_runs(variant: VariantSummary) -> tuple[int, int]:
        return variant.num_measured, len(variant.runs)

    columns: list[Column[VariantSummary]] = [
        name,
        Column("runs", num_runs, each("{0[0]} of {0[1]}".format)),
        Column("GPUs", lambda variant: variant.num_devices),
        Column("samples/s", lambda variant: variant.samples_per_s, mean_interval()),
        Column(
            "speed-\nup",
            speedup,
            each(lambda value: spread_text(value, 2)),
            is_marked=is_baseline,
        ),
        Column("effic.", lambda variant: variant.efficiency, percent(), unit="%"),
    ]
    notes = [BASELINE_NOTE, interval_note([variant.speedup for variant in variants])]
    yield Table("", columns, variants, "\n".join(filter(None, notes)))
    if any(variant.lost for variant in variants):
        lost = _share_columns(lambda variant: variant.lost, variants)
        note = "\n".join(_notes([variant for variant in variants if variant.lost]))
        yield Table("Share of the time lost against the ideal, in %", [name, *lost], variants, note)
