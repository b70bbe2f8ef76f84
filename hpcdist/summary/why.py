"""Why a variant is not as many times as fast as it has GPUs: in words, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdist.summary.text import number_of, shown, whole_percents
from hpcdist.summary.values import Comparison, VariantSummary

NAMES = {
    "data": "waiting for data",
    "communication": "exposed communication",
    "stragglers": "waiting for the slowest rank",
    "computing": "slower computing",
    "fixed": "the fixed cost of a step",
}

_ADVICE = {
    "data": "Let more workers read (data.workers), or keep the data in memory",
    "communication": "Communicate less often, with larger batches per GPU or train.accumulate, or "
    "over a faster network",
    "stragglers": "Look for what slows that rank down, or shares its node",
    "computing": "Each rank computes more slowly than one alone: they share CPUs, memory or power",
    "fixed": "It weighs less with larger batches per GPU",
}
_WORTH_SAYING = 0.02
"""Smaller losses are within the noise of most machines."""
_UNSURE = 0.2
"""Repeats that differ by more than this share of the speed-up are no measurement."""


def conclusions(comparison: Comparison) -> list[str]:
    """One paragraph for each variant but the first."""
    baseline = comparison.variants[0]
    if baseline.samples_per_s is None:
        return [f"There is nothing to compare with: no run of {shown(baseline.name)} is done."]
    return [conclusion(variant, baseline) for variant in comparison.variants[1:]]


def conclusion(variant: VariantSummary, baseline: VariantSummary) -> str:
    """How many times as fast, and why it is not more."""
    name = shown(variant.name)
    if variant.speedup is None or variant.lost is None or variant.efficiency is None:
        return f"{name}: no run is done, or none recorded steps."
    spread = "" if variant.speedup.sd is None else f" ± {variant.speedup.sd:.2f}"
    sentence = (
        f"{name}: {variant.speedup.mean:.2f}{spread} times as fast as {shown(baseline.name)} on "
        f"{_size(variant)}."
    )
    if variant.speedup.sd is None:
        sentence += " One run of each cannot say how sure that is: --repeat 3."
    elif variant.speedup.sd > _UNSURE * variant.speedup.mean:
        sentence += (
            " The repeats differ so much that this is a guess: something else ran there, or the "
            "runs are too short."
        )
    if variant.interval and baseline.interval and variant.interval.overlaps(baseline.interval):
        sentence += " The two are not distinguishable: their 95 % confidence intervals overlap."
    return sentence + _why(variant, baseline)


def _why(variant: VariantSummary, baseline: VariantSummary) -> str:
    assert variant.lost is not None
    assert variant.efficiency is not None
    if _is_without_its_gpus(variant):
        return " There are no GPUs here for its one process to drive: that says nothing of it."
    whole = 1 - variant.efficiency
    if abs(whole) < _WORTH_SAYING:
        return " That is as good as ideal." if _is_larger(variant) else " That is no difference."
    if whole < 0:
        return _MORE_THAN_IDEAL if _is_larger(variant) else ""
    largest = max(variant.lost, key=variant.lost.__getitem__)
    return (
        f" Of each step {_losses(variant.lost)}. {_advice(largest, variant)}."
        f"{_shared_cpus(variant, baseline)}"
    )


_MORE_THAN_IDEAL = (
    " That is more than ideal: the two differ in more than their size, or something else slowed "
    "the first one down."
)


def _is_larger(variant: VariantSummary) -> bool:
    """Else it is compared for another reason, such as its precision, and may well be faster."""
    return variant.ideal != 1


def _losses(lost: Mapping[str, float]) -> str:
    """`74 % is lost: 58 % exposed communication, 15 % slower computing, 1 % all else`."""
    percents = dict(zip(lost, whole_percents(list(lost.values())), strict=True))
    parts = [part for part in sorted(lost, key=lambda part: -lost[part]) if percents[part] > 0]
    told = [part for part in parts if lost[part] > _WORTH_SAYING]
    in_all = sum(percents.values())
    text = ", ".join(f"{percents[part]} % {NAMES[part]}" for part in told)
    rest = in_all - sum(percents[part] for part in told)
    if rest > 0:
        text += f", {rest} % all else"
    elif rest < 0:
        text += f", less {-rest} % won elsewhere"
    return f"{in_all} % is lost: {text}"


def _is_without_its_gpus(variant: VariantSummary) -> bool:
    """DataParallel on CPUs is a single process like any other."""
    return variant.world_size < variant.num_devices and variant.num_cpus is not None


def _advice(part: str, variant: VariantSummary) -> str:
    if part == "stragglers" and variant.slowest_rank is not None:
        return f"Rank {variant.slowest_rank} was the slowest every time. {_ADVICE[part]}"
    if part == "computing" and variant.world_size < variant.num_devices:
        return "One process drives all GPUs: copying model and batch to them is in its computing"
    if part == "computing" and not _is_larger(variant):
        return "What it computes takes longer on the same hardware"
    return _ADVICE[part]


def _shared_cpus(variant: VariantSummary, baseline: VariantSummary) -> str:
    """On CPUs: more ranks are no more hardware."""
    if variant.num_cpus is None or baseline.num_cpus is None:
        return ""
    if variant.num_cpus >= variant.ideal * baseline.num_cpus:
        return ""
    more = variant.num_cpus / baseline.num_cpus
    mine, theirs = (number_of(one.num_cpus or 0, "CPU") for one in (variant, baseline))
    most = "could not be faster" if more <= 1 else f"could be {more:.3g} times as fast at most"
    return (
        f" There is no GPU here: with {mine}, where {shown(baseline.name)} had {theirs}, it {most}."
    )


def _size(variant: VariantSummary) -> str:
    unit = "GPU" if variant.num_cpus is None else "rank"
    if not _is_larger(variant):
        return f"as many {unit}s"
    return f"{number_of(variant.num_devices, unit)}; ideal is {variant.ideal:.3g}"
