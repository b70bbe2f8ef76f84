"""Why runs are not as many times as fast as they have GPUs: in words, from what was measured."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcdist.base.statistics import differs
from hpcdist.base.text import format_mean_sd, format_percent, number_of, shown, whole_percents
from hpcdist.summary.compare.advice import straggler_named
from hpcdist.summary.compare.sizes import WORTH_SAYING
from hpcdist.summary.figures import shares as part
from hpcdist.summary.values import Comparison, RunSummary, Straggler, VariantSummary

NAMES = {
    part.DATA: "waiting for data",
    part.DEVICE: "bringing batches to the device",
    part.COMMUNICATION: "exposed communication",
    part.STRAGGLERS: "waiting for the slowest rank",
    part.COMPUTING: "slower computing",
    part.FIXED: "the fixed cost of a step",
    part.CHECKPOINTS: "saving checkpoints",
    part.RESTARTS: "restarts",
    part.UNDIVIDED: "in no phase that was recorded",
}

_KEPT = (part.COMPUTING, part.UNDIVIDED)
"""Not lost where there is no ideal to lose against."""
_ONCE = "One run of each cannot say how sure that is: --repeat 3."
_NO_GPU = "There is no GPU here:"
_UNSURE = 0.2
"""Repeats that differ by more than this share of the speed-up are no measurement."""


def conclusions(comparison: Comparison) -> list[str]:
    """Return a paragraph for each variant but the first, and what holds for several of them,
    once."""
    baseline = comparison.variants[0]
    if baseline.samples_per_s is None:
        return [f"There is nothing to compare with: no run of {shown(baseline.name)} is done."]
    paragraphs = [_sentences(variant, baseline) for variant in comparison.variants[1:]]
    counts = Counter(itertools.chain.from_iterable(paragraphs))
    shared = [text for text in counts if counts[text] > 1 and text.startswith((_ONCE, _NO_GPU))]
    own = [[text for text in paragraph if text not in shared] for paragraph in paragraphs]
    texts = [" ".join(paragraph) for paragraph in (*own, shared) if paragraph]
    # Variants may differ in the loop that trains, not only in how it is spread.
    if {"train", "lightning"} <= {variant.workload for variant in comparison.variants}:
        names = [shown(each.name) for each in comparison.variants if each.workload == "lightning"]
        texts.append(
            f"{', '.join(names)}: trained by Lightning's loop, the others by that of hpcdist; a "
            "difference in speed between them is also one of the two loops."
        )
    return texts


def headline(comparison: Comparison) -> str | None:
    """Name the fastest variant; None where that cannot be said."""
    baseline = comparison.variants[0]
    name = shown(baseline.name)
    speedups = [
        (variant.speedup.mean, variant, variant.speedup)
        for variant in comparison.variants[1:]
        if variant.speedup and not variant.is_without_its_gpus
    ]
    if not speedups or baseline.samples_per_s is None:
        return None
    times, best, speedup = max(speedups, key=lambda entry: entry[0])
    if times < 1 + WORTH_SAYING:
        return f"None is faster than {name}."
    if differs(speedup) is False:
        return f"None is faster than {name} for certain."
    ideal = f", where {best.ideal:.3g} is ideal" if _is_larger(best) else ""
    return f"{shown(best.name)} is the fastest: {times:.2f} times as fast as {name}{ideal}."


def run_conclusions(run: RunSummary | None) -> Iterator[str]:
    """Say where the time of the run and its repeats went, and what to change."""
    lost = run.losses if run else None
    if lost is None:
        return
    if lost.largest is not None and (not lost.against or 1 - lost.efficiency >= WORTH_SAYING):
        if lost.against:
            losses = _losses(lost.lost, lost.straggler)
        else:
            percents = whole_percents(lost.shares)
            to_win = {name: percents[name] for name in part.SHARES if name not in _KEPT}
            losses = f"{_told(lost.lost, to_win, 'is not computing')}."
        yield f"{lost.nodes} x {lost.gpus_per_node}: of its time {losses}"
    yield from _as_sentences(lost.advice)


def _as_sentences(advice: Sequence[str]) -> list[str]:
    return [f"{text[0].upper()}{text[1:]}." for text in advice]


def _sentences(variant: VariantSummary, baseline: VariantSummary) -> list[str]:
    name = shown(variant.name)
    if variant.speedup is None:
        return [f"{name}: no run is done, or none recorded steps."]
    sd = variant.speedup.sd_over_runs
    times = format_mean_sd(variant.speedup.mean, sd, 2)
    unit = "GPU" if variant.num_cpus is None else "rank"
    on = f" on as many {unit}s"
    if variant.is_without_its_gpus:
        on = ""
    elif _is_larger(variant):
        on = f" on {number_of(variant.num_devices, unit)}; ideal is {variant.ideal:.3g}"
    sentences = [f"{name}: {times} times as fast as {shown(baseline.name)}{on}."]
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


def _why(variant: VariantSummary, baseline: VariantSummary) -> list[str]:
    if variant.lost is None or variant.overall is None:
        return ["There are no GPUs here for its one process to drive: that says nothing of it."]
    whole = 1 - variant.overall
    if abs(whole) < WORTH_SAYING:
        return ["That is as good as ideal." if _is_larger(variant) else "That is no difference."]
    if whole < 0:
        return [_MORE_THAN_IDEAL] if _is_larger(variant) else []
    losses = _losses(variant.lost, variant.straggler)
    return [
        f"Of its time {losses}{_computing(variant, variant.lost)}",
        *_as_sentences(variant.advice),
        *_shared_cpus(variant, baseline),
    ]


_MORE_THAN_IDEAL = (
    "That is more than ideal: the two differ in more than their size, or something else slowed "
    "the first one down."
)


def _is_larger(variant: VariantSummary) -> bool:
    """Else it is compared for another reason, such as its precision, and may well be faster."""
    return variant.ideal != 1


def _losses(lost: Mapping[str, float], straggler: Straggler | None) -> str:
    """Return all that was lost, and who is to blame for it."""
    text = f"{_told(lost, whole_percents(lost), 'is lost')}."
    if straggler is None or lost[part.STRAGGLERS] < WORTH_SAYING:
        return text
    share = format_percent(straggler.slowest_in / straggler.stretches)
    return f"{text} The slowest is {straggler_named(straggler)}, in {share} % of the run."


def _told(lost: Mapping[str, float], percents: Mapping[str, int], verb: str) -> str:
    """`74 % is lost: 58 % exposed communication, 15 % slower computing, 1 % all else`."""
    positive = [name for name in percents if percents[name] > 0 and lost[name] > WORTH_SAYING]
    listed = sorted(positive, key=lambda name: -lost[name])
    in_all = sum(percents.values())
    text = ", ".join(f"{percents[name]} % {NAMES[name]}" for name in listed)
    rest = in_all - sum(percents[name] for name in listed)
    if rest > 0:
        text += f", {rest} % all else"
    elif rest < 0:
        text += f", less {-rest} % won elsewhere"
    return f"{in_all} % {verb}: {text}"


def _computing(variant: VariantSummary, lost: Mapping[str, float]) -> str:
    """Return the cause of slower computing, where that is the largest loss."""
    if max(lost, key=lost.__getitem__) != part.COMPUTING:
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
