"""Why runs are not as many times as fast as they have GPUs: in words, from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcdist.base.statistics import differs
from hpcdist.base.text import format_percent, number_of, shown, whole_percents
from hpcdist.summary.compare.advice import straggler_named
from hpcdist.summary.compare.lost_shares import WORTH_SAYING
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
from hpcdist.summary.values import Comparison, Losses, RunSummary, Straggler, VariantSummary

NAMES = {
    DATA: "waiting for data",
    DEVICE: "bringing batches to the device",
    COMMUNICATION: "exposed communication",
    STRAGGLERS: "waiting for the slowest rank",
    COMPUTING: "slower computing",
    FIXED: "the fixed cost of a step",
    CHECKPOINTS: "saving checkpoints",
    RESTARTS: "restarts",
    UNDIVIDED: "in no phase that was recorded",
}

_KEPT = (COMPUTING, UNDIVIDED)
"""Not lost where there is no ideal to lose against."""
_ONCE = "One run of each cannot say how sure that is: --repeat 3."
_NO_GPU = "There is no GPU here:"
_OF_ALL = (_ONCE, _NO_GPU)
"""How sentences begin that need no variant that they are about."""
_UNSURE = 0.2
"""Repeats that differ by more than this share of the speed-up are no measurement."""


def conclusions(comparison: Comparison) -> list[str]:
    """Return a paragraph for each variant but the first, and what holds for several of them,
    once."""
    baseline = comparison.variants[0]
    if baseline.samples_per_s is None:
        return [f"There is nothing to compare with: no run of {shown(baseline.name)} is done."]
    all_sentences = [_sentences(variant, baseline) for variant in comparison.variants[1:]]
    counts = Counter(sentence for sentences in all_sentences for sentence in sentences)
    shared = [
        sentence for sentence in counts if counts[sentence] > 1 and sentence.startswith(_OF_ALL)
    ]
    own = [
        [sentence for sentence in sentences if sentence not in shared]
        for sentences in all_sentences
    ]
    paragraphs = [" ".join(sentences) for sentences in (*own, shared) if sentences]
    return [*paragraphs, *_two_loops(comparison.variants)]


def _two_loops(variants: Sequence[VariantSummary]) -> Iterator[str]:
    """Say so where variants differ in the loop that trains, not only in how it is spread."""
    if {"train", "lightning"} <= {variant.workload for variant in variants}:
        names = [shown(variant.name) for variant in variants if variant.workload == "lightning"]
        yield (
            f"{', '.join(names)}: trained by Lightning's loop, the others by that of hpcdist; a "
            "difference in speed between them is also one of the two loops."
        )


def headline(comparison: Comparison) -> str | None:
    """Name the fastest variant; None where that cannot be said."""
    baseline = comparison.variants[0]
    name = shown(baseline.name)
    candidates = [
        variant
        for variant in comparison.variants[1:]
        if variant.speedup and not variant.is_without_its_gpus
    ]
    if not candidates or baseline.samples_per_s is None:
        return None
    best = max(candidates, key=_times)
    if _times(best) < 1 + WORTH_SAYING:
        return f"None is faster than {name}."
    if best.speedup and differs(best.speedup) is False:
        return f"None is faster than {name} for certain."
    ideal = f", where {best.ideal:.3g} is ideal" if _is_larger(best) else ""
    return f"{shown(best.name)} is the fastest: {_times(best):.2f} times as fast as {name}{ideal}."


def _times(variant: VariantSummary) -> float:
    return variant.speedup.mean if variant.speedup else 0.0


def run_conclusions(run: RunSummary | None) -> Iterator[str]:
    """Say where the time of the run and its repeats went, and what to change."""
    lost = run.losses if run else None
    if lost is None:
        return
    if losses := _where(lost):
        yield f"{lost.nodes} x {lost.gpus_per_node}: {losses}"
    yield from (f"{advice[0].upper()}{advice[1:]}." for advice in lost.advice)


def conclusion(variant: VariantSummary, baseline: VariantSummary) -> str:
    """Say how many times as fast a variant is, and why it is not more."""
    return " ".join(_sentences(variant, baseline))


def _sentences(variant: VariantSummary, baseline: VariantSummary) -> list[str]:
    name = shown(variant.name)
    if variant.speedup is None:
        return [f"{name}: no run is done, or none recorded steps."]
    sd = variant.speedup.sd if variant.speedup.over == "runs" else None
    spread = "" if sd is None else f" ± {sd:.2f}"
    times = f"{variant.speedup.mean:.2f}{spread} times as fast as {shown(baseline.name)}"
    sentences = [
        f"{name}: {times}{'' if variant.is_without_its_gpus else f' on {_size(variant)}'}."
    ]
    if sd is None:
        sentences.append(_ONCE)
    elif sd > _UNSURE * variant.speedup.mean:
        sentences.append(
            "The repeats differ so much that this is a guess: something else ran there, or the "
            "runs are too short."
        )
    if sd is not None and differs(variant.speedup) is False:
        sentences.append("The two are not distinguishable in speed, with 95 % confidence.")
    return [*sentences, *_why(variant, baseline)]


def _where(lost: Losses) -> str:
    """The losses of a size; empty where they are not worth a word."""
    if not lost.against:
        if lost.largest is None:
            return ""
        percents = _percents(lost.shares)
        to_win = {part: percents[part] for part in SHARES if part not in _KEPT}
        return f"of its time {_told(lost.lost, to_win, 'is not computing')}."
    whole = 1 - lost.efficiency
    if whole < WORTH_SAYING or lost.largest is None:
        return ""
    return f"of its time {_losses(lost.lost)}.{_who(lost.lost, lost.straggler)}"


def _why(variant: VariantSummary, baseline: VariantSummary) -> list[str]:
    if variant.lost is None or variant.overall is None:
        return ["There are no GPUs here for its one process to drive: that says nothing of it."]
    whole = 1 - variant.overall
    if abs(whole) < WORTH_SAYING:
        return ["That is as good as ideal." if _is_larger(variant) else "That is no difference."]
    if whole < 0:
        return [_MORE_THAN_IDEAL] if _is_larger(variant) else []
    who = _who(variant.lost, variant.straggler)
    return [
        f"Of its time {_losses(variant.lost)}.{who}{_computing(variant)}",
        *(f"{advice[0].upper()}{advice[1:]}." for advice in variant.advice),
        *_shared_cpus(variant, baseline),
    ]


_MORE_THAN_IDEAL = (
    "That is more than ideal: the two differ in more than their size, or something else slowed "
    "the first one down."
)


def _is_larger(variant: VariantSummary) -> bool:
    """Else it is compared for another reason, such as its precision, and may well be faster."""
    return variant.ideal != 1


def _losses(lost: Mapping[str, float]) -> str:
    return _told(lost, _percents(lost), "is lost")


def _percents(shares: Mapping[str, float]) -> dict[str, int]:
    return dict(zip(shares, whole_percents(list(shares.values())), strict=True))


def _told(lost: Mapping[str, float], percents: Mapping[str, int], verb: str) -> str:
    """`74 % is lost: 58 % exposed communication, 15 % slower computing, 1 % all else`."""
    largest_first = sorted(
        (part for part in percents if percents[part] > 0), key=lambda part: -lost[part]
    )
    listed = [part for part in largest_first if lost[part] > WORTH_SAYING]
    in_all = sum(percents.values())
    text = ", ".join(f"{percents[part]} % {NAMES[part]}" for part in listed)
    rest = in_all - sum(percents[part] for part in listed)
    if rest > 0:
        text += f", {rest} % all else"
    elif rest < 0:
        text += f", less {-rest} % won elsewhere"
    return f"{in_all} % {verb}: {text}"


def _who(lost: Mapping[str, float], straggler: Straggler | None) -> str:
    if straggler is None or lost[STRAGGLERS] < WORTH_SAYING:
        return ""
    share = format_percent(straggler.slowest_in / straggler.stretches)
    return f" The slowest is {straggler_named(straggler)}, in {share} % of the run."


def _computing(variant: VariantSummary) -> str:
    """The cause of slower computing, where that is the largest loss."""
    assert variant.lost is not None
    if max(variant.lost, key=variant.lost.__getitem__) != COMPUTING:
        return ""
    if variant.world_size < variant.num_devices:
        return " One process drives all GPUs: copying model and batch to them is in its computing."
    if not _is_larger(variant):
        return " What it computes takes longer on the same hardware."
    return " Each rank computes more slowly than one alone: they share CPUs, memory or power."


def _shared_cpus(variant: VariantSummary, baseline: VariantSummary) -> Iterator[str]:
    """On CPUs: more ranks are no more hardware."""
    if variant.num_cpus is None or baseline.num_cpus is None:
        return
    if variant.num_cpus >= variant.ideal * baseline.num_cpus:
        return
    more = variant.num_cpus / baseline.num_cpus
    mine, theirs = (number_of(side.num_cpus or 0, "CPU") for side in (variant, baseline))
    most = "could be faster" if more <= 1 else f"could be more than {more:.3g} times as fast"
    yield f"{_NO_GPU} with {mine}, where {shown(baseline.name)} had {theirs}, nothing {most}."


def _size(variant: VariantSummary) -> str:
    unit = "GPU" if variant.num_cpus is None else "rank"
    if not _is_larger(variant):
        return f"as many {unit}s"
    return f"{number_of(variant.num_devices, unit)}; ideal is {variant.ideal:.3g}"
