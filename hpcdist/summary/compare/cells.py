"""Cells: what runs that are alike came to, beside the cell of a baseline; and why a cell is not as
many times as fast as it has GPUs: its time against the ideal, by part.

Sizes of a job, variants of a comparison and clusters are all compared so. Ideal is as many times
the speed of the baseline as there are times the GPUs, over all the time that counts: steps,
checkpoints and what restarts cost. For the same samples per GPU the baseline needs the share of its
time that is the efficiency; what each part takes longer than that part did there is lost. The parts
make up the time, so the losses make up the whole loss. Pure.

Where there is no baseline, nothing says what is ideal: then computing is, and all else counts as
lost, which is the most that could be won.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from hpcdist.base.statistics import Measure, Ratio, differs, mean, measure, ratios
from hpcdist.summary.compare.advice import Case, advise
from hpcdist.summary.figures import shares as part
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Cell, RunFigures, Straggler

WORTH_SAYING = 0.02
"""Smaller losses are within the noise of most machines."""


def size_text(sized: RunFigures | Cell) -> str:
    """Return nodes x ranks, or GPUs, of each: `2 x 4`."""
    return f"{sized.nodes} x {sized.gpus_per_node}"


def measured_rate(runs: Sequence[RunFigures]) -> Measure:
    """Return the samples/s of runs of one size, some of which have them."""
    return over_runs([run.samples_per_s for run in runs if run.samples_per_s])


def over_runs(measures: Sequence[Measure]) -> Measure:
    """Return what repeats came to: over runs, or of one run over what it measured several times."""
    return measure([one.mean for one in measures]) if len(measures) > 1 else measures[0]


def contrast(
    cells: Sequence[Sequence[MeasuredRun]],
    baseline: Sequence[MeasuredRun],
    *,
    counts: Callable[[MeasuredRun], bool] = bool,
    pooled: bool = False,
) -> list[Cell]:
    """Return what the runs of each cell came to, against the runs of the baseline, if any; the
    ratios are judged together. Only runs that `counts` accepts are measured; `pooled`: all cells
    are taken to spread alike."""
    counted = [[run for run in runs if counts(run)] for runs in cells]
    ids = {run.figures.run for run in baseline}
    made = []
    for runs, own in zip(cells, counted, strict=True):
        is_baseline = bool(own) and ids.issuperset(run.figures.run for run in own)
        made.append(_measure(runs, own, is_baseline=is_baseline))
    if baseline:
        theirs = measured_rate([run.figures for run in baseline])
        rates = [cell.samples_per_s for cell in made if not cell.is_baseline]
        judged = iter(ratios([(rate, theirs) for rate in rates if rate], pooled=pooled))
        num_gpus = _mean_gpus([run.figures for run in baseline])
        made = [
            _against(cell, Ratio(mean=1.0) if cell.is_baseline else next(judged), num_gpus)
            if cell.samples_per_s
            else cell
            for cell in made
        ]
    return [_divide(cell, own, baseline) for cell, own in zip(made, counted, strict=True)]


def _measure(
    runs: Sequence[MeasuredRun], counted: Sequence[MeasuredRun], *, is_baseline: bool
) -> Cell:
    first, figures = runs[0].figures, [run.figures for run in counted]
    times = [run.step_time_s.mean for run in figures if run.step_time_s]
    whys = (run.unfit or run.set_aside for run in runs)
    prices = [run.cost.price for run in figures if run.cost and run.cost.price is not None]
    return Cell(
        job=first.job,
        workload=runs[0].conditions.get("workload"),
        runs=[run.figures.run for run in runs],
        num_measured=len(counted),
        why_none=None if counted else next(filter(None, whys), None),
        nodes=first.nodes,
        gpus_per_node=first.gpus_per_node,
        world_size=first.world_size,
        mean_gpus=_mean_gpus(figures) if any(run.mean_gpus for run in figures) else None,
        num_cpus=first.num_cpus,
        ran_with=first.ran_with,
        disturbed=next(filter(None, (run.disturbed for run in figures)), None),
        strategy=runs[0].conditions.get("strategy"),
        samples_per_step=first.samples_per_step,
        samples_per_s=measured_rate(figures) if figures else None,
        step_time_s=mean(times) if times else None,
        price=mean(prices) if figures and len(prices) == len(figures) else None,
        is_baseline=is_baseline,
        computing_has_communication=any(run.computing_has_communication for run in figures),
        straggler=common_straggler(counted),
    )


def _mean_gpus(runs: Sequence[RunFigures]) -> float:
    """Return the GPUs that runs of one size had as they stepped."""
    return mean(run.mean_gpus or run.num_gpus for run in runs)


def _against(cell: Cell, speedup: Ratio, num_gpus: float) -> Cell:
    """Hold a cell against a baseline with so many GPUs."""
    ideal = (cell.mean_gpus or cell.num_gpus) / num_gpus
    return msgspec.structs.replace(
        cell,
        speedup=speedup,
        ideal=ideal,
        efficiency=None if cell.is_without_its_gpus else speedup.times(1 / ideal),
        differs_from_baseline=differs(speedup),
    )


def _divide(cell: Cell, counted: Sequence[MeasuredRun], baseline: Sequence[MeasuredRun]) -> Cell:
    """Divide what the runs of a cell lost against the ideal, which is the baseline, where all of
    that is known; else count all that is not computing as lost. The repeats are averaged."""
    runs, ideals = ([run for run in side if _has_parts(run)] for side in (counted, baseline))
    if not runs or (ideals and cell.is_without_its_gpus):
        return cell
    parts_s = _mean_parts_s(runs)
    if ideals:
        overall = _overall_rate(runs) / _overall_rate(ideals) / cell.ideal
        lost = part.lost_shares(parts_s, _mean_parts_s(ideals), overall)
    else:
        if cell.world_size == 1:  # it waits for nobody: that is its wrapper's own work
            parts_s[part.FIXED] += parts_s[part.COMMUNICATION]
            parts_s[part.COMMUNICATION] = 0.0
        lost = part.shares(parts_s) | {part.COMPUTING: 0.0, part.UNDIVIDED: 0.0}
        overall = 1 - sum(lost.values())
    largest = max(part.SHARES, key=lambda name: lost[name])
    cell = msgspec.structs.replace(
        cell,
        against=[run.figures.run for run in ideals],
        shares=part.shares(parts_s),
        lost=lost,
        overall=overall,
        largest=largest if lost[largest] >= WORTH_SAYING else None,
    )
    case = Case(runs[0].conditions, cell, [run.figures for run in runs], runs[0].cpus_per_rank)
    return msgspec.structs.replace(cell, advice=advise(case))


def _has_parts(run: MeasuredRun) -> bool:
    """Return whether there are steps that took time, and samples in them."""
    rate, parts_s = run.figures.samples_per_s, run.figures.parts_s
    return bool(rate and rate.mean > 0 and parts_s and sum(parts_s.values()) > 0)


def _mean_parts_s(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Return the mean seconds per step by share; all runs have parts."""
    parts_of = [run.figures.parts_s or {} for run in runs]
    return {name: mean(parts[name] for parts in parts_of) for name in part.SHARES}


def _overall_rate(runs: Sequence[MeasuredRun]) -> float:
    """Return the mean samples per second over steps, checkpoints and what restarts cost."""
    return mean(
        run.samples_per_s.mean * run.step_time_s.mean / sum(run.parts_s.values())
        for run in (each.figures for each in runs)
        if run.samples_per_s and run.step_time_s and run.parts_s
    )


def common_straggler(runs: Sequence[MeasuredRun]) -> Straggler | None:
    """Return who held the others up in every run; on other hosts each time, it is the rank's own
    work, and on one host under other numbers, the host's."""
    stragglers = [run.figures.straggler for run in runs if run.figures.straggler]
    if not runs or len(stragglers) < len(runs):
        return None
    first, hosts = stragglers[0], {straggler.host for straggler in stragglers}
    if len({(each.rank, each.node, *each.others) for each in stragglers}) != 1:
        is_of_one_host = len(hosts) == 1 and None not in hosts
        if not is_of_one_host or any(each.others for each in stragglers):
            return None
        if any((run.figures.num_hosts or 1) < 2 for run in runs):
            return None
        first = msgspec.structs.replace(first, rank=None, node=None)
    return msgspec.structs.replace(
        first,
        host=first.host if len(hosts) == 1 else None,
        longer_s=mean(straggler.longer_s for straggler in stragglers),
        slowest_in=sum(straggler.slowest_in for straggler in stragglers),
        stretches=sum(straggler.stretches for straggler in stragglers),
    )
