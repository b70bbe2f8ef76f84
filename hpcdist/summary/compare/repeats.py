"""Repeats: how sure the mean of runs that are alike in all, size included, is: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from hpcdist.base.statistics import differs, measure, ratio
from hpcdist.summary.values import Group, Repeats, RunSummary


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
