"""A comparison as text: what its variants came to, where their steps lost time."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.base.text import (
    UNDEFINED,
    decimals_for,
    format_mean_sd,
    format_percent,
    shown,
)
from hpcdist.summary.report.losses_table import part_columns
from hpcdist.summary.report.table import Column, Titled
from hpcdist.summary.values import Comparison, VariantSummary


def comparison_tables(comparison: Comparison) -> Iterator[Titled]:
    """How fast the variants are, and what each lost."""
    yield Titled("", comparison.variants, _speed_columns(comparison))
    if any(variant.lost for variant in comparison.variants):
        caption = "Lost of the time against the ideal, in %"
        columns = part_columns(_lost, comparison.variants)
        yield Titled(caption, comparison.variants, [_name_column(), *columns])


def _speed_columns(comparison: Comparison) -> list[Column]:
    rates = [one.samples_per_s.mean for one in comparison.variants if one.samples_per_s]
    decimals = decimals_for(rates)

    def samples_per_s(variant: VariantSummary) -> str:
        rate = variant.samples_per_s
        return format_mean_sd(rate.mean, rate.sd, decimals) if rate else UNDEFINED

    def speedup(variant: VariantSummary) -> str:
        if variant.name == comparison.baseline:
            return "1 *"
        times = variant.speedup
        if times is None:
            return UNDEFINED
        return f"{format_mean_sd(times.mean, times.sd if times.over == 'runs' else None, 2)}  "

    return [
        _name_column(),
        Column("runs", lambda variant: f"{variant.num_measured} of {len(variant.runs)}"),
        Column("GPUs", lambda variant: str(variant.num_devices)),
        Column("samples/s", samples_per_s),
        Column("speed-\nup  ", speedup),
        Column("effic.\n(%)", lambda variant: format_percent(variant.efficiency)),
    ]


def _lost(variant: VariantSummary) -> dict[str, float] | None:
    return variant.lost


def _name_column() -> Column:
    return Column("variant", lambda variant: shown(variant.name), is_number=False)
