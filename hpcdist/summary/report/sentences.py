"""Sentences of the summary: what runs come to, where their time went, remarks on single runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hpcdist.base.statistics import Measure, differs, ratios_of_all
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    interval_text,
    listed,
    number_of,
    shown,
    spread_text,
    whole_percents,
)
from hpcdist.summary.compare.advice import straggler_named
from hpcdist.summary.compare.cells import WORTH_SAYING, size_text
from hpcdist.summary.compare.groups import NO_OTHER_SIZE
from hpcdist.summary.figures import shares as part
from hpcdist.summary.values import Cell, Forecast, Group, Parting, RunFigures, RunSummary

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
_KEPT = (part.COMPUTING, part.UNDIVIDED)
"""Not lost where there is no ideal to lose against."""
_ONCE = "What was run once does not show how much runs differ: use --repeat 3."
_UNSURE = "which of the two is faster is not certain"
_SURE_OF_MONEY = 0.05
_MISCOUNTED = 1.5
"""An efficiency from which on samples were counted wrongly."""
_SQUARED = 0.9  # the last step of an epoch may be smaller

# A job.


def conclusion(runs: Sequence[RunSummary], groups: Sequence[Group]) -> str:
    """Return what the runs of one job come to, in one sentence; `groups` are those of its runs."""
    job, best = shown(runs[0].job), leading_run(runs, groups)
    done = [run for run in runs if run.state == "done"]
    if not done:
        states = Counter(run.state or "unknown" for run in runs)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        text = f"{job}: no run is done ({counts})."
        messages = [shown(run.verdict.message) for run in runs if run.verdict]
        if going := [run for run in runs if run.state == "running" and run.samples_per_s]:
            return f"{text} So far {_rate_on_ranks(going[-1])}."
        return f"{text} The newest run: {messages[-1]}." if messages else text
    if best is None:
        return f"{job}: {_without_a_leader(done)}"
    if best.differs_in:
        job = f"{job} with {shown(best.settings_text)}"
    return f"{job}: {_scaling_sentence(best, runs) if best.speedup else _without_speedup(best)}"


def _without_speedup(run: RunSummary) -> str:
    if run.benchmark is not None:
        text = " ".join(map(shown, run.benchmark.conclusions))
        return f"{text or 'it measured, and did not come to its end.'}{_hardware(run)}"
    if run.together is False:
        why = shown(run.not_compared_because or "")
        rate = format_number(run.rate, decimals_for([run.rate]))
        return f"{why}. Together they processed {rate} samples/s; no speed-up is computed."
    if run.disturbed is not None:
        return f"{_rate_on_ranks(run)}, but {shown(run.disturbed)}."
    more = "To measure a speed-up, submit it with other --nodes or --gpus, too."
    if run.num_cpus is not None and run.num_gpus > run.world_size:
        more = f"It had no GPU: this says nothing about the speed with {run.num_gpus} GPUs."
    return f"{_rate_on_ranks(run)}. {more}{_hardware(run)}"


def leading_run(runs: Sequence[RunSummary], groups: Sequence[Group]) -> RunSummary | None:
    """Return the run that the conclusion is about: one of the largest size in the first group that
    has several sizes, or else the newest benchmark with most ranks, or the fastest run; none where
    the runs have several settings, as the fastest of them would stand for what the others are not.
    """
    by_id = {run.run: run for run in runs}
    for group in groups:
        scaled = [by_id[run] for run in group.runs if run in by_id and run not in group.baseline]
        if group.baseline and scaled:
            return max(scaled, key=lambda run: run.num_gpus)
    done = [run for run in runs if run.state == "done"]
    if benchmarked := [run for run in done if run.benchmark is not None]:
        return max(benchmarked[::-1], key=lambda run: run.world_size)
    kinds = _kinds(done)
    if len(kinds) != 1:
        return None
    return max(kinds[0], key=lambda run: (run.disturbed is None, run.rate))


def _kinds(runs: Sequence[RunSummary]) -> list[list[RunSummary]]:
    """Return the runs whose speed is known, by their settings."""
    kinds: dict[tuple[tuple[str, str], ...], list[RunSummary]] = {}
    for run in runs:
        if run.samples_per_s:
            kinds.setdefault(tuple(run.differs_in.items()), []).append(run)
    return list(kinds.values())


def _without_a_leader(done: Sequence[RunSummary]) -> str:
    """Say how fast the runs of each setting are, or why no speed is known."""
    if kinds := _kinds(done):
        keys = ", ".join(map(shown, kinds[0][0].differs_in))
        return f"its runs differ in {keys}, so they are not compared."
    # Perhaps not all ranks of a run recorded steps.
    whys = [run.not_compared_because for run in done if run.step_time_s]
    why = shown(next(filter(None, whys), "no steps were recorded: see record.step"))
    return f"{number_of(len(done), 'run')} done, but no speed is known: {why}."


def _rate_on_ranks(run: RunSummary) -> str:
    measured = run.samples_per_s or Measure(mean=0.0)
    if run.cell and run.cell.samples_per_s and run.cell.num_measured > 1:
        measured = run.cell.samples_per_s
    rate = spread_text(measured, decimals_for([measured.mean]))
    return f"{rate} samples/s on {number_of(run.world_size, 'rank')}"


def _scaling_sentence(run: RunSummary, runs: Sequence[RunSummary]) -> str:
    cell = run.cell
    assert cell is not None
    assert cell.speedup is not None
    baseline = next(other for other in runs if other.run in run.compared_with)
    speedup = interval_text(cell.speedup, 2)  # of all runs of its size
    efficiency = cell.efficiency.mean if cell.efficiency else run.efficiency or 0.0
    scaling = f" ({cell.scaling} scaling)" if cell.scaling else ""
    # One process drives all GPUs with data_parallel.
    unit = "rank" if run.world_size == run.num_gpus else "GPU"
    sizes = f"{number_of(run.num_gpus, unit)} ({size_text(run)})"
    theirs = f"{baseline.num_gpus} ({size_text(baseline)})"
    compared = [other for other in runs if other.compared_with == run.compared_with]
    ending = _hardware(run, baseline) + _uncertainty([run, *compared])
    if cell.differs_from_baseline is False:
        return (
            f"Whether {sizes} are faster than {theirs} is not certain: {speedup} times as fast, "
            f"where {cell.ideal:.3g} is ideal{scaling}. More repeats, or longer runs, would make "
            f"that clear.{ending}"
        )
    # Steps of N times the ranks have N times the samples at most, not N times N.
    sizes_of_steps = (run.samples_per_step or 0.0, baseline.samples_per_step or 0.0)
    is_squared = (
        cell.ideal >= 2 and sizes_of_steps[0] > _SQUARED * cell.ideal**2 * sizes_of_steps[1]
    )
    if efficiency > _MISCOUNTED or is_squared:
        ending += (
            " That cannot be: record.step(samples=...) must count the samples of its own rank "
            "alone, or something else slowed the smaller run down."
        )
    of_ideal = f"{format_percent(efficiency)} % of the ideal speed-up{scaling}"
    return f"{sizes} are {speedup} times as fast as {theirs}: {of_ideal}.{ending}"


def _hardware(mine: Cell | RunFigures, theirs: Cell | RunFigures | None = None) -> str:
    """Say on CPUs that ranks share them, or that they are no more hardware than the baseline's."""
    if mine.num_cpus is None:
        return ""
    if mine.num_cpus < mine.world_size:
        return f" Its {mine.world_size} ranks had to share {number_of(mine.num_cpus, 'CPU')}."
    if theirs is None or theirs.num_cpus is None:
        return ""
    if mine.num_cpus * theirs.num_gpus >= theirs.num_cpus * mine.num_gpus:
        return ""
    own, other = (number_of(side.num_cpus or 0, "CPU") for side in (mine, theirs))
    return f" There is no GPU here: it ran on {own}, and the baseline on {other}."


def _uncertainty(of: Sequence[Cell] | Sequence[RunSummary]) -> str:
    """Return the sentence that ends a comparison of which one of these was disturbed."""
    load = next(filter(None, (one.disturbed for one in of)), None)
    return f" This is uncertain: {shown(load)}." if load else ""


def forecast_sentence(forecast: Forecast, baseline: Cell) -> str:
    """Return `Forecast: 8 GPUs 5.9 to 6.6 times, 16 GPUs ...`, or why there is none."""
    if forecast.refused_because is not None:
        return f"No forecast for more GPUs: {forecast.refused_because}."
    ranges = []
    for size in forecast.sizes:
        assert size.speedup.interval is not None
        ends = (size.speedup.interval.low, size.speedup.interval.high)
        decimals = min(2, decimals_for(ends[:1]))
        low, high = (format_number(end, decimals) for end in ends)
        ranges.append(f"{number_of(size.gpus, baseline.unit)} {low} to {high} times")
    as_fast = f"as fast as {baseline.num_gpus}, with 95 % confidence"
    return f"Forecast: {', '.join(ranges)} {as_fast}."


# Variants and clusters.


def headline(comparison: Group) -> str | None:
    """Name the fastest variant, or those that it may be, and say where other programs disturbed
    them; None where there is nothing to compare."""
    baseline, *rest = comparison.cells
    others = [cell for cell in rest if cell.speedup and not cell.is_without_its_gpus]
    if not others or baseline.samples_per_s is None:
        return None
    best = max(others, key=_times)
    name = shown(baseline.name)
    loads = _uncertainty(comparison.cells)
    if best.differs_from_baseline is False or _times(best) < 1 + WORTH_SAYING:
        are_unsure = any(cell.differs_from_baseline is False for cell in others)
        return f"No variant is {'certainly ' if are_unsure else ''}faster than {name}.{loads}"
    compared = ratios_of_all([each.samples_per_s for each in others if each.samples_per_s])
    alike = [
        cell
        for place, cell in enumerate(others)
        if cell is best or differs(compared[others.index(best), place]) is False
    ]
    assert best.speedup is not None
    as_fast = f"{interval_text(best.speedup, 2)} times as fast as {name}"
    as_fast += f", where {best.ideal:.3g} is ideal" if best.ideal != 1 else ""
    if len(alike) == 1:
        return f"{shown(best.name)} is the fastest: {as_fast}.{loads}"
    alike.sort(key=_times, reverse=True)
    names = " and ".join(f"{shown(cell.name)} ({_times(cell):.2f})" for cell in alike[:2])
    more = f" and {len(alike) - 2} more" if len(alike) > 2 else ""
    unsure = f"which of {names}{more} is the fastest is not certain"
    return f"{shown(best.name)} is {as_fast}; {unsure}.{loads}"


def _times(cell: Cell) -> float:
    return cell.speedup.mean if cell.speedup else 0.0


def conclusions(comparison: Group) -> list[str]:
    """Return a paragraph for each variant but the first, and what holds for several of them."""
    baseline, *others = comparison.cells
    if baseline.samples_per_s is None:
        why = shown(baseline.why_none or f"no run of {baseline.name} is done")
        return [f"There is nothing to compare with: {why}."]
    texts = [" ".join(_sentences(cell, baseline)) for cell in others]
    were_once = any(cell.speedup and cell.speedup.over != "runs" for cell in others)
    return [*texts, *([_ONCE] if were_once else [])]


def _sentences(cell: Cell, baseline: Cell) -> Iterator[str]:
    name, first = shown(cell.name), shown(baseline.name)
    if cell.speedup is None:
        yield f"{name}: {shown(cell.why_none or 'no run is done, or none recorded steps')}."
        return
    on = f" on as many {cell.unit}s"
    if cell.is_without_its_gpus:
        on = ", without the GPUs that it is for, so this says nothing about it"
    elif cell.ideal != 1:
        on = f" on {number_of(cell.num_gpus, cell.unit)}; ideal is {cell.ideal:.3g}"
    yield f"{name}: {spread_text(cell.speedup, 2)} times as fast as {first}{on}."
    for key in ("device_model", "cluster"):
        mine, theirs = (getattr(each.ran_with, key) for each in (cell, baseline))
        if mine and theirs and mine != theirs:
            yield f"{name} ran on {shown(mine)}, and {first} on {shown(theirs)}."
    if cell.differs_from_baseline is False:
        yield f"{_UNSURE[0].upper()}{_UNSURE[1:]}."
    if cell.overall is not None and 1 - cell.overall >= WORTH_SAYING:
        yield f"Of its time {_losses(cell)}"
        yield from _as_sentences(cell.advice)
        if hardware := _hardware(cell, baseline):
            yield hardware.strip()


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
        text += f" ({size_text(cell)} each)"
        text += f", so {_UNSURE}" if cell.differs_from_baseline is False else ""
        if cell.price and first.price:
            gain = first.price / cell.price  # equal runs, start-up and evaluations included
            times = "as many" if abs(gain - 1) < _SURE_OF_MONEY else f"{gain:.2f} times as many"
            text += (
                f"; a run cost {cell.price:,.4g} there and {first.price:,.4g} on "
                f"{shown(first.name)}, {times} samples for the same money"
            )
        yield f"{text}."


# Where the time goes.


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
                verb = "is neither computing nor communication (its loop does not separate them)"
            losses = _divided(cell, cell.lost, to_win, verb)
        texts.insert(0, f"{size_text(cell)}: of its time {losses}")
    return texts


def _as_sentences(advice: Sequence[str]) -> list[str]:
    return [f"{text[0].upper()}{text[1:]}." for text in advice]


def _losses(cell: Cell) -> str:
    """Return all that was lost, and who is to blame for it."""
    lost, straggler = cell.lost or {}, cell.straggler
    text = _divided(cell, lost, whole_percents(lost), "is lost")
    if straggler is None or lost[part.STRAGGLERS] < WORTH_SAYING:
        return text
    share = format_percent(straggler.slowest_in / straggler.stretches)
    verb = "are" if straggler.others else "is"
    return f"{text} The slowest {verb} {straggler_named(straggler)}, in {share} % of the run."


def _divided(cell: Cell, lost: Mapping[str, float], percents: Mapping[str, int], verb: str) -> str:
    """`74 % is lost: 58 % exposed communication, 15 % slower computing, 1 % all else.`"""
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
    return f"{in_all} % {verb}: {', '.join(texts)}."


# A run.


def remarks(run: RunSummary, *, is_alone: bool, has_sizes: bool = False) -> Iterator[str]:
    """Yield why the run failed, its restarts, what it makes of its devices, notes of the ranks,
    and why it is not compared; `is_alone`: there is no other run of its job; `has_sizes`: some of
    them are compared by their size."""
    if run.verdict and run.verdict.kind != "done":
        log = f"log: {run.verdict.log}" if run.verdict.log else ""
        if not is_alone:
            yield run.verdict.message + (f" ({log})" if log else "")
        elif log:  # the conclusion has the message
            yield log
    if run.parting:
        yield parting_sentence(run.parting)
    if run.restarts:
        text = f"restarted {number_of(run.restarts, 'time')}"
        text += f", {number_of(run.lost_steps, 'step')} done again" if run.lost_steps else ""
        text += f", {run.lost_time_s:,.1f} s lost" if run.lost_time_s else ""
        if run.waited_s:
            text += f"; {run.waited_s:,.1f} s in the queue between, which count as no time of it"
        yield text
        for attempt in run.attempts[:-1]:
            if attempt.message:
                yield f"attempt {attempt.attempt}: {attempt.message}"
    if run.benchmark is not None:
        yield from run.benchmark.details
    if run.flops is not None and run.flops.per_s is not None:
        mfu = run.flops.utilization
        used = "" if mfu is None else f", {format_percent(mfu)} % of the peak of its GPUs (MFU)"
        yield f"{run.flops.per_s / 1e9:,.4g} GFLOP/s{used}"
    yield from run.notes
    is_left_out = run.state == "done" and not is_alone and run.benchmark is None
    why = run.not_compared_because
    if why and is_left_out and (has_sizes or why != NO_OTHER_SIZE):
        yield f"its speed is not compared: {why}"


def parting_sentence(parting: Parting) -> str:
    """Say when the replicas of a run part."""
    have = "has" if len(parting.ranks) == 1 else "have"
    attempt = f" of attempt {parting.attempt}" if parting.attempt else ""
    differ = f"{listed(parting.ranks)} {have} other parameters than {listed(parting.others)}"
    at = f"at step {parting.step}{attempt}: {differ}"
    if parting.equal_at is not None:
        return f"replicas part {at}; at step {parting.equal_at} they were equal"
    return f"the ranks are no replicas from the first digest on, {at}"
