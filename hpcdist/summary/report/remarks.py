"""Sentences about runs: the conclusion, and remarks on what figures do not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcdist.base.statistics import Measure
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    interval_text,
    listed,
    number_of,
    shown,
    spread_text,
)
from hpcdist.runs.run import name_to_type
from hpcdist.summary.compare.conclusions import hardware, uncertainty
from hpcdist.summary.values import Group, Parting, RunSummary, UsageSummary

_LONG_ENOUGH_S = 60.0
_LITTLE = 0.3
_SHOWN_KINDS = 3
_NEARLY_ALL = 0.95
_MISCOUNTED = 1.5
_MOST_EFFICIENCY = 1.1
"""Caches and noise can give a little more than the ideal; more than this is odd."""
_ENDED = {"cancelled": "was cancelled", "preempted": "was preempted", "lost": "was lost"}


def conclusion(runs: Sequence[RunSummary], groups: Sequence[Group]) -> str:
    """Return what the runs of one job come to, in one sentence; `groups` are those of its runs."""
    job, best = shown(runs[0].job), leading_run(runs, groups)
    done = [run for run in runs if run.state == "done"]
    if len(runs) == 1 and not done and runs[0].verdict:  # else they are counted
        ended = _ENDED.get(runs[0].state or "", "failed")
        return f"{job}: the run {ended}: {shown(runs[0].verdict.message)}."
    if not done:
        counts = Counter(run.state or "unknown" for run in runs)
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"{job}: no run is done ({states}).{_how_it_stands(runs)}"
    if best is None:
        return f"{job}: {_without_a_leader(done)}"
    if best.differs_in:
        job = f"{job} with {shown(best.settings_text)}"
    if best.speedup is not None:
        compared = [run for run in runs if run.compared_with == best.compared_with]
        loads = [run.disturbed for run in (best, *compared)]
        return f"{job}: {_scaling_sentence(best, runs)}{uncertainty(loads)}"
    if is_benchmark(best):
        answers = best.benchmark.conclusions if best.benchmark else []
        text = " ".join(map(shown, answers)) or "it measured, and did not come to its end."
        return f"{job}: {text}{_shared_cpus(best)}"
    return f"{job}: {_without_a_speedup(best)}"


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
    if benchmarked := [run for run in done if is_benchmark(run)]:
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


def is_benchmark(run: RunSummary) -> bool:
    """Tell whether the run measured something else than training steps."""
    return run.benchmark is not None


def _how_it_stands(runs: Sequence[RunSummary]) -> str:
    """Return how fast the newest of the running runs is, or else why the newest run ended."""
    going = [run for run in runs if run.state == "running" and run.samples_per_s]
    if going:
        newest = going[-1]
        name = name_to_type(Path(newest.path)) if newest.path else newest.run
        return f" So far {_rate_on_ranks(newest)}; hpcdist watch {name} shows its progress."
    messages = [shown(run.verdict.message) for run in runs if run.verdict]
    return f" The newest run: {messages[-1]}." if messages else ""


def _without_a_leader(done: Sequence[RunSummary]) -> str:
    """Say how fast the runs of each setting are, or why no speed is known."""
    if kinds := _kinds(done):
        keys = ", ".join(map(shown, kinds[0][0].differs_in))
        fastest = [max(kind, key=lambda run: run.rate) for kind in kinds[:_SHOWN_KINDS]]
        rates = [f"{_rate_on_ranks(run)} with {shown(run.settings_text)}" for run in fastest]
        more = f"; and {len(kinds) - _SHOWN_KINDS} more" if len(kinds) > _SHOWN_KINDS else ""
        return f"its runs differ in {keys}, so they are not compared: {'; '.join(rates)}{more}."
    why = (
        "no steps were recorded. Your own loop records them with record.step(samples=...): see "
        "docs/own-code.md"
    )
    # Perhaps not all ranks of a run recorded steps.
    for run in done:
        if run.step_time_s and run.not_compared_because:
            why = shown(run.not_compared_because)
    return f"{number_of(len(done), 'run')} done, but no speed is known: {why}."


def _without_a_speedup(run: RunSummary) -> str:
    if run.together is False:
        rate = format_number(run.rate, decimals_for([run.rate]))
        why = shown(run.not_compared_because or "")
        return f"{why}. Together they processed {rate} samples/s; no speed-up is computed."
    if run.disturbed is not None:
        return f"{_rate_on_ranks(run)}, but {shown(run.disturbed)}."
    if run.num_cpus is not None and run.num_gpus > run.world_size:
        return (
            f"{_rate_on_ranks(run)}, whose process had no GPU to use: this says nothing "
            f"about the speed with {run.num_gpus} GPUs."
        )
    more = "To measure a speed-up, submit it with other --nodes or --gpus, too."
    return f"{_rate_on_ranks(run)}. {more}{_shared_cpus(run)}"


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
    sizes = f"{number_of(run.num_gpus, unit)} ({run.nodes} x {run.gpus_per_node})"
    theirs = f"{baseline.num_gpus} ({baseline.nodes} x {baseline.gpus_per_node})"
    shared = _shared_cpus(run) or "".join(f" {text}" for text in hardware(run, baseline))
    if cell.differs_from_baseline is False:
        return (
            f"Whether {sizes} are faster than {theirs} is not certain: {speedup} times as fast, "
            f"where {cell.ideal:.3g} is ideal{scaling}. More repeats, or longer runs, would make "
            f"that clear.{shared}"
        )
    doubt = ""
    if efficiency > _MISCOUNTED:
        doubt = (
            " That cannot be: record.step(samples=...) must count the samples of its own rank "
            "alone, or something else slowed the smaller run down."
        )
    elif efficiency > _MOST_EFFICIENCY:
        doubt = (
            " More than ideal is seldom real: something else may have slowed the smaller run down."
        )
    of_ideal = f"{format_percent(efficiency)} % of the ideal speed-up{scaling}"
    return f"{sizes} are {speedup} times as fast as {theirs}: {of_ideal}.{doubt}{shared}"


def _shared_cpus(run: RunSummary) -> str:
    """Explain why simulated nodes on one machine are not faster, where their ranks share CPUs."""
    if run.num_cpus is None or run.num_cpus >= run.world_size:
        return ""
    cpus = "one CPU" if run.num_cpus == 1 else f"{run.num_cpus} CPUs"
    return f" Its {run.world_size} ranks had to share {cpus}."


def remarks(run: RunSummary, *, is_alone: bool) -> list[str]:
    """Return why the run failed, its restarts, remarks on its figures, notes of the ranks, and why
    it is not compared.

    `is_alone`: there is no other run of its job to compare it with.
    """
    return [shown(text) for text in _remarks(run, is_alone=is_alone)]


def _remarks(run: RunSummary, *, is_alone: bool) -> Iterator[str]:
    if run.verdict and run.verdict.kind != "done":
        log = f"log: {run.verdict.log}" if run.verdict.log else ""
        if not is_alone:
            yield run.verdict.message + (f" ({log})" if log else "")
        elif log:  # the conclusion has the message
            yield log
    if run.parting:
        yield parting_sentence(run.parting)
    yield from _restart_remarks(run)
    if run.benchmark is not None:
        yield from run.benchmark.details
    if run.usage is not None and run.usage.sampled_s >= _LONG_ENOUGH_S:
        yield from _usage_remarks(run.usage)
    yield from _efficiency_remarks(run)
    yield from run.notes
    is_left_out = run.state == "done" and not is_alone and not is_benchmark(run)
    if run.not_compared_because and is_left_out:
        others = " with the others" if run.compared_with else ""
        yield f"not compared{others}: {run.not_compared_because}"


def _restart_remarks(run: RunSummary) -> Iterator[str]:
    """Say what restarts cost, and why each attempt before the last ended."""
    if not run.restarts:
        return
    text = f"restarted {number_of(run.restarts, 'time')}"
    text += f", {number_of(run.lost_steps, 'step')} done again" if run.lost_steps else ""
    text += f", {run.lost_time_s:,.1f} s lost" if run.lost_time_s else ""
    if run.waited_s:
        text += f"; {run.waited_s:,.1f} s in the queue between, which count as no time of it"
    yield text
    for attempt in run.attempts[:-1]:
        if attempt.message:
            yield f"attempt {attempt.attempt}: {attempt.message}"


def parting_sentence(parting: Parting) -> str:
    """Say when the replicas of a run part."""
    have = "has" if len(parting.ranks) == 1 else "have"
    attempt = f" of attempt {parting.attempt}" if parting.attempt else ""
    differ = f"{listed(parting.ranks)} {have} other parameters than {listed(parting.others)}"
    at = f"at step {parting.step}{attempt}: {differ}"
    if parting.equal_at is not None:
        return f"replicas part {at}; at step {parting.equal_at} they were equal"
    return (
        f"the ranks are no replicas from the first digest on, {at}; that is right only where each "
        "has another part of the model"
    )


def _efficiency_remarks(run: RunSummary) -> Iterator[str]:
    """Say what the run makes of its devices."""
    if run.flops is not None and run.flops.per_s is not None:
        used = ""
        if run.flops.utilization is not None:
            used = f", {format_percent(run.flops.utilization)} % of the peak of its GPUs (MFU)"
        yield f"{run.flops.per_s / 1e9:,.4g} GFLOP/s{used}"


def _usage_remarks(usage: UsageSummary) -> Iterator[str]:
    if usage.gpu_utilization is not None and usage.gpu_utilization < _LITTLE:
        yield (
            f"the GPUs were busy for {format_percent(usage.gpu_utilization)} % of the time only: "
            "start-up, data loading and waiting took the rest"
        )
    # On CPUs alone it is as it should be that they are busy.
    busy, num_cpus = usage.cpus_busy, usage.num_cpus
    has_gpus = usage.gpu_utilization is not None
    if has_gpus and busy and num_cpus and busy >= _NEARLY_ALL * num_cpus:
        yield (
            f"{busy:,.1f} of {num_cpus:,.4g} CPUs were busy all the time: more CPUs, or "
            "less work for them, may let the GPUs work faster"
        )
