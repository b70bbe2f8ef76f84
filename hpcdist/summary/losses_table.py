"""Where the time goes, by size, as text; the columns of parts are those of comparisons too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdist.summary import parts
from hpcdist.summary.parts import PARTS
from hpcdist.summary.table import Column, Titled
from hpcdist.summary.text import UNDEFINED, format_percent, whole_percents
from hpcdist.summary.values import Group, Losses

_HEADERS = {
    parts.DATA: "data\nwait",
    parts.DEVICE: "to\ndevice",
    parts.COMMUNICATION: "exposed\ncomm.",
    parts.STRAGGLERS: "strag-\nglers",
    parts.COMPUTING: "slower\ncomputing",
    parts.FIXED: "fixed\ncost",
    parts.CHECKPOINTS: "check-\npoints",
    parts.RESTARTS: "re-\nstarts",
    parts.UNDIVIDED: "in no\nphase",
}
_ALWAYS = {parts.DATA, parts.COMMUNICATION, parts.STRAGGLERS, parts.COMPUTING, parts.FIXED}
"""Others have a column where some row has them."""

_AGAINST = "Where the time goes: lost against the ideal, in % of all the time"
_ALONE = "Where the time goes, in % of all the time"
_NOTE = (
    "all the time is that of steps, checkpoints and what restarts cost, so that in all may be more "
    "than 100 - effic."
)


def losses_tables(groups: Sequence[Group]) -> Iterator[Titled]:
    """A table for each group: a line for each size."""
    for group in groups:
        if not group.losses:
            continue
        if group.baseline:
            has_pauses = any(
                abs(one.lost[part]) >= _SEEN
                for one in group.losses
                for part in (parts.CHECKPOINTS, parts.RESTARTS)
            )
            note = _NOTE if has_pauses else ""
            yield Titled(_AGAINST, group.losses, [*_size_columns(), *_lost_columns(group)], note)
        else:
            yield Titled(_ALONE, group.losses, [*_size_columns(), *_share_columns(group)])


def part_columns(
    shares_of: Callable[[Any], Mapping[str, float] | None],
    rows: Sequence[Any],
    *,
    headers: Mapping[str, str] = _HEADERS,
) -> list[Column]:
    """A column for each part that some row has, in whole percent that add up, and their sum."""
    known = [shares for row in rows if (shares := shares_of(row))]
    shown = [
        part
        for part in PARTS
        if part in _ALWAYS or any(abs(shares[part]) >= _SEEN for shares in known)
    ]

    def percents(row: Any) -> dict[str, int] | None:
        shares = shares_of(row)
        if shares is None:
            return None
        return dict(zip(shown, whole_percents([shares[part] for part in shown]), strict=True))

    def share(part: str) -> Callable[[Any], str]:
        def cell(row: Any) -> str:
            found = percents(row)
            return UNDEFINED if found is None else str(found[part])

        return cell

    def whole(row: Any) -> str:
        found = percents(row)
        return UNDEFINED if found is None else str(sum(found.values()))

    return [*(Column(headers[part], share(part)) for part in shown), Column("in all", whole)]


_SEEN = 0.005
"""Less is 0 %."""


def _size_columns() -> list[Column]:
    return [
        Column("nodes\nx gpus", lambda row: f"{row.nodes} x {row.gpus_per_node}"),
        Column("runs", lambda row: str(len(row.runs))),
    ]


def _lost_columns(group: Group) -> list[Column]:
    return [
        Column("not lost", _efficiency),
        *part_columns(lambda row: row.lost, group.losses),
    ]


def _share_columns(group: Group) -> list[Column]:
    headers = _HEADERS | {parts.COMPUTING: "forward\nbackward"}
    return part_columns(lambda row: row.shares, group.losses, headers=headers)


def _efficiency(row: Losses) -> str:
    return format_percent(row.efficiency)
