"""The variants of a comparison beside each other, and what each lost against the ideal: pure.

Of each variant the repeats are averaged; its speed-up is against the first variant. Ideal is as
many times the speed as there are times the GPUs; what is lost is divided as for any other runs
(`losses`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from hpcdist.base.statistics import Ratio, ratios
from hpcdist.summary.compare.sizes import (
    can_divide,
    common_straggler,
    lose_against,
    mean_parts_s,
    measured_rate,
)
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Comparison, VariantSummary


class Speedup(Struct, frozen=True):
    """A run against the mean of its baseline."""

    speedup: float | None = None
    efficiency: float | None = None
    compared_with: list[str] = []
    not_compared_because: str | None = None


def compare_variants(runs: Sequence[MeasuredRun]) -> tuple[Comparison, list[Speedup]]:
    """Compare the variants of one comparison, in the order of `runs`, and each run with the mean of
    the first variant; only done runs are counted."""
    by_name: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        own = by_name.setdefault(run.figures.variant or "", [])
        own.append(_as_repeat(run, own[0]) if own else run)
    first = runs[0].figures.variant or ""
    speedups = _speedups(by_name, first)
    variants = {
        name: _summarize(name, own, by_name[first], speedups.get(name))
        for name, own in by_name.items()
    }
    comparison = Comparison(
        id=runs[0].figures.comparison or "", baseline=first, variants=list(variants.values())
    )
    speedup_of = {
        run.figures.run: _speedup(run, variants[name], variants[first])
        for name, own in by_name.items()
        for run in own
    }
    return comparison, [speedup_of[run.figures.run] for run in runs]


def _speedups(by_name: Mapping[str, Sequence[MeasuredRun]], first: str) -> dict[str, Ratio]:
    """Return the ratio of each variant to the first one, judged together; of those without a run
    that counts there is none."""
    rates = {
        name: measured_rate(counted)
        for name, runs in by_name.items()
        if (counted := [run.figures for run in runs if _counts(run)])
    }
    baseline = rates.pop(first, None)
    if baseline is None:
        return {}
    judged = ratios([(rate, baseline) for rate in rates.values()])
    return dict(zip(rates, judged, strict=True))


def _summarize(
    name: str,
    runs: Sequence[MeasuredRun],
    baseline_runs: Sequence[MeasuredRun],
    speedup: Ratio | None,
) -> VariantSummary:
    counted, baseline = ([run for run in side if _counts(run)] for side in (runs, baseline_runs))
    first, num_devices = runs[0].figures, runs[0].num_devices
    rate = measured_rate([run.figures for run in counted]) if counted else None
    variant = VariantSummary(
        name=name,
        job=first.job,
        workload=runs[0].conditions.get("workload"),
        runs=[run.figures.run for run in runs],
        num_measured=len(counted),
        why_none=None if counted else next(filter(None, map(_why_unfit, runs)), None),
        num_devices=num_devices,
        nodes=first.nodes,
        world_size=first.world_size,
        num_cpus=first.num_cpus,
        ran_with=first.ran_with,
        disturbed=next((run.figures.disturbed for run in counted if run.figures.disturbed), None),
        samples_per_s=rate,
        interval=rate.interval if rate else None,
        parts_s=mean_parts_s(counted) if counted else None,
        computing_has_communication=any(run.figures.computing_has_communication for run in counted),
        straggler=common_straggler(counted),
    )
    if speedup is None:
        return variant
    ideal = num_devices / baseline_runs[0].num_devices
    variant = msgspec.structs.replace(variant, speedup=speedup, ideal=ideal)
    if variant.is_without_its_gpus:
        return variant
    losses = lose_against(counted, baseline, times_gpus=ideal)
    return msgspec.structs.replace(
        variant,
        efficiency=speedup.mean / ideal,
        lost=losses.lost,
        overall=losses.efficiency,
        advice=losses.advice,
    )


def _as_repeat(run: MeasuredRun, first: MeasuredRun) -> MeasuredRun:
    """Return a run of a variant as one that does not count where it is no repeat of the first."""
    mine, theirs = (msgspec.structs.asdict(each.figures.ran_with) for each in (run, first))
    for key, value in mine.items():
        if value and theirs[key] and value != theirs[key]:
            why = f"{key} is {value}, but {theirs[key]} in {first.figures.run}"
            return msgspec.structs.replace(run, set_aside=why)
    return run


def _why_unfit(run: MeasuredRun) -> str | None:
    return run.unfit or run.set_aside


def _counts(run: MeasuredRun) -> bool:
    is_fit = _why_unfit(run) is None
    return run.figures.state == "done" and is_fit and can_divide(run.figures)


def _speedup(run: MeasuredRun, variant: VariantSummary, baseline: VariantSummary) -> Speedup:
    rate = run.figures.samples_per_s
    if baseline.samples_per_s is None or rate is None or not _counts(run):
        missing = (
            _why_unfit(run) or run.missing or f"its state is {run.figures.state or 'not known'}"
        )
        return Speedup(not_compared_because=missing)
    speedup = rate.mean / baseline.samples_per_s.mean
    share = baseline.num_devices / variant.num_devices
    efficiency = None if variant.is_without_its_gpus else speedup * share
    return Speedup(speedup, efficiency, baseline.runs)
