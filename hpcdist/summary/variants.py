"""The variants of a comparison beside each other, and what each step lost against the ideal: pure.

Of each variant the repeats are averaged; its speed-up is against the first variant. Ideal is as
many times the speed as there are times the GPUs, so of the step time T of a variant with n times
the GPUs and speed-up S, the share 1 - S / n is lost. For the same samples per GPU the first variant
needs S / n x T; each part of the step that takes longer than that part did there has lost the
difference. The parts make up the step, so the losses make up the whole loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from hpcdist.summary.metrics import MeasuredRun
from hpcdist.summary.student import interval_of
from hpcdist.summary.values import Comparison, Rate, RunSummary, VariantSummary

PARTS = ("data", "communication", "stragglers", "computing", "fixed")
"""What a step consists of here: waiting for data and bringing them to the device; exposed
communication of the slowest rank; what the others wait longer for that rank; forward and backward;
and what each step takes whatever its samples: the optimizer and all that is in no phase."""

_PHASES = {
    "data_wait": "data",
    "host_to_device": "data",
    "exposed_communication": "communication",
    "forward_backward": "computing",
}
"""Phase -> part; others are fixed."""


def compare_variants(runs: Sequence[MeasuredRun]) -> Comparison:
    """The variants of one comparison, in the order of `runs`; only done runs are counted."""
    by_variant: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        by_variant.setdefault(run.variant or "", []).append(run)
    described = [_describe(name, theirs) for name, theirs in by_variant.items()]
    baseline = described[0]
    return Comparison(
        id=runs[0].comparison or "",
        baseline=baseline.name,
        variants=[_against(one, baseline) for one in described],
    )


def with_speedups(runs: Sequence[MeasuredRun], comparison: Comparison) -> list[RunSummary]:
    """The runs' own summaries, each compared with the mean of the first variant."""
    baseline = comparison.variants[0]
    return [_with_speedup(run, baseline) for run in runs]


def parts_of_step(run: RunSummary) -> dict[str, float]:
    """Mean seconds per step by part; together the mean step time."""
    assert run.step_time_s is not None
    parts = dict.fromkeys(PARTS, 0.0)
    for phase, time_s in (run.phase_s or {}).items():
        if phase in _PHASES:
            parts[_PHASES[phase]] += time_s
    parts["stragglers"] = _straggling_s(run, parts["communication"])
    parts["communication"] -= parts["stragglers"]
    parts["fixed"] = run.step_time_s.mean - sum(parts.values())
    return parts


def lost_parts(
    parts_s: Mapping[str, float], baseline_s: Mapping[str, float], efficiency: float
) -> dict[str, float]:
    """Share of the step time that each part lost; together 1 - efficiency."""
    step_s, baseline_step_s = sum(parts_s.values()), sum(baseline_s.values())
    # So much of a step of the baseline is as many samples per GPU as a step here has.
    scale = efficiency * step_s / baseline_step_s
    return {part: (parts_s[part] - scale * baseline_s[part]) / step_s for part in PARTS}


def ratio(rate: Rate, baseline: Rate) -> Rate:
    """How many times as fast; the sd by propagation of both, None where one is not known."""
    times = rate.mean / baseline.mean
    if rate.sd is None or baseline.sd is None:
        return Rate(mean=times)
    spread = math.hypot(rate.sd / rate.mean, baseline.sd / baseline.mean)
    return Rate(mean=times, sd=times * spread)


def _describe(name: str, runs: Sequence[MeasuredRun]) -> VariantSummary:
    measured = [run.summary for run in runs if _counts(run)]
    return VariantSummary(
        name=name,
        job=runs[0].summary.job,
        runs=[run.summary.run for run in runs],
        num_measured=len(measured),
        num_devices=runs[0].num_devices,
        nodes=runs[0].summary.nodes,
        world_size=runs[0].summary.world_size,
        num_cpus=runs[0].summary.num_cpus,
        samples_per_s=_mean_rate(measured),
        interval=interval_of([run.samples_per_s.mean for run in measured if run.samples_per_s]),
        parts_s=_mean_parts(measured),
        slowest_rank=_slowest_rank(measured),
    )


def _counts(run: MeasuredRun) -> bool:
    rate = run.summary.samples_per_s
    return (
        run.summary.state == "done"
        and rate is not None
        and rate.mean > 0
        and run.summary.step_time_s is not None
    )


def _mean_rate(runs: Sequence[RunSummary]) -> Rate | None:
    rates = [run.samples_per_s.mean for run in runs if run.samples_per_s]
    if not rates:
        return None
    if len(rates) == 1:
        return Rate(mean=rates[0])
    return Rate(mean=fmean(rates), sd=stdev(rates), count=len(rates))


def _mean_parts(runs: Sequence[RunSummary]) -> dict[str, float] | None:
    parts = [parts_of_step(run) for run in runs]
    if not parts:
        return None
    return {part: fmean(one[part] for one in parts) for part in PARTS}


def _straggling_s(run: RunSummary, waiting_s: float) -> float:
    """What the ranks wait on average for the slowest one to come as far as they are."""
    if run.slowest_rank is None or run.step_time_s is None:
        return 0.0
    mean_own_s = run.step_time_s.mean - waiting_s
    return min(max(0.0, run.slowest_rank.own_time_s - mean_own_s), waiting_s)


def _slowest_rank(runs: Sequence[RunSummary]) -> int | None:
    """The rank that was the slowest in every run; None where it was not always the same."""
    ranks = {run.slowest_rank.rank for run in runs if run.slowest_rank}
    return ranks.pop() if len(ranks) == 1 and len(runs) > 1 else None


def _against(variant: VariantSummary, baseline: VariantSummary) -> VariantSummary:
    import msgspec

    mine, theirs = variant.samples_per_s, baseline.samples_per_s
    if variant is baseline or mine is None or theirs is None:
        return variant
    speedup = ratio(mine, theirs)
    times_devices = variant.num_devices / baseline.num_devices
    efficiency = speedup.mean / times_devices
    assert variant.parts_s is not None
    assert baseline.parts_s is not None
    return msgspec.structs.replace(
        variant,
        speedup=speedup,
        ideal=times_devices,
        efficiency=efficiency,
        lost=lost_parts(variant.parts_s, baseline.parts_s, efficiency),
    )


def _with_speedup(run: MeasuredRun, baseline: VariantSummary) -> RunSummary:
    import msgspec

    rate = run.summary.samples_per_s
    if baseline.samples_per_s is None or rate is None or not _counts(run):
        missing = run.missing or f"its state is {run.summary.state or 'not known'}"
        return msgspec.structs.replace(run.summary, not_compared_because=missing)
    speedup = rate.mean / baseline.samples_per_s.mean
    return msgspec.structs.replace(
        run.summary,
        speedup=speedup,
        efficiency=speedup * baseline.num_devices / run.num_devices,
        compared_with=baseline.runs,
    )
