"""Where the time goes, by size, as text; the columns of parts are those of comparisons too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.text import UNDEFINED, format_percent, format_ranges, shown, whole_percents
from hpcdist.summary.figures.shares import (
    CHECKPOINTS,
    COMMUNICATION,
    COMPUTING,
    DATA,
    DEVICE,
    FIXED,
    RESTARTS,
    SHARES,
    STRAGGLERS,
    UNDIVIDED,
)
from hpcdist.summary.report.table import Column, Row, Titled
from hpcdist.summary.values import Group, Losses

_HEADERS = {
    DATA: "data\nwait",
    DEVICE: "to\ndev.",
    COMMUNICATION: "exposed\ncomm.",
    STRAGGLERS: "strag-\nglers",
    COMPUTING: "slower\ncomp.",
    FIXED: "fixed\ncost",
    CHECKPOINTS: "check-\npoint",
    RESTARTS: "re-\nstarts",
    UNDIVIDED: "in no\nphase",
}
_ALWAYS = {DATA, COMMUNICATION, STRAGGLERS, COMPUTING, FIXED}
"""Others have a column where some row has them."""

_AGAINST = "Where the time goes: lost against the ideal, in % of all the time"
_ALONE = "Where the time goes, in % of all the time"
_NOTE = (
    "all the time is that of steps, checkpoints and what restarts cost, so that in all may be more "
    "than 100 - effic."
)


def losses_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Titled]:
    """A table for each group of several sizes, with a line for each; one for all other groups.

    `rows` are the runs of all groups.
    """
    numbers = {row.run.run: row.number for row in rows}
    compared = [group for group in groups if group.baseline and group.losses]
    names = [_name(group, compared) for group in compared]
    for group, name in zip(compared, names, strict=True):
        note = _NOTE if _has_pauses(group.losses) else ""
        columns = [*_size_columns(numbers), *_lost_columns(group.losses)]
        title = f"{_AGAINST} ({name})" if len(set(names)) > 1 else _AGAINST
        yield Titled(title, group.losses, columns, note)
    if alone := losses_alone(groups):
        yield Titled(_ALONE, alone, [*_size_columns(numbers), *_share_columns(alone)])


def losses_alone(groups: Sequence[Group]) -> list[Losses]:
    """Of groups of one size, as far as there is more than time in no phase."""
    found = [one for group in groups if not group.baseline for one in group.losses]
    return [one for one in found if one.shares[UNDIVIDED] < 1 - _SEEN]


def _name(group: Group, groups: Sequence[Group]) -> str:
    """`fsdp, weak scaling`: what tells a group from others, as the tables of sizes do."""
    told = [f"{group.scaling} scaling" if group.scaling else "scaling"]
    if len({one.strategy for one in groups}) > 1:
        told = [shown(group.strategy or "no strategy"), *told]
    return ", ".join(told)


def _has_pauses(sizes: Sequence[Losses]) -> bool:
    """Whether the whole is another than that of steps."""
    pauses = (CHECKPOINTS, RESTARTS)
    return any(abs(one.lost[part]) >= _SEEN for one in sizes for part in pauses)


def part_columns(
    shares_of: Callable[[Any], Mapping[str, float] | None],
    rows: Sequence[Any],
    *,
    headers: Mapping[str, str] = _HEADERS,
) -> list[Column]:
    """A column for each part that some row has, in whole percent that add up, and their sum."""
    known = [shares for row in rows if (shares := shares_of(row))]
    told = [
        part
        for part in SHARES
        if part in _ALWAYS or any(abs(shares[part]) >= _SEEN for shares in known)
    ]

    def percents(row: Any) -> dict[str, int] | None:
        shares = shares_of(row)
        if shares is None:
            return None
        return dict(zip(told, whole_percents([shares[part] for part in told]), strict=True))

    def share(part: str) -> Callable[[Any], str]:
        def cell(row: Any) -> str:
            found = percents(row)
            return UNDEFINED if found is None else str(found[part])

        return cell

    def whole(row: Any) -> str:
        found = percents(row)
        return UNDEFINED if found is None else str(sum(found.values()))

    return [*(Column(headers[part], share(part)) for part in told), Column("in\nall", whole)]


_SEEN = 0.005
"""Less is 0 %."""


def _size_columns(numbers: Mapping[str, int]) -> list[Column]:
    return [
        Column("#", lambda row: format_ranges(sorted(numbers[run] for run in row.runs))),
        Column("nodes\nx gpus", lambda row: f"{row.nodes} x {row.gpus_per_node}"),
    ]


def _lost_columns(sizes: Sequence[Losses]) -> list[Column]:
    return [
        Column("not\nlost", _efficiency),
        *part_columns(lambda row: row.lost, sizes),
    ]


def _share_columns(sizes: Sequence[Losses]) -> list[Column]:
    headers = _HEADERS | {COMPUTING: "forward\nbackward"}
    return part_columns(lambda row: row.shares, sizes, headers=headers)


def _efficiency(row: Losses) -> str:
    return format_percent(row.efficiency)
