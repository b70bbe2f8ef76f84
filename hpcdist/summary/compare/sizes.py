"""The figures of the runs of one size (repeats), compared with those of the smallest size; and why
a size is not as many times as fast as it has GPUs: its time against the ideal, by part.

Ideal is as many times the speed of the smallest size as there are times the GPUs, over all the time
that counts: steps, checkpoints and what restarts cost. For the same samples per GPU the smallest
size needs the share of its time that is the efficiency; what each part takes longer than that part
did there is lost. The parts make up the time, so the losses make up the whole loss. Pure.

Where there is one size only, nothing says what is ideal: then computing is, and all else counts as
lost, which is the most that could be won.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hpcdist.base.statistics import (
    Measure,
    Ratio,
    differs,
    mean,
    measure,
    ratios,
)
from hpcdist.summary.compare.advice import Case, advise
from hpcdist.summary.figures import shares as part
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import (
    Group,
    Losses,
    Repeats,
    RunFigures,
    SizeSummary,
    Straggler,
)

WORTH_SAYING = 0.02
"""Smaller losses are within the noise of most machines."""


class Size(NamedTuple):
    """The order of runs: by these fields, one after the other."""

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
    return run.nodes * run.gpus_per_node


def size(run: RunFigures) -> Size:
    return Size(num_gpus(run), run.nodes)


def measured_rate(runs: Sequence[RunFigures]) -> Measure:
    """Return the samples/s of runs of one size, some of which have them: over runs, or of one run
    over its windows."""
    rates = [run.samples_per_s for run in runs if run.samples_per_s]
    if len(rates) > 1:
        return measure([rate.mean for rate in rates])
    return rates[0]


def sizes_by_run(runs: Mapping[str, RunFigures], groups: Iterable[Group]) -> dict[str, SizeSummary]:
    """Return, for each run of a group with a baseline, what all runs of its size came to; the sizes
    of a group are judged together."""
    summaries: dict[str, SizeSummary] = {}
    for group in groups:
        if group.baseline:
            baseline = [runs[run] for run in group.baseline]
            sizes = list(by_size(runs[run] for run in group.runs).values())
            speedups = _speedups(sizes, baseline)
            for theirs, speedup in zip(sizes, speedups, strict=True):
                summary = _summarize(theirs, group, speedup, num_gpus(baseline[0]))
                summaries.update(dict.fromkeys((run.run for run in theirs), summary))
    return summaries


def _speedups(sizes: Sequence[Sequence[RunFigures]], baseline: Sequence[RunFigures]) -> list[Ratio]:
    """Return the ratio of each size to the baseline, which is 1 for that itself."""
    ids = {run.run for run in baseline}
    others = [theirs for theirs in sizes if not ids.issuperset(run.run for run in theirs)]
    rate = measured_rate(baseline)
    judged = iter(ratios([(measured_rate(theirs), rate) for theirs in others]))
    return [next(judged) if theirs in others else Ratio(mean=1.0) for theirs in sizes]


def _summarize(
    runs: Sequence[RunFigures], group: Group, speedup: Ratio, baseline_gpus: int
) -> SizeSummary:
    times = [run.step_time_s.mean for run in runs if run.step_time_s]
    return SizeSummary(
        num_runs=len(runs),
        scaling=group.scaling,
        strategy=group.strategy,
        samples_per_step=runs[0].samples_per_step,
        samples_per_s=measured_rate(runs),
        step_time_s=mean(times) if times else None,
        speedup=speedup,
        efficiency=speedup.times(baseline_gpus / num_gpus(runs[0])),
        differs_from_baseline=differs(speedup),
    )


def repeats_by_run(
    runs: Mapping[str, RunFigures], groups: Iterable[Group], sizes: Mapping[str, SizeSummary]
) -> dict[str, Repeats]:
    """Return, for each run that was repeated, what it and its repeats came to."""
    repeats: dict[str, Repeats] = {}
    for group in groups:
        for theirs in by_size(runs[run] for run in group.runs).values():
            rates = [run.samples_per_s.mean for run in theirs if run.samples_per_s]
            if len(rates) > 1:
                own = sizes.get(theirs[0].run)
                summary = Repeats(
                    **msgspec.structs.asdict(measure(rates)),
                    num_runs=len(theirs),
                    differs_from_baseline=own.differs_from_baseline if own else None,
                )
                repeats.update(dict.fromkeys((run.run for run in theirs), summary))
    return repeats


def lose_by_size(runs: Sequence[MeasuredRun], baseline_runs: Sequence[MeasuredRun]) -> list[Losses]:
    """Return what each size of a group lost, with advice; `runs` are its own, smallest first, and
    those of its baseline may be lent by another group."""
    sizes: dict[tuple[int, int], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if can_divide(run.figures):
            sizes[run.figures.nodes, run.figures.gpus_per_node].append(run)
    baseline = [run for run in baseline_runs if can_divide(run.figures)]
    if not baseline:
        return [_lose_alone(theirs) for theirs in sizes.values()]
    gpus = num_gpus(baseline[0].figures)
    return [
        lose_against(theirs, baseline, times_gpus=num_gpus(theirs[0].figures) / gpus)
        for theirs in sizes.values()
    ]


def lose_against(
    runs: Sequence[MeasuredRun], baseline: Sequence[MeasuredRun], *, times_gpus: float
) -> Losses:
    """Divide what the runs of a size lost against the ideal of the smallest; that one lost nothing.

    The repeats are averaged; all runs can be divided.
    """
    parts_s = mean_parts_s(runs)
    efficiency = _overall_rate(runs) / _overall_rate(baseline) / times_gpus
    lost = part.lost_shares(parts_s, mean_parts_s(baseline), efficiency)
    return _losses(runs, parts_s, lost, efficiency, [run.figures.run for run in baseline])


def _lose_alone(runs: Sequence[MeasuredRun]) -> Losses:
    """Count all that is not computing as lost, as far as that is known."""
    parts_s = mean_parts_s(runs)
    if runs[0].figures.world_size == 1:  # it waits for nobody: that is its wrapper's own work
        parts_s[part.FIXED] += parts_s[part.COMMUNICATION]
        parts_s[part.COMMUNICATION] = 0.0
    lost = part.shares(parts_s) | {part.COMPUTING: 0.0, part.UNDIVIDED: 0.0}
    return _losses(runs, parts_s, lost, 1 - sum(lost.values()), [])


def _losses(
    runs: Sequence[MeasuredRun],
    parts_s: Mapping[str, float],
    lost: dict[str, float],
    efficiency: float,
    baseline: list[str],
) -> Losses:
    """Add who held the others up, and what would be worth most to change."""
    largest = max(part.SHARES, key=lambda name: lost[name])
    first = runs[0]
    losses = Losses(
        runs=[run.figures.run for run in runs],
        nodes=first.figures.nodes,
        gpus_per_node=first.figures.gpus_per_node,
        against=baseline,
        efficiency=efficiency,
        lost=lost,
        shares=part.shares(parts_s),
        computing_has_communication=_are_mixed(runs),
        largest=largest if lost[largest] >= WORTH_SAYING else None,
        straggler=common_straggler(runs),
    )
    case = Case(first.conditions, losses, [run.figures for run in runs], first.cpus_per_rank)
    return msgspec.structs.replace(losses, advice=advise(case))


def _are_mixed(runs: Sequence[MeasuredRun]) -> bool:
    return any(run.figures.computing_has_communication for run in runs)


def mean_parts_s(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Return the mean seconds per step by share; all runs have parts."""
    parts_of = [run.figures.parts_s for run in runs if run.figures.parts_s]
    return {name: mean(parts[name] for parts in parts_of) for name in part.SHARES}


def _overall_rate(runs: Sequence[MeasuredRun]) -> float:
    """Return the mean samples per second over steps, checkpoints and what restarts cost."""
    rates = []
    for figures in (run.figures for run in runs):
        rate, step_time_s, parts_s = figures.samples_per_s, figures.step_time_s, figures.parts_s
        assert rate is not None
        assert step_time_s is not None
        assert parts_s is not None
        rates.append(rate.mean * step_time_s.mean / sum(parts_s.values()))
    return mean(rates)


def common_straggler(runs: Sequence[MeasuredRun]) -> Straggler | None:
    """Return who held the others up in every run; on other hosts each time, it is the rank's own
    work."""
    stragglers = [run.figures.straggler for run in runs if run.figures.straggler]
    if not runs or len(stragglers) < len(runs):
        return None
    if len({(straggler.rank, straggler.node) for straggler in stragglers}) != 1:
        return None
    is_same_host = len({straggler.host for straggler in stragglers}) == 1
    return msgspec.structs.replace(
        stragglers[0],
        host=stragglers[0].host if is_same_host else None,
        longer_s=mean(straggler.longer_s for straggler in stragglers),
        slowest_in=sum(straggler.slowest_in for straggler in stragglers),
        stretches=sum(straggler.stretches for straggler in stragglers),
    )


def can_divide(run: RunFigures) -> bool:
    """Return whether there are steps that took time, and samples in them."""
    rate = run.samples_per_s
    return bool(rate and rate.mean > 0 and run.parts_s and sum(run.parts_s.values()) > 0)
