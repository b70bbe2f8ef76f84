"""The losses of every size of a group of runs, with advice from its job's settings: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from hpcdist.summary.compare import losses
from hpcdist.summary.compare.advice import Case, advise
from hpcdist.summary.compare.sizes import num_gpus
from hpcdist.summary.figures.metrics import MeasuredRun
from hpcdist.summary.values import Group, Losses, RunSummary


def with_losses(
    group: Group, runs: Sequence[MeasuredRun], baseline_runs: Sequence[MeasuredRun]
) -> Group:
    """The group with what each of its sizes lost; `runs` are its own, smallest first, and those of
    its baseline may be lent by another group."""
    by_size: dict[tuple[int, int], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if losses.can_divide(run.summary):
            by_size[run.summary.nodes, run.summary.gpus_per_node].append(run)
    sizes = {key: _size(found) for key, found in by_size.items()}
    whole = [run for run in baseline_runs if losses.can_divide(run.summary)]
    baseline = _size(whole) if whole else None
    return msgspec.structs.replace(
        group,
        losses=[
            with_advice(
                losses.alone(size) if baseline is None else losses.against(size, baseline),
                by_size[key],
            )
            for key, size in sizes.items()
        ],
    )


def losses_by_run(runs: Sequence[RunSummary], groups: Iterable[Group]) -> list[RunSummary]:
    """The runs with the losses of their size."""
    found = {run: one for group in groups for one in group.losses for run in one.runs}
    return [
        msgspec.structs.replace(run, losses=found[run.run]) if run.run in found else run
        for run in runs
    ]


def with_advice(found: Losses, runs: Sequence[MeasuredRun]) -> Losses:
    """The losses with what would be worth most to change; `runs` are those of the size."""
    case = Case(
        job=runs[0].conditions,
        losses=found,
        runs=[run.summary for run in runs],
        cpus_per_rank=runs[0].cpus_per_rank,
    )
    return msgspec.structs.replace(found, advice=advise(case))


def _size(runs: Sequence[MeasuredRun]) -> losses.Size:
    return losses.size_of([run.summary for run in runs], num_gpus(runs[0].summary))
