"""Why runs are not as many times as fast as they have GPUs: in words, from what was measured."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcdist.base.statistics import differs, ratios_of_all
from hpcdist.base.text import (
    format_percent,
    interval_text,
    number_of,
    shown,
    spread_text,
    whole_percents,
)
from hpcdist.summary.compare.advice import straggler_named
from hpcdist.summary.compare.cells import WORTH_SAYING
from hpcdist.summary.figures import shares as part
from hpcdist.summary.values import Cell, Group, RunSummary

NAMES = {
    part.DATA: "waiting for data",
    part.DEVICE: "moving batches to the device",
    part.COMMUNICATION: "exposed communication",
    part.STRAGGLERS: "waiting for the slowest rank",
    part.COMPUTING: "slower computing",
    part.FIXED: "the fixed cost of a step",
    part.CHECKPOINTS: "saving checkpoints",
    part.RESTARTS: "restarts",
    part.UNDIVIDED: "in no phase that was recorded",
}

_MIXED = "its loop does not separate the two"
_KEPT = (part.COMPUTING, part.UNDIVIDED)
"""Not lost where there is no ideal to lose against."""
_ONCE = "Each was run once, which does not show how much runs differ: use --repeat 3."
_NO_GPU = "There is no GPU here."


def conclusions(comparison: Group) -> list[str]:
    """Return a paragraph for each variant but the first, and what holds for several of them,
    once."""
    baseline = comparison.cells[0]
    if baseline.samples_per_s is None:
        why = shown(baseline.why_none or f"no run of {baseline.name} is done")
        return [f"There is nothing to compare with: {why}."]
    paragraphs = [_sentences(variant, baseline) for variant in comparison.cells[1:]]
    counts = Counter(itertools.chain.from_iterable(paragraphs))
    shared = [text for text in counts if counts[text] > 1 and text.startswith((_ONCE, _NO_GPU))]
    own = [[text for text in paragraph if text not in shared] for paragraph in paragraphs]
    texts = [" ".join(paragraph) for paragraph in (*own, shared) if paragraph]
    # Variants may differ in the loop that trains, not only in how it is spread.
    if {"train", "lightning"} <= {variant.workload for variant in comparison.cells}:
        names = [shown(each.name) for each in comparison.cells if each.workload == "lightning"]
        texts.append(
            f"{', '.join(names)}: trained with Lightning's loop, the others with "
            "hpcdist's; differences in speed also come from the two loops."
        )
    return texts


def headline(comparison: Group) -> str | None:
    """Name the fastest variant, or those that it may be, and say where other programs disturbed
    them; None where there is nothing to compare."""
    text = _fastest(comparison)
    loads = [variant.disturbed for variant in comparison.cells]
    return text and text + uncertainty(loads)


def uncertainty(loads: Sequence[str | None]) -> str:
    """Return the sentence that ends a comparison of which these runs were disturbed."""
    load = next(filter(None, loads), None)
    return f" This is uncertain: {shown(load)}." if load else ""


def _fastest(comparison: Group) -> str | None:
    baseline = comparison.cells[0]
    others = [
        variant
        for variant in comparison.cells[1:]
        if variant.speedup and variant.samples_per_s and not variant.is_without_its_gpus
    ]
    if not others or baseline.samples_per_s is None:
        return None
    best = max(others, key=_times)
    name = shown(baseline.name)
    are_unsure = any(each.speedup and differs(each.speedup) is False for each in others)
    if best.speedup and differs(best.speedup) is False:
        return f"No variant is certainly faster than {name}."
    if _times(best) < 1 + WORTH_SAYING:
        return f"No variant is {'certainly ' if are_unsure else ''}faster than {name}."
    compared = ratios_of_all([each.samples_per_s for each in others if each.samples_per_s])
    alike = [
        variant
        for place, variant in enumerate(others)
        if variant is best or differs(compared[others.index(best), place]) is False
    ]
    ideal = f", where {best.ideal:.3g} is ideal" if _is_larger(best) else ""
    if len(alike) == 1:
        return f"{shown(best.name)} is the fastest: {_as_fast(best)} as {name}{ideal}."
    alike.sort(key=_times, reverse=True)
    names = " and ".join(f"{shown(variant.name)} ({_times(variant):.2f})" for variant in alike[:2])
    more = f" and {len(alike) - 2} more" if len(alike) > 2 else ""
    return (
        f"{shown(best.name)} is {_as_fast(best)} as {name}{ideal}; which of "
        f"{names}{more} is the fastest is not certain."
    )


def _times(variant: Cell) -> float:
    return variant.speedup.mean if variant.speedup else 0.0


def _as_fast(variant: Cell) -> str:
    assert variant.speedup is not None
    return f"{interval_text(variant.speedup, 2)} times as fast"


def run_conclusions(run: RunSummary | None) -> Iterator[str]:
    """Say where the time of the run and its repeats went, and what to change."""
    cell = run.cell if run else None
    if cell is None or cell.lost is None or cell.shares is None or cell.overall is None:
        return
    if cell.largest is not None and (not cell.against or 1 - cell.overall >= WORTH_SAYING):
        if cell.against:
            losses = _losses(cell)
        else:
            percents = whole_percents(cell.shares)
            to_win = {name: percents[name] for name in part.SHARES if name not in _KEPT}
            verb = "is not computing"
            if cell.computing_has_communication:
                verb = f"is neither computing nor communication ({_MIXED})"
            losses = f"{_told(cell, cell.lost, to_win, verb)}."
        yield f"{cell.nodes} x {cell.gpus_per_node}: of its time {losses}"
    yield from _as_sentences(cell.advice)


def _as_sentences(advice: Sequence[str]) -> list[str]:
    return [f"{text[0].upper()}{text[1:]}." for text in advice]


def _sentences(variant: Cell, baseline: Cell) -> list[str]:
    name = shown(variant.name)
    if variant.speedup is None:
        return [f"{name}: {shown(variant.why_none or 'no run is done, or none recorded steps')}."]
    times = spread_text(variant.speedup, 2)
    unit = "GPU" if variant.num_cpus is None else "rank"
    on = f" on as many {unit}s"
    if variant.is_without_its_gpus:
        on = ""
    elif _is_larger(variant):
        on = f" on {number_of(variant.num_gpus, unit)}; ideal is {variant.ideal:.3g}"
    first = shown(baseline.name)
    sentences = [f"{name}: {times} times as fast as {first}{on}."]
    for key in ("device_model", "cluster"):
        mine, theirs = (getattr(each.ran_with, key) for each in (variant, baseline))
        if mine and theirs and mine != theirs:
            sentences.append(f"{name} ran on {shown(mine)}, and {first} on {shown(theirs)}.")
    if variant.speedup.over != "runs":
        sentences.append(_ONCE)
    if differs(variant.speedup) is False:
        sentences.append("Which of the two is faster is not certain.")
    return [*sentences, *_why(variant, baseline)]


def _why(variant: Cell, baseline: Cell) -> list[str]:
    if variant.lost is None or variant.overall is None:
        return [
            ("There are no GPUs here for its one process to use, so this says nothing about it.")
        ]
    whole = 1 - variant.overall
    if abs(whole) < WORTH_SAYING:
        return ["That is as good as ideal."] if _is_larger(variant) else []
    if whole < 0:
        return [_MORE_THAN_IDEAL] if _is_larger(variant) else []
    return [
        f"Of its time {_losses(variant)}{_computing(variant, variant.lost)}",
        *_as_sentences(variant.advice),
        *_shared_cpus(variant, baseline),
    ]


_MORE_THAN_IDEAL = (
    "That is more than ideal: the two differ in more than their size, or something else slowed "
    "the first one down."
)


def _is_larger(variant: Cell) -> bool:
    """Else it is compared for another reason, such as its precision, and may well be faster."""
    return variant.ideal != 1


def _losses(loser: Cell) -> str:
    """Return all that was lost, and who is to blame for it."""
    lost, straggler = loser.lost or {}, loser.straggler
    text = f"{_told(loser, lost, whole_percents(lost), 'is lost')}."
    if straggler is None or lost[part.STRAGGLERS] < WORTH_SAYING:
        return text
    share = format_percent(straggler.slowest_in / straggler.stretches)
    verb = "are" if straggler.others else "is"
    return f"{text} The slowest {verb} {straggler_named(straggler)}, in {share} % of the run."


def _told(
    loser: Cell,
    lost: Mapping[str, float],
    percents: Mapping[str, int],
    verb: str,
) -> str:
    """`74 % is lost: 58 % exposed communication, 15 % slower computing, 1 % all else`."""
    positive = [name for name in percents if percents[name] > 0 and lost[name] > WORTH_SAYING]
    listed = sorted(positive, key=lambda name: -lost[name])
    in_all = sum(percents.values())
    names = NAMES
    if loser.computing_has_communication:
        names = NAMES | {part.COMPUTING: "slower computing and communication together"}
    text = ", ".join(f"{percents[name]} % {names[name]}" for name in listed)
    rest = in_all - sum(percents[name] for name in listed)
    if rest > 0:
        text += f", {rest} % all else"
    elif rest < 0:
        text += f", minus {-rest} % gained elsewhere"
    return f"{in_all} % {verb}: {text}"


def _computing(variant: Cell, lost: Mapping[str, float]) -> str:
    """Return the cause of slower computing, where that is the largest loss."""
    if max(lost, key=lost.__getitem__) != part.COMPUTING:
        return ""
    if variant.world_size < variant.num_gpus:
        return " One process drives all GPUs: copying model and batch to them is in its computing."
    if variant.computing_has_communication:
        return f" {_MIXED[0].upper()}{_MIXED[1:]}."
    if not _is_larger(variant):
        return " What it computes takes longer on the same hardware."
    return " Each rank computes more slowly than one alone: they share CPUs, memory or power."


def _shared_cpus(variant: Cell, baseline: Cell) -> Iterator[str]:
    """On CPUs: more ranks are no more hardware."""
    if variant.num_cpus is None or baseline.num_cpus is None:
        return
    if variant.num_cpus >= variant.ideal * baseline.num_cpus:
        return
    mine, theirs = (number_of(side.num_cpus or 0, "CPU") for side in (variant, baseline))
    more = times_hardware(variant.num_cpus, baseline.num_cpus)
    yield (f"{_NO_GPU} It ran on {mine}, and {shown(baseline.name)} on {theirs}, which is {more}.")


def times_hardware(mine: int, theirs: int) -> str:
    """Return `no more hardware`, or `1.5 times the hardware`, from the numbers of CPUs."""
    times = mine / theirs
    return "no more hardware" if times <= 1 else f"{times:.3g} times the hardware"


_SURE_OF_MONEY = 0.05


def place_sentences(comparison: Group) -> Iterator[str]:
    """Say of each place but the first how fast it is against that, and what the runs cost."""
    first, *others = comparison.cells
    for place in others:
        assert place.speedup is not None
        name, other = _named(place, comparison), _named(first, comparison)
        times = interval_text(place.speedup, 2)
        size = f"{first.nodes} x {first.gpus_per_node}"
        sentence = f"{name} is {times} times as fast as {other} ({size} each)"
        if differs(place.speedup) is False:
            sentence += ", so which of the two is faster is not certain"
        yield f"{sentence}{_money(place, first)}."


def _named(place: Cell, comparison: Group) -> str:
    """Say the device, too, where it differs."""
    device = ""
    if len({each.num_cpus is None for each in comparison.cells}) > 1:
        device = " (GPU)" if place.num_cpus is None else " (CPU)"
    return f"{shown(place.name)}{device}"


def _money(place: Cell, first: Cell) -> str:
    if not (place.price and first.price):
        return ""
    own, other = (f"{price:,.4g}" for price in (place.price, first.price))
    gain = first.price / place.price  # equal runs, start-up and evaluations included
    if abs(gain - 1) < _SURE_OF_MONEY:
        value = "as many samples for the same money"
    else:
        value = f"{gain:.2f} times as many samples for the same money"
    return f"; a run cost {own} there and {other} on {shown(first.name)}, {value}"
