"""The variants of a comparison beside each other, and what each lost against the ideal: pure.

Of each variant the repeats are averaged; its speed-up is against the first variant. Ideal is as
many times the speed as there are times the GPUs; what is lost is divided as for any other runs
(`losses`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

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
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Comparison, VariantSummary


class Speedup(Struct, frozen=True):
    """A run against the mean of its baseline."""

    speedup: float | None = None
    efficiency: float | None = None
    compared_with: list[str] = []
    not_compared_because: str | None = None


class _Variant(NamedTuple):
    """All runs of one variant."""

    name: str
    runs: list[MeasuredRun]

    @property
    def counted(self) -> list[MeasuredRun]:
        return [run for run in self.runs if _counts(run)]

    @property
    def rate(self) -> Measure:
        """Samples/s of those that count: over the runs, or of one run over its windows."""
        return measured_rate([run.figures for run in self.counted])

    @property
    def size(self) -> Size:
        """Return the size of the runs that count; there is at least one."""
        return size_of([run.figures for run in self.counted], self.num_devices)

    @property
    def num_devices(self) -> int:
        return self.runs[0].num_devices

    @property
    def is_without_its_gpus(self) -> bool:
        """DataParallel on CPUs is a single process like any other."""
        figures = self.runs[0].figures
        return figures.world_size < self.num_devices and figures.num_cpus is not None


def compare_variants(runs: Sequence[MeasuredRun]) -> tuple[Comparison, list[Speedup]]:
    """Compare the variants of one comparison, in the order of `runs`, and each run with the mean of
    the first variant; only done runs are counted."""
    by_name: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        by_name.setdefault(run.figures.variant or "", []).append(run)
    variants = {name: _Variant(name, theirs) for name, theirs in by_name.items()}
    baseline = next(iter(variants.values()))
    comparison = Comparison(
        id=runs[0].figures.comparison or "",
        baseline=baseline.name,
        variants=[_summarize(variant, baseline) for variant in variants.values()],
    )
    summaries = {variant.name: variant for variant in comparison.variants}
    first = comparison.variants[0]
    return comparison, [_speedup(run, summaries[run.figures.variant or ""], first) for run in runs]


def _summarize(variant: _Variant, baseline: _Variant) -> VariantSummary:
    counted, first = variant.counted, variant.runs[0].figures
    rates = [run.figures.samples_per_s.mean for run in counted if run.figures.samples_per_s]
    rate = measure(rates) if rates else None
    speedup, lost = None, None
    if counted and baseline.counted and variant is not baseline:
        speedup = ratio(variant.rate, baseline.rate)
        if not variant.is_without_its_gpus:
            lost = with_advice(against(variant.size, baseline.size), counted)
    ideal = variant.num_devices / baseline.num_devices if speedup else 1.0
    return VariantSummary(
        name=variant.name,
        job=first.job,
        workload=variant.runs[0].conditions.get("workload"),
        runs=[run.figures.run for run in variant.runs],
        num_measured=len(counted),
        num_devices=variant.num_devices,
        nodes=first.nodes,
        world_size=first.world_size,
        num_cpus=first.num_cpus,
        samples_per_s=rate,
        interval=rate.interval if rate else None,
        parts_s=dict(variant.size.parts_s) if counted else None,
        straggler=common_straggler([run.figures for run in counted]),
        speedup=speedup,
        ideal=ideal,
        efficiency=speedup.mean / ideal if speedup and lost else None,
        lost=lost.lost if lost else None,
        overall=lost.efficiency if lost else None,
        advice=lost.advice if lost else [],
    )


def _counts(run: MeasuredRun) -> bool:
    return run.figures.state == "done" and can_divide(run.figures)


def _speedup(run: MeasuredRun, variant: VariantSummary, baseline: VariantSummary) -> Speedup:
    rate = run.figures.samples_per_s
    if baseline.samples_per_s is None or rate is None or not _counts(run):
        missing = run.missing or f"its state is {run.figures.state or 'not known'}"
        return Speedup(not_compared_because=missing)
    speedup = rate.mean / baseline.samples_per_s.mean
    share = baseline.num_devices / variant.num_devices
    return Speedup(
        speedup,
        None if variant.is_without_its_gpus else speedup * share,
        baseline.runs,
    )
