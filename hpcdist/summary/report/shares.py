"""Tables of shares of the time, by size, and by variant of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, each, mean_sd, percent
from hpcdist.base.text import format_mean_sd, format_ranges, shown, whole_percents
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
from hpcdist.summary.report.runs import Row, gpus_column
from hpcdist.summary.values import Comparison, Group, Losses, VariantSummary

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
"""Shares that always have a column; others have one where some row has them."""

_AGAINST = "Where the time goes: lost against the ideal, in % of all the time"
_ALONE = "Where the time goes, in % of all the time"
_NOTE = (
    "all the time is that of steps, checkpoints and what restarts cost, so that in all may be more "
    "than 100 - effic."
)


def share_tables(groups: Sequence[Group], rows: Sequence[Row]) -> Iterator[Table[Losses]]:
    """Yield a table for each group of several sizes, and one for all other groups.

    `rows` are the runs of all groups.
    """
    numbers = {row.run.run: row.number for row in rows}
    compared = [group for group in groups if group.baseline and group.losses]
    names = [_name(group, compared) for group in compared]
    for group, name in zip(compared, names, strict=True):
        note = _NOTE if _has_pauses(group.losses) else ""
        columns = [*_size_columns(numbers), *_lost_columns(group.losses)]
        title = f"{_AGAINST} ({name})" if len(set(names)) > 1 else _AGAINST
        yield Table(title, columns, group.losses, note)
    if alone := alone_losses(groups):
        yield Table(_ALONE, [*_size_columns(numbers), *_alone_columns(alone)], alone)


def alone_losses(groups: Sequence[Group]) -> list[Losses]:
    """Return the shares of groups of one size, unless all of the time is in no phase."""
    alone = [losses for group in groups if not group.baseline for losses in group.losses]
    return [losses for losses in alone if losses.shares[UNDIVIDED] < 1 - _SEEN]


def _name(group: Group, groups: Sequence[Group]) -> str:
    """Return `fsdp, weak scaling`: what distinguishes a group, as in the tables of sizes."""
    words = [f"{group.scaling} scaling" if group.scaling else "scaling"]
    if len({other.strategy for other in groups}) > 1:
        words.insert(0, shown(group.strategy or "no strategy"))
    return ", ".join(words)


def _has_pauses(sizes: Sequence[Losses]) -> bool:
    """Tell whether the whole time is more than that of steps."""
    pauses = (CHECKPOINTS, RESTARTS)
    return any(abs(losses.lost[name]) >= _SEEN for losses in sizes for name in pauses)


def _share_columns(
    shares_of: Callable[[Any], Mapping[str, float] | None],
    rows: Sequence[Any],
    *,
    headers: Mapping[str, str] = _HEADERS,
) -> list[Column[Any]]:
    """Return a column for each share that some row has, in whole percent that add up, and their
    sum."""
    of_rows = [shares for row in rows if (shares := shares_of(row))]
    names = [
        name
        for name in SHARES
        if name in _ALWAYS or any(abs(shares[name]) >= _SEEN for shares in of_rows)
    ]

    def percents(row: Any) -> dict[str, int]:
        shares = shares_of(row)
        if shares is None:
            return {}
        return dict(zip(names, whole_percents([shares[name] for name in names]), strict=True))

    def percent_of(name: str) -> Callable[[Any], int | None]:
        return lambda row: percents(row).get(name)

    def whole(row: Any) -> int | None:
        return sum(percents(row).values()) if percents(row) else None

    columns = [Column(headers[name], percent_of(name)) for name in names]
    return [*columns, Column("in\nall", whole)]


_SEEN = 0.005
"""Smaller shares are 0 % in a table."""


def _size_columns(numbers: Mapping[str, int]) -> list[Column[Losses]]:
    return [
        Column("#", lambda row: sorted(numbers[run] for run in row.runs), each(format_ranges)),
        gpus_column(lambda row: row),
    ]


def _lost_columns(sizes: Sequence[Losses]) -> list[Column[Losses]]:
    kept: Column[Losses] = Column("not\nlost", lambda row: row.efficiency, percent())
    return [kept, *_share_columns(lambda row: row.lost, sizes)]


def _alone_columns(sizes: Sequence[Losses]) -> list[Column[Losses]]:
    headers = _HEADERS | {COMPUTING: "forward\nbackward"}
    return _share_columns(lambda row: row.shares, sizes, headers=headers)


def comparison_tables(comparison: Comparison) -> Iterator[Table[VariantSummary]]:
    """Yield how fast the variants are, and what each lost."""
    variants = comparison.variants
    yield Table("", _variant_columns(comparison), variants)
    if any(variant.lost for variant in variants):
        columns = _share_columns(lambda variant: variant.lost, variants)
        yield Table("Share of the time lost against the ideal, in %", [_NAME, *columns], variants)


_NAME: Column[VariantSummary] = Column("variant", lambda variant: variant.name, align="left")


def _variant_columns(comparison: Comparison) -> list[Column[VariantSummary]]:
    def is_baseline(variant: VariantSummary) -> bool:
        return variant.name == comparison.baseline

    def speedup(variant: VariantSummary) -> Measure | int | None:
        return 1 if is_baseline(variant) else variant.speedup

    return [
        _NAME,
        Column(
            "runs",
            lambda variant: (variant.num_measured, len(variant.runs)),
            each("{0[0]} of {0[1]}".format),
        ),
        Column("GPUs", lambda variant: variant.num_devices),
        Column("samples/s", lambda variant: variant.samples_per_s, mean_sd()),
        Column("speed-\nup", speedup, each(_speedup), is_marked=is_baseline),
        Column("effic.", lambda variant: variant.efficiency, percent(), unit="%"),
    ]


def _speedup(value: Measure | int) -> str:
    if isinstance(value, int):
        return str(value)
    return format_mean_sd(value.mean, value.sd if value.over == "runs" else None, 2)
