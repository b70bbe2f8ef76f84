"""What the runs of each size came to against those of the smallest: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hpcdist.base.statistics import Measure, differs, mean, measure, ratio, spread_measure
from hpcdist.summary.values import Group, RunSummary, SizeSummary

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
