"""Why a size is not as many times as fast as it has GPUs: its time against the ideal, by part.

Ideal is as many times the speed of the smallest size as there are times the GPUs, over all the time
that counts: steps, checkpoints and what restarts cost. For the same samples per GPU the smallest
size needs the share of its time that is the efficiency; what each part takes longer than that part
did there is lost. The parts make up the time, so the losses make up the whole loss. Pure.

Where there is one size only, nothing says what is ideal: then computing is, and all else counts as
lost, which is the most that could be won.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hpcdist.base.statistics import mean
from hpcdist.summary.compare.advice import Case, advise
from hpcdist.summary.compare.sizes import num_gpus
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.figures.shares import (
    COMMUNICATION,
    COMPUTING,
    FIXED,
    SHARES,
    UNDIVIDED,
    lost_shares,
    shares,
)
from hpcdist.summary.values import Losses, RunFigures, Straggler

WORTH_SAYING = 0.02
"""Smaller losses are within the noise of most machines."""


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
    lost = lost_shares(parts_s, mean_parts_s(baseline), efficiency)
    return _losses(runs, parts_s, lost, efficiency, [run.figures.run for run in baseline])


def _lose_alone(runs: Sequence[MeasuredRun]) -> Losses:
    """Count all that is not computing as lost, as far as that is known."""
    parts_s = mean_parts_s(runs)
    if runs[0].figures.world_size == 1:  # it waits for nobody: that is its wrapper's own work
        parts_s[FIXED] += parts_s[COMMUNICATION]
        parts_s[COMMUNICATION] = 0.0
    lost = shares(parts_s) | {COMPUTING: 0.0, UNDIVIDED: 0.0}
    return _losses(runs, parts_s, lost, 1 - sum(lost.values()), [])


def _losses(
    runs: Sequence[MeasuredRun],
    parts_s: Mapping[str, float],
    lost: dict[str, float],
    efficiency: float,
    baseline: list[str],
) -> Losses:
    """Add who held the others up, and what would be worth most to change."""
    largest = max(SHARES, key=lambda part: lost[part])
    first = runs[0]
    losses = Losses(
        runs=[run.figures.run for run in runs],
        nodes=first.figures.nodes,
        gpus_per_node=first.figures.gpus_per_node,
        against=baseline,
        efficiency=efficiency,
        lost=lost,
        shares=shares(parts_s),
        largest=largest if lost[largest] >= WORTH_SAYING else None,
        straggler=common_straggler(runs),
    )
    case = Case(first.conditions, losses, [run.figures for run in runs], first.cpus_per_rank)
    return msgspec.structs.replace(losses, advice=advise(case))


def mean_parts_s(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Return the mean seconds per step by share; all runs have parts."""
    parts_of = [run.figures.parts_s for run in runs if run.figures.parts_s]
    return {part: mean(parts[part] for parts in parts_of) for part in SHARES}


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
    first = stragglers[0]
    return Straggler(
        rank=first.rank,
        node=first.node,
        host=first.host if len({straggler.host for straggler in stragglers}) == 1 else None,
        longer_s=mean(straggler.longer_s for straggler in stragglers),
        slowest_in=sum(straggler.slowest_in for straggler in stragglers),
        stretches=sum(straggler.stretches for straggler in stragglers),
    )


def can_divide(run: RunFigures) -> bool:
    """Return whether there are steps that took time, and samples in them."""
    rate = run.samples_per_s
    return bool(rate and rate.mean > 0 and run.parts_s and sum(run.parts_s.values()) > 0)
