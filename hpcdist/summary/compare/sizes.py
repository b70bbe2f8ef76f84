"""What the runs of one size, which are repeats, came to, and against those of the smallest size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hpcdist.base.statistics import Measure, differs, mean, measure, ratio, spread_measure
from hpcdist.summary.values import Group, Repeats, RunSummary, SizeSummary

Size = tuple[int, int]
"""GPUs, and nodes."""


def with_sizes(runs: Sequence[RunSummary], groups: Sequence[Group]) -> list[RunSummary]:
    """The runs with what all runs of their size came to, where there is a comparison."""
    by_id = {run.run: run for run in runs}
    found: dict[str, SizeSummary] = {}
    for group in groups:
        if group.baseline:
            baseline = [by_id[run] for run in group.baseline]
            for theirs in by_size([by_id[run] for run in group.runs]).values():
                summary = _summarize(theirs, baseline, group)
                found.update(dict.fromkeys((run.run for run in theirs), summary))
    return [
        msgspec.structs.replace(run, of_size=found[run.run]) if run.run in found else run
        for run in runs
    ]


def by_size(runs: Iterable[RunSummary]) -> Mapping[Size, list[RunSummary]]:
    """The runs of each size, smallest first."""
    found: dict[Size, list[RunSummary]] = defaultdict(list)
    for run in runs:
        found[size(run)].append(run)
    return {key: found[key] for key in sorted(found)}


def num_gpus(run: RunSummary) -> int:
    """Ranks, but with data_parallel, whose one rank drives several GPUs."""
    return run.nodes * run.gpus_per_node


def size(run: RunSummary) -> Size:
    """GPUs, then nodes: what runs are ordered by."""
    return num_gpus(run), run.nodes


def measured_rate(runs: Sequence[RunSummary]) -> Measure:
    """Samples/s of runs of one size, which have some: over runs, or of one run over its windows."""
    rates = [run.samples_per_s for run in runs if run.samples_per_s]
    if len(rates) > 1:
        return measure([rate.mean for rate in rates])
    (rate,) = rates
    return spread_measure(rate.mean, rate.sd, rate.count, over="windows")


def _summarize(
    runs: Sequence[RunSummary], baseline: Sequence[RunSummary], group: Group
) -> SizeSummary:
    mine, theirs = measured_rate(runs), measured_rate(baseline)
    speedup = ratio(mine, theirs)
    is_baseline = {run.run for run in runs} == {run.run for run in baseline}
    times = [run.step_time_s.mean for run in runs if run.step_time_s]
    return SizeSummary(
        num_runs=len(runs),
        scaling=group.scaling,
        strategy=group.strategy,
        samples_per_step=runs[0].samples_per_step,
        samples_per_s=mine,
        step_time_s=mean(times) if times else None,
        speedup=speedup,
        efficiency=speedup.times(num_gpus(baseline[0]) / num_gpus(runs[0])),
        differs_from_baseline=None if is_baseline else differs(speedup),
    )


def with_repeats(runs: Sequence[RunSummary], groups: Sequence[Group]) -> list[RunSummary]:
    """The runs with what they and their repeats came to."""
    by_id = {run.run: run for run in runs}
    repeats: dict[str, Repeats] = {}
    for group in groups:
        repeats |= _repeats_of([by_id[run] for run in group.runs], group.baseline)
    return [
        msgspec.structs.replace(run, repeats=repeats[run.run]) if run.run in repeats else run
        for run in runs
    ]


def _repeats_of(runs: Sequence[RunSummary], baseline: Sequence[str]) -> dict[str, Repeats]:
    by_size: dict[tuple[int, int], list[RunSummary]] = defaultdict(list)
    for run in runs:
        by_size[run.nodes, run.gpus_per_node].append(run)
    found = {size: made for size, theirs in by_size.items() if (made := _repeats(theirs))}
    firsts = [size for size, theirs in by_size.items() if theirs[0].run in baseline]
    first = found.get(firsts[0]) if firsts else None
    return {
        run.run: one if first is None or one is first else _against(one, first)
        for size, one in found.items()
        for run in by_size[size]
    }


def _repeats(runs: Sequence[RunSummary]) -> Repeats | None:
    rates = [run.samples_per_s.mean for run in runs if run.samples_per_s]
    if len(rates) < 2:
        return None
    return Repeats(num_runs=len(rates), **msgspec.structs.asdict(measure(rates)))


def _against(repeats: Repeats, baseline: Repeats) -> Repeats:
    return msgspec.structs.replace(repeats, differs_from_baseline=differs(ratio(repeats, baseline)))


def one_of_each(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """One run of each size that was repeated."""
    found = {
        (run.nodes, run.gpus_per_node, run.repeats): run for run in runs if run.repeats is not None
    }
    return list(found.values())
