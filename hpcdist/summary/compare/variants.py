"""The variants of a comparison beside each other, and what each lost against the ideal: pure.

Of each variant the repeats are averaged; its speed-up is against the first variant. Ideal is as
many times the speed as there are times the GPUs; what is lost is divided as for any other runs
(`losses`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hpcdist.base.statistics import Measure, measure, ratio
from hpcdist.summary.compare.lost_shares import (
    Size,
    against,
    can_divide,
    common_straggler,
    size_of,
    with_advice,
)
from hpcdist.summary.compare.sizes import measured_rate
from hpcdist.summary.figures.metrics import MeasuredRun
from hpcdist.summary.values import Comparison, RunSummary, VariantSummary


class _Variant(NamedTuple):
    summary: VariantSummary
    measured: list[MeasuredRun]
    """Those that count."""

    @property
    def rate(self) -> Measure:
        """Samples/s of those that count: over the runs, or of one run over its windows."""
        return measured_rate([run.summary for run in self.measured])

    @property
    def size(self) -> Size:
        """Of those that count, of which there are some."""
        runs = [run.summary for run in self.measured]
        return size_of(runs, self.summary.num_devices)


def compare_variants(runs: Sequence[MeasuredRun]) -> Comparison:
    """The variants of one comparison, in the order of `runs`; only done runs are counted."""
    by_variant: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        by_variant.setdefault(run.variant or "", []).append(run)
    described = [_describe(name, theirs) for name, theirs in by_variant.items()]
    baseline = described[0]
    return Comparison(
        id=runs[0].comparison or "",
        baseline=baseline.summary.name,
        variants=[_against(one, baseline) for one in described],
    )


def with_speedups(runs: Sequence[MeasuredRun], comparison: Comparison) -> list[RunSummary]:
    """The runs' own summaries, each compared with the mean of the first variant."""
    baseline = comparison.variants[0]
    without = {run for one in comparison.variants if one.is_without_its_gpus for run in one.runs}
    return [
        _with_speedup(run, baseline, has_its_gpus=run.summary.run not in without) for run in runs
    ]


def _describe(name: str, runs: Sequence[MeasuredRun]) -> _Variant:
    measured = [run for run in runs if _counts(run)]
    summaries = [run.summary for run in measured]
    rates = [run.samples_per_s.mean for run in summaries if run.samples_per_s]
    rate = measure(rates) if rates else None
    summary = VariantSummary(
        name=name,
        job=runs[0].summary.job,
        runs=[run.summary.run for run in runs],
        num_measured=len(measured),
        num_devices=runs[0].num_devices,
        nodes=runs[0].summary.nodes,
        world_size=runs[0].summary.world_size,
        num_cpus=runs[0].summary.num_cpus,
        samples_per_s=rate,
        interval=rate.interval if rate else None,
        straggler=common_straggler(summaries),
    )
    return _Variant(summary, measured)


def _counts(run: MeasuredRun) -> bool:
    return run.summary.state == "done" and can_divide(run.summary)


def _against(variant: _Variant, baseline: _Variant) -> VariantSummary:
    summary = variant.summary
    mine, theirs = summary.samples_per_s, baseline.summary.samples_per_s
    if mine is not None:
        summary = msgspec.structs.replace(summary, parts_s=dict(variant.size.parts_s))
    if variant is baseline or mine is None or theirs is None:
        return summary
    speedup = ratio(variant.rate, baseline.rate)
    times_devices = summary.num_devices / baseline.summary.num_devices
    if summary.is_without_its_gpus:
        return msgspec.structs.replace(summary, speedup=speedup, ideal=times_devices)
    lost = with_advice(against(variant.size, baseline.size), variant.measured)
    return msgspec.structs.replace(
        summary,
        speedup=speedup,
        ideal=times_devices,
        efficiency=speedup.mean / times_devices,
        overall=lost.efficiency,
        lost=lost.lost,
        advice=lost.advice,
    )


def _with_speedup(run: MeasuredRun, baseline: VariantSummary, *, has_its_gpus: bool) -> RunSummary:
    rate = run.summary.samples_per_s
    if baseline.samples_per_s is None or rate is None or not _counts(run):
        missing = run.missing or f"its state is {run.summary.state or 'not known'}"
        return msgspec.structs.replace(run.summary, not_compared_because=missing)
    speedup = rate.mean / baseline.samples_per_s.mean
    return msgspec.structs.replace(
        run.summary,
        speedup=speedup,
        efficiency=speedup * baseline.num_devices / run.num_devices if has_its_gpus else None,
        compared_with=baseline.runs,
    )
