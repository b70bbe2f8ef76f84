"""The figures of the runs of one size (repeats), compared with those of the smallest size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hpcdist.base.statistics import Measure, differs, mean, measure, ratio, spread_measure
from hpcdist.summary.values import Group, Repeats, RunFigures, RunSummary, SizeSummary


class Size(NamedTuple):
    """What runs are ordered by."""

    gpus: int
    """In all: with data_parallel, one rank drives several."""
    nodes: int


R = TypeVar("R", bound=RunFigures)


def by_size(runs: Iterable[R]) -> Mapping[Size, list[R]]:
    """Return the runs of each size, smallest first."""
    sizes: dict[Size, list[R]] = defaultdict(list)
    for run in runs:
        sizes[size(run)].append(run)
    return {key: sizes[key] for key in sorted(sizes)}


def num_gpus(run: RunFigures) -> int:
    """Return the GPUs of a run."""
    return run.nodes * run.gpus_per_node


def size(run: RunFigures) -> Size:
    """Return the size of a run."""
    return Size(num_gpus(run), run.nodes)


def measured_rate(runs: Sequence[RunFigures]) -> Measure:
    """Return the samples/s of runs of one size, some of which have them: over runs, or of one run
    over its windows."""
    rates = [run.samples_per_s for run in runs if run.samples_per_s]
    if len(rates) > 1:
        return measure([rate.mean for rate in rates])
    (rate,) = rates
    # An older saved summary does not say what its sd is over.
    return spread_measure(rate.mean, rate.sd, rate.count, over="windows")


def sizes_by_run(runs: Mapping[str, RunFigures], groups: Iterable[Group]) -> dict[str, SizeSummary]:
    """Return, for each run of a group with a baseline, what all runs of its size came to."""
    summaries: dict[str, SizeSummary] = {}
    for group in groups:
        baseline = [runs[run] for run in group.baseline]
        sizes = by_size(runs[run] for run in group.runs) if baseline else {}
        for theirs in sizes.values():
            rate = measured_rate(theirs)
            speedup = ratio(rate, measured_rate(baseline))
            times = [run.step_time_s.mean for run in theirs if run.step_time_s]
            is_baseline = {run.run for run in theirs} == {*group.baseline}
            summary = SizeSummary(
                num_runs=len(theirs),
                scaling=group.scaling,
                strategy=group.strategy,
                samples_per_step=theirs[0].samples_per_step,
                samples_per_s=rate,
                step_time_s=mean(times) if times else None,
                speedup=speedup,
                efficiency=speedup.times(num_gpus(baseline[0]) / num_gpus(theirs[0])),
                differs_from_baseline=None if is_baseline else differs(speedup),
            )
            summaries.update(dict.fromkeys((run.run for run in theirs), summary))
    return summaries


def repeats_by_run(runs: Mapping[str, RunFigures], groups: Iterable[Group]) -> dict[str, Repeats]:
    """Return, for each run that was repeated, what it and its repeats came to."""
    repeats: dict[str, Repeats] = {}
    for group in groups:
        sizes = list(by_size(runs[run] for run in group.runs).values())
        baseline = next((theirs for theirs in sizes if theirs[0].run in group.baseline), [])
        for theirs in sizes:
            rate = _rate_over_runs(theirs)
            against = None if theirs is baseline else _rate_over_runs(baseline)
            if rate is not None:
                summary = Repeats(
                    **msgspec.structs.asdict(rate),
                    num_runs=len(theirs),
                    differs_from_baseline=None
                    if against is None
                    else differs(ratio(rate, against)),
                )
                repeats.update(dict.fromkeys((run.run for run in theirs), summary))
    return repeats


def _rate_over_runs(runs: Sequence[RunFigures]) -> Measure | None:
    """None with fewer than two."""
    rates = [run.samples_per_s.mean for run in runs if run.samples_per_s]
    return measure(rates) if len(rates) > 1 else None


def one_of_each(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return one run of each size that was repeated."""
    repeated = {(*size(run), run.repeats): run for run in runs if run.repeats is not None}
    return list(repeated.values())
