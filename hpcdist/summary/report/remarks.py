"""Sentences about runs: the conclusion, and remarks on what figures do not say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    number_of,
    shown,
    spread_text,
)
from hpcdist.summary.compare.sizes import num_gpus
from hpcdist.summary.values import Group, RunSummary, UsageSummary, VerdictSummary

_LONG_ENOUGH_S = 60.0
_LITTLE = 0.3
_NEARLY_ALL = 0.95
_OFTEN = 0.1

_MOST_EFFICIENCY = 1.1
"""Caches and noise can give a little more than the ideal; more than this is odd."""

_MORE_RUNS = " More repeats, or longer runs, would make that clear."
_ENDED = {"cancelled": "was cancelled", "preempted": "was preempted", "lost": "was lost"}

_TOO_GOOD = (
    " That is too good to be true: something else slowed the smaller run down; run it again."
)


def conclusion(runs: Sequence[RunSummary], groups: Sequence[Group]) -> str:
    """Return what the runs of one job come to, in one sentence; `groups` are those of its runs."""
    job = shown(runs[0].job)
    done = [run for run in runs if run.state == "done"]
    if len(runs) == 1 and not done and runs[0].verdict:  # else they are counted
        ended = _ENDED.get(runs[0].state or "", "failed")
        return f"{job}: the run {ended}: {shown(runs[0].verdict.message)}."
    if not done:
        return f"{job}: no run is done ({_count_states(runs)}).{_how_it_stands(runs)}"
    best = leading_run(runs, groups)
    if best is None:
        num_done = number_of(len(done), "run")
        return f"{job}: {num_done} done, but no speed is known: {_why_no_speed(done)}."
    if best.speedup is not None:
        return f"{job}: {_scaling_sentence(best, runs)}"
    if is_benchmark(best):
        return f"{job}: {_benchmark_sentences(best)}"
    rate = format_number(_rate(best), decimals_for([_rate(best)]))
    return (
        f"{job}: {rate} samples/s on {number_of(best.world_size, 'rank')}."
        " To measure a speed-up, submit it with other --nodes or --gpus, too."
    )


def leading_run(runs: Sequence[RunSummary], groups: Sequence[Group]) -> RunSummary | None:
    """Return the run that the conclusion is about: one of the largest size in the first group that
    has several sizes, or else the newest benchmark with most ranks, or the fastest run."""
    by_id = {run.run: run for run in runs}
    for group in groups:
        scaled = [by_id[run] for run in group.runs if run in by_id and run not in group.baseline]
        if group.baseline and scaled:
            return max(scaled, key=num_gpus)
    done = [run for run in runs if run.state == "done"]
    if benchmarked := [run for run in done if is_benchmark(run)]:
        return max(benchmarked[::-1], key=lambda run: run.world_size)
    return max((run for run in done if run.samples_per_s), key=_rate, default=None)


def _how_it_stands(runs: Sequence[RunSummary]) -> str:
    """Return how fast the newest of the running runs is, or else why the newest run ended."""
    going = [run for run in runs if run.state == "running" and run.samples_per_s]
    if going:
        rate = format_number(_rate(going[-1]), decimals_for([_rate(going[-1])]))
        ranks = number_of(going[-1].world_size, "rank")
        return f" So far {rate} samples/s on {ranks}; hpcdist watch shows its progress."
    messages = [shown(run.verdict.message) for run in runs if run.verdict]
    return f" The newest run: {messages[-1]}." if messages else ""


def _why_no_speed(done: Sequence[RunSummary]) -> str:
    """Return why runs have no samples/s: perhaps not all ranks of a run recorded steps."""
    stepped = [run for run in done if run.step_time_s and run.not_compared_because]
    return shown(stepped[-1].not_compared_because or "") if stepped else "no steps were recorded"


def is_benchmark(run: RunSummary) -> bool:
    """Tell whether the run measured something else than training steps."""
    return bool(run.benchmark_results)


def _benchmark_sentences(run: RunSummary) -> str:
    sentences = [
        sentence
        for benchmark, result in run.benchmark_results
        for sentence in benchmark.conclusions(result)
    ]
    return " ".join(map(shown, sentences)) + _shared_cpus(run)


def _scaling_sentence(run: RunSummary, runs: Sequence[RunSummary]) -> str:
    assert run.speedup is not None
    assert run.efficiency is not None
    efficiency = run.of_size.efficiency.mean if run.of_size else run.efficiency
    baseline = next(other for other in runs if other.run in run.compared_with)
    # One process drives all GPUs with data_parallel.
    unit = "rank" if run.world_size == num_gpus(run) else "GPU"
    doubt = _TOO_GOOD if efficiency > _MOST_EFFICIENCY else ""
    sizes = f"{number_of(num_gpus(run), unit)} ({run.nodes} x {run.gpus_per_node})"
    theirs = f"{num_gpus(baseline)} ({baseline.nodes} x {baseline.gpus_per_node})"
    if run.of_size and run.of_size.differs_from_baseline is False:
        ideal = run.speedup / run.efficiency if run.efficiency else 1.0
        return (
            f"{sizes} and {theirs} are not distinguishable in speed: {_speedup(run)} times as fast,"
            f" where {ideal:.3g} is ideal{_scaling(run)}.{_MORE_RUNS}{_shared_cpus(run)}"
        )
    return (
        f"{sizes} are {_speedup(run)} times as fast as {theirs}: "
        f"{format_percent(efficiency)} % of the ideal speed-up{_scaling(run)}."
        f"{doubt}{_shared_cpus(run)}"
    )


def _speedup(run: RunSummary) -> str:
    """Return the speed-up of all runs of its size, with its interval where they differ at all."""
    if run.of_size is None or run.of_size.speedup.interval is None:
        return f"{run.speedup:.2f}"
    speedup = run.of_size.speedup
    return spread_text(speedup, 2) if speedup.sd else f"{speedup.mean:.2f}"


def _scaling(run: RunSummary) -> str:
    scaling = run.of_size.scaling if run.of_size else None
    return f" ({scaling} scaling)" if scaling else ""


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
    sentences = []
    if run.verdict and run.verdict.kind != "done":
        sentences += _why_it_ended(run.verdict, is_alone=is_alone)
    if run.restarts:
        sentences.append(_restarts(run))
        sentences += [
            f"attempt {attempt.attempt}: {shown(attempt.message)}"
            for attempt in run.attempts[:-1]
            if attempt.message
        ]
    for benchmark, result in run.benchmark_results:
        sentences += map(shown, benchmark.details(result))
    sentences += map(shown, _usage_remarks(run))
    sentences += map(shown, run.notes)
    is_left_out = run.state == "done" and not is_alone and not is_benchmark(run)
    if run.not_compared_because and is_left_out:
        others = " with the others" if run.compared_with else ""
        sentences.append(f"not compared{others}: {shown(run.not_compared_because)}")
    return sentences


def _why_it_ended(verdict: VerdictSummary, *, is_alone: bool) -> list[str]:
    """Leave out the message of a single run: the conclusion has it."""
    if is_alone:
        return [f"log: {shown(verdict.log)}"] if verdict.log else []
    log = f" (log: {shown(verdict.log)})" if verdict.log else ""
    return [f"{shown(verdict.message)}{log}"]


def _restarts(run: RunSummary) -> str:
    sentence = f"restarted {number_of(run.restarts, 'time')}"
    if run.lost_steps:
        sentence += f", {number_of(run.lost_steps, 'step')} done again"
    if run.lost_time_s:
        sentence += f", {run.lost_time_s:,.1f} s lost"
    return sentence


def _usage_remarks(run: RunSummary) -> Iterator[str]:
    usage = run.usage
    if usage is None or usage.sampled_s < _LONG_ENOUGH_S:
        return
    yield from _idle_gpus(usage)
    yield from _busy_cpus(usage)
    yield from _slowed_gpus(usage)


def _idle_gpus(usage: UsageSummary) -> Iterator[str]:
    if usage.gpu_utilization is not None and usage.gpu_utilization < _LITTLE:
        yield (
            f"the GPUs were busy for {format_percent(usage.gpu_utilization)} % of the time only: "
            "start-up, data loading and waiting took the rest"
        )


def _busy_cpus(usage: UsageSummary) -> Iterator[str]:
    # On CPUs alone that is as it should be.
    if not usage.gpus or not usage.cpus_busy or not usage.num_cpus:
        return
    if usage.cpus_busy >= _NEARLY_ALL * usage.num_cpus:
        yield (
            f"{usage.cpus_busy:,.1f} of {usage.num_cpus:,.4g} CPUs were busy all the time: more "
            "CPUs, or less work for them, may let the GPUs go faster"
        )


def _slowed_gpus(usage: UsageSummary) -> Iterator[str]:
    for gpu in usage.gpus:
        if gpu.throttled is not None and gpu.throttled > _OFTEN:
            yield (
                f"GPU {gpu.uuid} of node {gpu.node} was slowed down by heat or its power supply "
                f"for {format_percent(gpu.throttled)} % of the time"
            )


def is_baseline(run: RunSummary) -> bool:
    """Tell whether the speed-up of others is against this run."""
    return run.run in run.compared_with


def _rate(run: RunSummary) -> float:
    return run.samples_per_s.mean if run.samples_per_s else 0.0


def _count_states(runs: Iterable[RunSummary]) -> str:
    counts = Counter(run.state or "unknown" for run in runs)
    return ", ".join(f"{count} {state}" for state, count in counts.items())
