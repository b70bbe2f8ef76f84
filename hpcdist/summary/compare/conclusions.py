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
from hpcdist.summary.values import Cell, Group, RunFigures

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
_UNSURE = "which of the two is faster is not certain"
_SURE_OF_MONEY = 0.05


def headline(comparison: Group) -> str | None:
    """Name the fastest variant, or those that it may be, and say where other programs disturbed
    them; None where there is nothing to compare."""
    baseline, *rest = comparison.cells
    others = [cell for cell in rest if cell.speedup and not cell.is_without_its_gpus]
    if not others or baseline.samples_per_s is None:
        return None
    best = max(others, key=_times)
    name = shown(baseline.name)
    loads = uncertainty([cell.disturbed for cell in comparison.cells])
    are_unsure = any(cell.differs_from_baseline is False for cell in others)
    if best.differs_from_baseline is False or _times(best) < 1 + WORTH_SAYING:
        return f"No variant is {'certainly ' if are_unsure else ''}faster than {name}.{loads}"
    compared = ratios_of_all([each.samples_per_s for each in others if each.samples_per_s])
    alike = [
        cell
        for place, cell in enumerate(others)
        if cell is best or differs(compared[others.index(best), place]) is False
    ]
    assert best.speedup is not None
    as_fast = f"{interval_text(best.speedup, 2)} times as fast as {name}"
    as_fast += f", where {best.ideal:.3g} is ideal" if _is_larger(best) else ""
    if len(alike) == 1:
        return f"{shown(best.name)} is the fastest: {as_fast}.{loads}"
    alike.sort(key=_times, reverse=True)
    names = " and ".join(f"{shown(cell.name)} ({_times(cell):.2f})" for cell in alike[:2])
    more = f" and {len(alike) - 2} more" if len(alike) > 2 else ""
    unsure = f"which of {names}{more} is the fastest is not certain"
    return f"{shown(best.name)} is {as_fast}; {unsure}.{loads}"


def _times(cell: Cell) -> float:
    return cell.speedup.mean if cell.speedup else 0.0


def uncertainty(loads: Sequence[str | None]) -> str:
    """Return the sentence that ends a comparison of which these runs were disturbed."""
    load = next(filter(None, loads), None)
    return f" This is uncertain: {shown(load)}." if load else ""


def conclusions(comparison: Group) -> list[str]:
    """Return a paragraph for each variant but the first, and what holds for several of them,
    once."""
    baseline, *others = comparison.cells
    if baseline.samples_per_s is None:
        why = shown(baseline.why_none or f"no run of {baseline.name} is done")
        return [f"There is nothing to compare with: {why}."]
    paragraphs = [list(_sentences(cell, baseline)) for cell in others]
    counts = Counter(itertools.chain.from_iterable(paragraphs))
    shared = [text for text in counts if counts[text] > 1 and text.startswith((_ONCE, _NO_GPU))]
    own = [[text for text in paragraph if text not in shared] for paragraph in paragraphs]
    texts = [" ".join(paragraph) for paragraph in (*own, shared) if paragraph]
    # Variants may differ in the loop that trains, not only in how it is spread.
    if {"train", "lightning"} <= {cell.workload for cell in comparison.cells}:
        names = [shown(cell.name) for cell in comparison.cells if cell.workload == "lightning"]
        texts.append(
            f"{', '.join(names)}: trained with Lightning's loop, the others with "
            "hpcdist's; differences in speed also come from the two loops."
        )
    return texts


def _sentences(cell: Cell, baseline: Cell) -> Iterator[str]:
    name, first = shown(cell.name), shown(baseline.name)
    if cell.speedup is None:
        yield f"{name}: {shown(cell.why_none or 'no run is done, or none recorded steps')}."
        return
    on = f" on as many {cell.unit}s"
    if cell.is_without_its_gpus:
        on = ""
    elif _is_larger(cell):
        on = f" on {number_of(cell.num_gpus, cell.unit)}; ideal is {cell.ideal:.3g}"
    yield f"{name}: {spread_text(cell.speedup, 2)} times as fast as {first}{on}."
    for key in ("device_model", "cluster"):
        mine, theirs = (getattr(each.ran_with, key) for each in (cell, baseline))
        if mine and theirs and mine != theirs:
            yield f"{name} ran on {shown(mine)}, and {first} on {shown(theirs)}."
    if cell.speedup.over != "runs":
        yield _ONCE
    if cell.differs_from_baseline is False:
        yield f"{_UNSURE[0].upper()}{_UNSURE[1:]}."
    yield from _why(cell, baseline)


def _why(cell: Cell, baseline: Cell) -> Iterator[str]:
    if cell.lost is None or cell.overall is None:
        yield "There are no GPUs here for its one process to use, so this says nothing about it."
        return
    whole = 1 - cell.overall
    if whole >= WORTH_SAYING:
        yield f"Of its time {_losses(cell)}{_why_computing(cell, cell.lost)}"
        yield from _as_sentences(cell.advice)
        yield from hardware(cell, baseline, baseline.name)
    elif _is_larger(cell) and whole > -WORTH_SAYING:
        yield "That is as good as ideal."
    elif _is_larger(cell):
        yield (
            "That is more than ideal: the two differ in more than their size, or something else "
            "slowed the first one down."
        )


def _is_larger(cell: Cell) -> bool:
    """Else it is compared for another reason, such as its precision, and may well be faster."""
    return cell.ideal != 1


def cell_conclusions(cell: Cell) -> list[str]:
    """Say where the time of a run and its repeats went, and what to change."""
    if cell.lost is None or cell.shares is None or cell.overall is None:
        return []
    texts = _as_sentences(cell.advice)
    if cell.largest is not None and (not cell.against or 1 - cell.overall >= WORTH_SAYING):
        losses = _losses(cell)
        if not cell.against:
            percents = whole_percents(cell.shares)
            to_win = {name: percents[name] for name in part.SHARES if name not in _KEPT}
            verb = "is not computing"
            if cell.computing_has_communication:
                verb = f"is neither computing nor communication ({_MIXED})"
            losses = f"{_divided(cell, cell.lost, to_win, verb)}."
        texts.insert(0, f"{cell.nodes} x {cell.gpus_per_node}: of its time {losses}")
    return texts


def _as_sentences(advice: Sequence[str]) -> list[str]:
    return [f"{text[0].upper()}{text[1:]}." for text in advice]


def _losses(cell: Cell) -> str:
    """Return all that was lost, and who is to blame for it."""
    lost, straggler = cell.lost or {}, cell.straggler
    text = f"{_divided(cell, lost, whole_percents(lost), 'is lost')}."
    if straggler is None or lost[part.STRAGGLERS] < WORTH_SAYING:
        return text
    share = format_percent(straggler.slowest_in / straggler.stretches)
    verb = "are" if straggler.others else "is"
    return f"{text} The slowest {verb} {straggler_named(straggler)}, in {share} % of the run."


def _divided(cell: Cell, lost: Mapping[str, float], percents: Mapping[str, int], verb: str) -> str:
    """`74 % is lost: 58 % exposed communication, 15 % slower computing, 1 % all else`."""
    positive = [name for name in percents if percents[name] > 0 and lost[name] > WORTH_SAYING]
    names = dict(NAMES)
    if cell.computing_has_communication:
        names[part.COMPUTING] = "slower computing and communication together"
    texts = [
        f"{percents[name]} % {names[name]}" for name in sorted(positive, key=lambda key: -lost[key])
    ]
    in_all = sum(percents.values())
    rest = in_all - sum(percents[name] for name in positive)
    texts += [f"{rest} % all else"] if rest > 0 else []
    texts += [f"minus {-rest} % gained elsewhere"] if rest < 0 else []
    return f"{in_all} % {verb}: {', '.join(texts)}"


def _why_computing(cell: Cell, lost: Mapping[str, float]) -> str:
    """Return the cause of slower computing, where that is the largest loss."""
    if max(lost, key=lost.__getitem__) != part.COMPUTING:
        return ""
    if cell.world_size < cell.num_gpus:
        return " One process drives all GPUs: copying model and batch to them is in its computing."
    if cell.computing_has_communication:
        return f" {_MIXED[0].upper()}{_MIXED[1:]}."
    if not _is_larger(cell):
        return " What it computes takes longer on the same hardware."
    return " Each rank computes more slowly than one alone: they share CPUs, memory or power."


def hardware(
    mine: Cell | RunFigures, theirs: Cell | RunFigures, name: str = "the smallest size"
) -> list[str]:
    """Say on CPUs that more ranks are no more hardware, where it is so; `name` is that of the
    baseline."""
    if mine.num_cpus is None or theirs.num_cpus is None:
        return []
    if mine.num_cpus * theirs.num_gpus >= theirs.num_cpus * mine.num_gpus:
        return []
    times = mine.num_cpus / theirs.num_cpus
    more = "no more hardware" if times <= 1 else f"{times:.3g} times the hardware"
    own, other = (number_of(side.num_cpus or 0, "CPU") for side in (mine, theirs))
    return [f"{_NO_GPU} It ran on {own}, and {shown(name)} on {other}, which is {more}."]


def place_sentences(group: Group) -> Iterator[str]:
    """Say of each cluster but the first how fast it is against that, and what the runs cost."""
    first, *others = group.cells
    # The device is said, too, where it differs.
    are_unlike = len({cell.num_cpus is None for cell in group.cells}) > 1
    names = [
        shown(cell.name) + are_unlike * (" (GPU)" if cell.num_cpus is None else " (CPU)")
        for cell in group.cells
    ]
    for cell, name in zip(others, names[1:], strict=True):
        assert cell.speedup is not None
        text = f"{name} is {interval_text(cell.speedup, 2)} times as fast as {names[0]}"
        text += f" ({cell.nodes} x {cell.gpus_per_node} each)"
        text += f", so {_UNSURE}" if cell.differs_from_baseline is False else ""
        if cell.price and first.price:
            gain = first.price / cell.price  # equal runs, start-up and evaluations included
            times = "as many" if abs(gain - 1) < _SURE_OF_MONEY else f"{gain:.2f} times as many"
            text += (
                f"; a run cost {cell.price:,.4g} there and {first.price:,.4g} on "
                f"{shown(first.name)}, {times} samples for the same money"
            )
        yield f"{text}."
