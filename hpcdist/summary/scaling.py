"""Which runs can be compared, and how much faster the larger ones are: pure.

Two runs are alike when their jobs differ only in resources. Everything else in the job, the torch
version, the scheduler and the kind of device must be equal, except what changes no step:
`NOT_COMPARED` lists it. Only done runs enter.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpcdist.summary.group_losses import losses_by_run, with_losses
from hpcdist.summary.metrics import MeasuredRun
from hpcdist.summary.values import Comparison, Group, RunSummary
from hpcdist.summary.variants import compare_variants, with_speedups

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
        job_groups = _main_group_first(_alike([run for run in runs if _why_left_out(run) is None]))
        groups += [with_losses(_group(group), group) for group in job_groups]
        for group in job_groups:
            reason = _why_unlike(group, job_groups[0]) if group is not job_groups[0] else None
            compared.update(zip(map(id, group), _with_speedup(group, reason), strict=True))
        for run in runs:
            if reason := _why_left_out(run):
                summary = msgspec.structs.replace(run.summary, not_compared_because=reason)
                compared[id(run)] = summary
    summaries = losses_by_run([compared[id(run)] for run in measured], groups)
    return summaries, groups, comparisons


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


def _alike(runs: Iterable[MeasuredRun]) -> list[list[MeasuredRun]]:
    groups: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(compared_conditions(run.conditions), sort_keys=True)].append(run)
    return [sorted(group, key=_size) for group in groups.values()]


def compared_conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Those conditions of a run that must be equal."""
    return {key: value for key, value in conditions.items() if not _may_differ(key)}


@functools.cache  # thousands of runs have the same keys
def _may_differ(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in NOT_COMPARED)


def _size(run: MeasuredRun) -> tuple[int, int]:
    return _num_gpus(run), run.summary.nodes


def _num_gpus(run: MeasuredRun) -> int:
    """Ranks, but with data_parallel, whose one rank drives several GPUs."""
    return run.summary.nodes * run.summary.gpus_per_node


def _main_group_first(groups: Sequence[list[MeasuredRun]]) -> list[list[MeasuredRun]]:
    """The group with most sizes, then with most runs, leads: the others are told against it."""
    return sorted(groups, key=lambda group: (-len({_size(run) for run in group}), -len(group)))


def _group(group: Sequence[MeasuredRun]) -> Group:
    return Group(
        job=group[0].summary.job,
        runs=[run.summary.run for run in group],
        baseline=[run.summary.run for run in _baseline(group)],
    )


def _baseline(group: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Runs of the smallest size; none where there is nothing to compare them with."""
    smallest = [run for run in group if _size(run) == _size(group[0])]
    return smallest if len(smallest) < len(group) else []


def _with_speedup(group: Sequence[MeasuredRun], reason: str | None) -> list[RunSummary]:
    baseline = _baseline(group)
    if not baseline:
        reason = reason or "there is no done run like it of another size"
        return [msgspec.structs.replace(run.summary, not_compared_because=reason) for run in group]
    baseline_rate = sum(_rate(run) for run in baseline) / len(baseline)
    baseline_size = _num_gpus(baseline[0])
    names = [run.summary.run for run in baseline]
    summaries = []
    for run in group:
        speedup = _rate(run) / baseline_rate
        summaries.append(
            msgspec.structs.replace(
                run.summary,
                speedup=speedup,
                efficiency=speedup * baseline_size / _num_gpus(run),
                compared_with=names,
                not_compared_because=reason,
            )
        )
    return summaries


def _rate(run: MeasuredRun) -> float:
    assert run.summary.samples_per_s is not None
    return run.summary.samples_per_s.mean


def _why_unlike(group: Sequence[MeasuredRun], main: Sequence[MeasuredRun]) -> str:
    """`train.batch_size is 32, but 64 in ddp-...`."""
    other = main[0].summary.run
    differences = _differences(group[0].conditions, main[0].conditions)
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    return f"{shown} in {other}" + (f" (and {more} more)" if more > 0 else "")


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    mine, theirs = compared_conditions(mine), compared_conditions(theirs)
    return [
        f"{key} is {_shown(mine.get(key))}, but {_shown(theirs.get(key))}"
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
