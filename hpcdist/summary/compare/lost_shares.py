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
from typing import NamedTuple

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


class Size(NamedTuple):
    """The runs of one size, which all have parts and samples/s."""

    runs: Sequence[RunFigures]
    num_devices: int
    parts_s: Mapping[str, float]
    rate: float
    """Samples per second of all the time."""


def size_of(runs: Sequence[RunFigures], num_devices: int) -> Size:
    """Average the repeats."""
    parts_of = [run.parts_s for run in runs if run.parts_s]
    parts_s = {part: mean(parts[part] for parts in parts_of) for part in SHARES}
    return Size(runs, num_devices, parts_s, mean(map(overall_rate, runs)))


def overall_rate(run: RunFigures) -> float:
    """Return the samples per second over steps, checkpoints and what restarts cost."""
    assert run.samples_per_s is not None
    assert run.step_time_s is not None
    assert run.parts_s is not None
    return run.samples_per_s.mean * run.step_time_s.mean / sum(run.parts_s.values())


def against(size: Size, baseline: Size) -> Losses:
    """Divide what a size lost against the ideal of the smallest; that one lost nothing."""
    efficiency = size.rate / baseline.rate * baseline.num_devices / size.num_devices
    lost = lost_shares(size.parts_s, baseline.parts_s, efficiency)
    return _losses(size, lost, efficiency, [run.run for run in baseline.runs])


def alone(size: Size) -> Losses:
    """Count all that is not computing as lost, as far as that is known."""
    if size.runs[0].world_size == 1:  # it waits for nobody: that is its wrapper's own work
        parts_s = dict(size.parts_s)
        parts_s[FIXED] += parts_s.pop(COMMUNICATION)
        size = size._replace(parts_s={COMMUNICATION: 0.0, **parts_s})
    lost = shares(size.parts_s)
    lost[COMPUTING] = lost[UNDIVIDED] = 0.0
    efficiency = 1 - sum(lost.values())
    return _losses(size, lost, efficiency, [])


def common_straggler(runs: Sequence[RunFigures]) -> Straggler | None:
    """Return who held the others up in every run; on other hosts each time, it is the rank's own
    work."""
    per_run = [run.straggler for run in runs]
    if not per_run or any(straggler is None for straggler in per_run):
        return None
    stragglers = [straggler for straggler in per_run if straggler is not None]
    if len({(straggler.rank, straggler.node) for straggler in stragglers}) != 1:
        return None
    hosts = {straggler.host for straggler in stragglers}
    return Straggler(
        rank=stragglers[0].rank,
        node=stragglers[0].node,
        host=stragglers[0].host if len(hosts) == 1 else None,
        longer_s=mean(straggler.longer_s for straggler in stragglers),
        slowest_in=sum(straggler.slowest_in for straggler in stragglers),
        stretches=sum(straggler.stretches for straggler in stragglers),
    )


def can_divide(run: RunFigures) -> bool:
    """Return whether there are steps that took time, and samples in them."""
    rate = run.samples_per_s
    return bool(rate and rate.mean > 0 and run.parts_s and sum(run.parts_s.values()) > 0)


def _losses(
    size: Size, lost: Mapping[str, float], efficiency: float, baseline: list[str]
) -> Losses:
    largest = max(SHARES, key=lambda part: lost[part])
    return Losses(
        runs=[run.run for run in size.runs],
        nodes=size.runs[0].nodes,
        gpus_per_node=size.runs[0].gpus_per_node,
        against=baseline,
        efficiency=efficiency,
        lost=dict(lost),
        shares=shares(size.parts_s),
        largest=largest if lost[largest] >= WORTH_SAYING else None,
        straggler=common_straggler(size.runs),
    )


def lose_by_size(runs: Sequence[MeasuredRun], baseline_runs: Sequence[MeasuredRun]) -> list[Losses]:
    """Return what each size of a group lost, with advice; `runs` are its own, smallest first, and
    those of its baseline may be lent by another group."""
    sizes: dict[tuple[int, int], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if can_divide(run.figures):
            sizes[run.figures.nodes, run.figures.gpus_per_node].append(run)
    whole = [run.figures for run in baseline_runs if can_divide(run.figures)]
    baseline = size_of(whole, num_gpus(whole[0])) if whole else None
    return [_advised(theirs, baseline) for theirs in sizes.values()]


def _advised(runs: Sequence[MeasuredRun], baseline: Size | None) -> Losses:
    size = size_of([run.figures for run in runs], num_gpus(runs[0].figures))
    return with_advice(alone(size) if baseline is None else against(size, baseline), runs)


def with_advice(losses: Losses, runs: Sequence[MeasuredRun]) -> Losses:
    """Add what would be worth most to change; `runs` are those of the size."""
    case = Case(
        job=runs[0].conditions,
        losses=losses,
        runs=[run.figures for run in runs],
        cpus_per_rank=runs[0].cpus_per_rank,
    )
    return msgspec.structs.replace(losses, advice=advise(case))
