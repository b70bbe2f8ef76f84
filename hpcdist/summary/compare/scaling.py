"""Which runs can be compared, and how much faster the larger ones are: pure.

Two runs are alike when their jobs differ only in resources. Everything else in the job, the torch
version, the scheduler and the kind of device must be equal, except what changes no step:
`NOT_COMPARED` lists it. Runs for which no other size is alike are compared with those whose whole
batch is the same (`batches`). Only done runs enter.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hpcdist.summary.compare.batches import (
    scaling_of,
    size,
    smallest,
    strong_groups,
    text_of_conditions,
)
from hpcdist.summary.compare.group_losses import losses_by_run, with_losses
from hpcdist.summary.compare.sizes import num_gpus
from hpcdist.summary.compare.variants import compare_variants, with_speedups
from hpcdist.summary.figures.metrics import MeasuredRun
from hpcdist.summary.values import Comparison, Group, RunSummary

NOT_COMPARED = (
    "name",  # the runs of one job are looked at together anyway
    "description",
    "resources",
    "strategy",  # one rank needs no strategy; what a strategy costs is part of the speed-up
    "launch",  # restarts and time limits; the device and backend that ran are compared
    "record",
    "train.seed",  # repeats
    "data.download",
    "checkpoint.keep",
    "checkpoint.resume",
    "python_path",  # of a function: names the snapshot, if there is one
    "modules",
)
"""Keys, and sections, of a job that may differ between runs that are compared."""

_SHOWN_DIFFERENCES = 3


def compare(
    measured: Sequence[MeasuredRun],
) -> tuple[list[RunSummary], list[Group], list[Comparison]]:
    """The summaries in the order given, with speed-up and efficiency, the groups of runs that are
    alike, and the comparisons, whose runs are in no group."""
    jobs: dict[str, list[MeasuredRun]] = defaultdict(list)
    compared: dict[int, RunSummary] = {}
    comparisons = _comparisons(measured, compared)
    for run in measured:
        if run.comparison is None:
            jobs[run.summary.job].append(run)
    groups: list[Group] = []
    for runs in jobs.values():
        alike = _main_group_first(_alike([run for run in runs if _why_left_out(run) is None]))
        groups += [with_losses(_group(each), each.runs, each.baseline) for each in alike]
        for each in alike:
            reason = _why_unlike(each, alike[0]) if each is not alike[0] else None
            compared.update(zip(map(id, each.runs), _with_speedup(each, reason), strict=True))
        for run in runs:
            if reason := _why_left_out(run):
                summary = msgspec.structs.replace(run.summary, not_compared_because=reason)
                compared[id(run)] = summary
    summaries = losses_by_run([compared[id(run)] for run in measured], groups)
    return summaries, groups, comparisons


class _Alike(NamedTuple):
    """Runs that can be compared with each other, smallest first."""

    runs: list[MeasuredRun]
    baseline: list[MeasuredRun]
    """Those of the smallest size, of this group or lent by another; empty where there is nothing
    to compare with."""


def groups_within(
    measured: Sequence[MeasuredRun], comparisons: Sequence[Comparison]
) -> list[Group]:
    """Of the variants of each comparison, those that differ only in size from the first one."""
    by_id: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in measured:
        if run.comparison is not None and _why_left_out(run) is None:
            by_id[run.comparison].append(run)
    return [
        _group(alike)
        for comparison in comparisons
        for alike in _alike(by_id[comparison.id])
        if _is_of_sizes(alike, comparison.baseline)
    ]


def _is_of_sizes(alike: _Alike, baseline: str) -> bool:
    """Each variant is another size; else they are compared for something else."""
    variants = {(run.variant, size(run)) for run in (*alike.baseline, *alike.runs)}
    return {run.variant for run in alike.baseline} == {baseline} and (
        len(variants) == len({place for _, place in variants})
    )


def _comparisons(
    measured: Sequence[MeasuredRun], compared: dict[int, RunSummary]
) -> list[Comparison]:
    """The comparisons; the summaries of their runs are put into `compared`."""
    by_id: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in measured:
        if run.comparison is not None:
            by_id[run.comparison].append(run)
    found = []
    for runs in by_id.values():
        found.append(compare_variants(runs))
        compared.update(zip(map(id, runs), with_speedups(runs, found[-1]), strict=True))
    return found


def _why_left_out(run: MeasuredRun) -> str | None:
    if run.summary.state != "done":
        return f"its state is {run.summary.state or 'not known'}, and only done runs are compared"
    if run.summary.samples_per_s is None:
        return run.missing
    return "its samples/s are 0" if run.summary.samples_per_s.mean <= 0 else None


def _alike(runs: Iterable[MeasuredRun]) -> list[_Alike]:
    text_of = text_of_conditions(lambda run: compared_conditions(run.conditions))
    groups: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[text_of(run)].append(run)
    found = [alike for group in groups.values() for alike in _by_strategy(group)]
    several = [group for group in found if group.baseline]
    singles = [group for group in found if not group.baseline]
    return several + _joined(singles, several)


def _by_strategy(group: Sequence[MeasuredRun]) -> list[_Alike]:
    """A group for each strategy, as two of one size are no repeats of each other; all of them begin
    with the runs on one GPU, which needs none."""
    alone = [run for run in group if num_gpus(run.summary) == 1]
    strategies: dict[Any, list[MeasuredRun]] = defaultdict(list)
    for run in group:
        if num_gpus(run.summary) > 1:
            strategies[run.conditions.get("strategy")].append(run)
    if len(strategies) < 2:
        return [_Alike(sorted(group, key=size), smallest(group))]
    main, *others = sorted(
        strategies.values(), key=lambda runs: (-len({size(run) for run in runs}), -len(runs))
    )
    return [
        _Alike(sorted([*alone, *main], key=size), smallest([*alone, *main])),
        *(_Alike(sorted(runs, key=size), alone or smallest(runs)) for runs in others),
    ]


def _joined(singles: Sequence[_Alike], several: Sequence[_Alike]) -> list[_Alike]:
    """Groups of one size each; those of one whole batch become one."""
    strong = strong_groups(
        [group.runs for group in singles],
        [group.baseline for group in several],
        lambda run: compared_conditions(run.conditions),
    )
    joined = [_Alike(sorted(runs, key=size), baseline) for runs, baseline in strong if baseline]
    taken = {id(run) for group in joined for run in group.runs}
    return joined + [group for group in singles if id(group.runs[0]) not in taken]


def compared_conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Those conditions of a run that must be equal."""
    return {key: value for key, value in conditions.items() if not _may_differ(key)}


@functools.cache  # thousands of runs have the same keys
def _may_differ(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in NOT_COMPARED)


def _main_group_first(groups: Sequence[_Alike]) -> list[_Alike]:
    """The group with most sizes, then with most runs, leads: the others are told against it."""

    def importance(group: _Alike) -> tuple[int, int]:
        return -len({size(run) for run in group.runs}), -len(group.runs)

    return sorted(groups, key=importance)


def _group(alike: _Alike) -> Group:
    return Group(
        job=alike.runs[0].summary.job,
        runs=[run.summary.run for run in alike.runs],
        baseline=[run.summary.run for run in alike.baseline],
        scaling=scaling_of([*alike.baseline, *alike.runs]) if alike.baseline else None,
        strategy=alike.runs[-1].conditions.get("strategy"),
    )


def _with_speedup(alike: _Alike, reason: str | None) -> list[RunSummary]:
    group, baseline = alike
    if not baseline:
        reason = reason or "there is no done run like it of another size"
        return [msgspec.structs.replace(run.summary, not_compared_because=reason) for run in group]
    baseline_rate = sum(_rate(run) for run in baseline) / len(baseline)
    baseline_size = num_gpus(baseline[0].summary)
    names = [run.summary.run for run in baseline]
    summaries = []
    for run in group:
        speedup = _rate(run) / baseline_rate
        summaries.append(
            msgspec.structs.replace(
                run.summary,
                speedup=speedup,
                efficiency=speedup * baseline_size / num_gpus(run.summary),
                compared_with=names,
                not_compared_because=reason,
            )
        )
    return summaries


def _rate(run: MeasuredRun) -> float:
    assert run.summary.samples_per_s is not None
    return run.summary.samples_per_s.mean


def _why_unlike(group: _Alike, main: _Alike) -> str | None:
    """`train.batch_size is 32, but 64 in ddp-...`."""
    if any(run is one for run in group.baseline for one in main.runs):
        return None  # it is compared with the same
    other = main.runs[0].summary.run
    differences = _differences(group.runs[0].conditions, main.runs[0].conditions)
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    return f"{shown} in {other}" + (f" (and {more} more)" if more > 0 else "")


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    strategies = mine.get("strategy"), theirs.get("strategy")
    mine, theirs = compared_conditions(mine), compared_conditions(theirs)
    if mine == theirs:
        mine, theirs = ({"strategy": one} for one in strategies)
    return [
        f"{key} is {_shown(mine.get(key))}, but {_shown(theirs.get(key))}"
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
