"""Group the runs that can be compared, and compute how much faster the larger ones are: pure.

Two runs are alike when they differ only in nodes and GPUs. Everything else in the job, and all that
`RanWith` lists, must be equal, except what changes no step: `NOT_COMPARED` lists it. What is not
known of a run is taken as that of the others, where these have one value. Only done runs enter.

Weak scaling: more GPUs, and each takes as many samples per step as before, so that a step gets
larger. Strong scaling: more GPUs share a step of as many samples as before, so that each takes
fewer. A job's `train.batch_size` is per GPU, so runs that differ only in resources scale weakly;
runs whose batch_size x GPUs x accumulate is equal scale strongly, though their settings differ.
Runs for which no other size is alike are compared with those whose whole batch is the same.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hpcdist.base.statistics import mean
from hpcdist.summary.compare.cells import Size, contrast, num_gpus, size
from hpcdist.summary.compare.forecast import make_forecast
from hpcdist.summary.compare.variants import Speedup, compare_variants
from hpcdist.summary.figures.rank import digest_of
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Cell, Comparison, Group, RanWith, Scaling

NOT_COMPARED = (
    "name",  # the runs of one job are looked at together anyway
    "description",
    *("resources.nodes", "resources.gpus", "resources.mem_gb", "resources.time_limit_min"),
    "strategy",  # one rank needs no strategy; what a strategy costs is part of the speed-up
    "launch",  # restarts and time limits; the device and backend that ran are compared
    *("record.enabled", "record.window_s", "record.usage_s", "record.track", "record.goal"),
    *("container.runtime", "container.mounts", "container.python", "container.options"),
    "train.seed",  # repeats
    "data.download",
    "checkpoint.keep",
    "checkpoint.resume",
    "python_path",  # of a function: names the snapshot, if there is one
    "modules",
)
"""Keys, and sections, of a job that may differ between runs that are compared."""

_BATCH_KEYS = ("train.batch_size", "train.accumulate")
_SAME_BATCH = 0.1
"""The last step of an epoch may be smaller: measured batches that differ by less are equal."""
_SHOWN_DIFFERENCES = 3


class Compared(NamedTuple):
    """The results of comparing runs with each other."""

    speedups: list[Speedup]
    """Speed-up of each run, in their order."""
    groups: list[Group]
    """Runs that are alike, but those of comparisons."""
    comparisons: list[Comparison]


def compare_runs(measured: Sequence[MeasuredRun]) -> Compared:
    """Sort runs into groups and comparisons, and compare those within each."""
    jobs: dict[str, list[MeasuredRun]] = defaultdict(list)
    by_comparison: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in measured:
        if run.figures.comparison is None:
            jobs[run.figures.job].append(run)
        else:
            by_comparison[run.figures.comparison].append(run)
    speedups: dict[int, Speedup] = {}
    compared = Compared([], [], [])
    for runs in by_comparison.values():
        comparison, own = compare_variants(runs)
        speedups.update(zip(map(id, runs), own, strict=True))
        for each in _alike(runs):
            if _is_of_sizes(each, comparison.baseline):
                largest = _group(each).cells[-1]
                variants = [
                    msgspec.structs.replace(cell, forecast=largest.forecast)
                    if largest.runs[0] in cell.runs
                    else cell
                    for cell in comparison.variants
                ]
                comparison = msgspec.structs.replace(comparison, variants=variants)
        compared.comparisons.append(comparison)
    for runs in jobs.values():
        alike = sorted(_alike(runs), key=lambda group: _importance(group.runs))
        for each in alike:  # the first is what others are told by
            compared.groups.append(_group(each))
            reason = _why_unlike(each, alike[0]) if each is not alike[0] else None
            speedups.update(zip(map(id, each.runs), _speedups(each, reason), strict=True))
        for run in runs:
            if reason := _why_left_out(run):
                speedups[id(run)] = Speedup(not_compared_because=reason)
    return compared._replace(speedups=[speedups[id(run)] for run in measured])


class _Alike(NamedTuple):
    """Runs that can be compared with each other, smallest first."""

    runs: list[MeasuredRun]
    baseline: list[MeasuredRun]
    """Runs of the smallest size, of this group or lent by another; empty where there is nothing
    to compare with."""


def _is_of_sizes(alike: _Alike, baseline: str) -> bool:
    """Each variant is another size; else they are compared for something else."""
    variants = {(run.figures.variant, _size(run)) for run in (*alike.baseline, *alike.runs)}
    has_baseline = {run.figures.variant for run in alike.baseline} == {baseline}
    return has_baseline and len(variants) == len({size for _, size in variants})


def _why_left_out(run: MeasuredRun) -> str | None:
    if run.figures.state != "done":
        return f"its state is {run.figures.state or 'not known'}, and only done runs are compared"
    if run.unfit is not None:
        return run.unfit
    if run.figures.samples_per_s is None:
        return run.missing
    return "its samples/s are 0" if run.figures.samples_per_s.mean <= 0 else None


def _alike(runs: Sequence[MeasuredRun]) -> list[_Alike]:
    texts = _texts(runs)
    by_text: dict[str, list[MeasuredRun]] = defaultdict(list)
    set_aside = []
    for run in runs:
        if _why_left_out(run) is not None:
            continue
        if run.set_aside is not None:  # where its own time went is known all the same
            set_aside.append(_Alike([run], []))
        else:
            by_text[texts[id(run.conditions)]].append(run)
    groups = [alike for group in by_text.values() for alike in _by_strategy(group)]
    several = [group for group in groups if group.baseline]
    singles = _joined([group for group in groups if not group.baseline], several)
    return several + singles + set_aside


def _by_strategy(group: Sequence[MeasuredRun]) -> list[_Alike]:
    """Make a group for each strategy, as two of one size are no repeats of each other; all of them
    begin with the runs on one GPU, which needs none."""
    alone = [run for run in group if num_gpus(run.figures) == 1]
    strategies: dict[Any, list[MeasuredRun]] = defaultdict(list)
    for run in group:
        if num_gpus(run.figures) > 1:
            strategies[run.conditions.get("strategy")].append(run)
    if len(strategies) < 2:
        return [_Alike(sorted(group, key=_size), _smallest(group))]
    main, *others = sorted(strategies.values(), key=_importance)
    return [
        _Alike(sorted([*alone, *main], key=_size), _smallest([*alone, *main])),
        *(_Alike(sorted(runs, key=_size), alone or _smallest(runs)) for runs in others),
    ]


def _joined(singles: Sequence[_Alike], several: Sequence[_Alike]) -> list[_Alike]:
    """Join groups of one size each: those of one whole batch become one.

    It is compared with its smallest runs, which may be the baseline of another group: one smallest
    size often begins a weak and a strong line.
    """
    alone = [run for group in singles for run in group.runs]
    lenders = [run for group in several for run in group.baseline]
    texts = _texts([*alone, *lenders], but=_BATCH_KEYS)

    def by_batch(runs: Sequence[MeasuredRun]) -> dict[tuple[object, ...], list[MeasuredRun]]:
        """Group what may be compared as strong scaling: without a batch, a run is like no other."""
        groups: dict[tuple[object, ...], list[MeasuredRun]] = defaultdict(list)
        for run in runs:
            has_batch = run.conditions.get("train.batch_size") is not None
            batch = _batch(run) if has_batch else run.figures.run
            groups[texts[id(run.conditions)], batch].append(run)
        return groups

    lent = by_batch(lenders)
    joined = []
    for key, runs in by_batch(alone).items():
        if baseline := _smallest([*runs, *lent[key]]):
            joined.append(_Alike(sorted(runs, key=_size), baseline))
    taken = {id(run) for group in joined for run in group.runs}
    return joined + [group for group in singles if id(group.runs[0]) not in taken]


def _compared(conditions: Mapping[str, Any], *, but: Sequence[str] = ()) -> dict[str, Any]:
    """Return the conditions of a run that must be equal."""
    return {
        key: value for key, value in conditions.items() if key not in but and not _may_differ(key)
    }


@functools.cache  # thousands of runs have the same keys
def _may_differ(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in NOT_COMPARED)


def _importance(group: Sequence[MeasuredRun]) -> tuple[int, int]:
    """Sorts the group with most sizes, then with most runs, to the front."""
    return -len({_size(run) for run in group}), -len(group)


def _group(alike: _Alike) -> Group:
    members = list({id(run): run for run in (*alike.baseline, *alike.runs)}.values())
    scaling: Scaling | None = None
    if alike.baseline:
        batches = [(num_gpus(run.figures), _batch(run)) for run in members]
        if _all_equal([whole for _, whole in batches]):
            scaling = "strong"
        elif _all_equal([whole and whole / gpus for gpus, whole in batches]):
            scaling = "weak"
    strategy = alike.runs[-1].conditions.get("strategy")
    sizes: dict[Size, list[MeasuredRun]] = defaultdict(list)
    for run in members:
        sizes[_size(run)].append(run)
    cells = [
        msgspec.structs.replace(cell, scaling=scaling, strategy=strategy)
        for cell in contrast([sizes[key] for key in sorted(sizes)], alike.baseline)
    ]
    if alike.baseline:
        forecast = make_forecast([run.figures for run in members], scaling)
        cells[-1] = msgspec.structs.replace(cells[-1], forecast=forecast)
    return Group(
        job=alike.runs[0].figures.job,
        runs=[run.figures.run for run in alike.runs],
        baseline=[run.figures.run for run in alike.baseline],
        scaling=scaling,
        strategy=strategy,
        cells=cells,
    )


def cells_by_run(compared: Compared) -> dict[str, Cell]:
    """Return, for each run, the cell that it is compared as one of."""
    variants = [cell for each in compared.comparisons for cell in each.variants]
    cells = {run: cell for cell in variants for run in cell.runs}
    for group in compared.groups:
        cells |= {run: cell for cell in group.cells for run in cell.runs if run in group.runs}
    return cells


def _speedups(alike: _Alike, reason: str | None) -> list[Speedup]:
    if not alike.baseline:
        reason = (
            alike.runs[0].set_aside or reason or "there is no finished run like it of another size"
        )
        return [Speedup(not_compared_because=reason)] * len(alike.runs)
    baseline_rate = mean(map(_rate, alike.baseline))
    baseline_size = num_gpus(alike.baseline[0].figures)
    names = [run.figures.run for run in alike.baseline]
    speedups = [_rate(run) / baseline_rate for run in alike.runs]
    return [
        Speedup(speedup, speedup * baseline_size / num_gpus(run.figures), names, reason)
        for run, speedup in zip(alike.runs, speedups, strict=True)
    ]


def _rate(run: MeasuredRun) -> float:
    assert run.figures.samples_per_s is not None
    return run.figures.samples_per_s.mean


def _why_unlike(group: _Alike, main: _Alike) -> str | None:
    """`train.batch_size is 32, but 64 in ddp-...`."""
    if any(run is other_run for run in group.baseline for other_run in main.runs):
        return None  # it is compared with the same
    mine, theirs = group.runs[0].conditions, main.runs[0].conditions
    strategies = mine.get("strategy"), theirs.get("strategy")
    mine, theirs = _compared(mine), _compared(theirs)
    if mine == theirs:
        mine, theirs = ({"strategy": strategy} for strategy in strategies)
    unlike = [
        key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)
    ]
    differences = []
    for key in unlike[:_SHOWN_DIFFERENCES]:
        own, other = (
            "unset" if side.get(key) is None else _setting_text(side[key])
            for side in (mine, theirs)
        )
        differences.append(f"{key} is {own}, but {other}")
    more = len(unlike) - _SHOWN_DIFFERENCES
    ending = f" (and {more} more)" if more > 0 else ""
    return f"{'; '.join(differences)} in {main.runs[0].figures.run}{ending}"


def _batch(run: MeasuredRun) -> float | None:
    """Return the samples per step over all GPUs: as the job says, or else as was measured."""
    size = run.conditions.get("train.batch_size")
    accumulate = run.conditions.get("train.accumulate") or 1
    if isinstance(size, int) and isinstance(accumulate, int):
        return size * accumulate * num_gpus(run.figures)
    return run.figures.samples_per_step


def _smallest(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs of the smallest size; none if all have the same size."""
    least = min(map(_size, runs))
    smallest = [run for run in runs if _size(run) == least]
    return smallest if len(smallest) < len(runs) else []


def _size(run: MeasuredRun) -> Size:
    return size(run.figures)


def _texts(runs: Sequence[MeasuredRun], *, but: Sequence[str] = ()) -> dict[int, str]:
    """Return equal texts for equal conditions, by the identity of these: of thousands of runs most
    share theirs."""
    shared = {id(run.conditions): run.conditions for run in runs}
    # What one run has and the other does not say is no difference.
    not_known = [
        key for key in _OF_MACHINES if len({own.get(key) for own in shared.values()} - {None}) < 2
    ]
    return {
        key: json.dumps(_compared(conditions, but=[*but, *not_known]), sort_keys=True)
        for key, conditions in shared.items()
    }


def _all_equal(values: Sequence[float | None]) -> bool:
    positive = [value for value in values if value]
    return len(positive) == len(values) > 0 and max(positive) <= (1 + _SAME_BATCH) * min(positive)


def differing_settings(
    runs: Sequence[MeasuredRun], groups: Sequence[Group]
) -> dict[str, dict[str, str]]:
    """Return, by run id, the values of the settings in which runs of a job differ so that they are
    not compared with each other; runs of comparisons are told by their variants."""
    jobs: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.figures.comparison is None:
            jobs[run.figures.job].append(run)
    places = {run: place for place, group in enumerate(groups) for run in group.runs}
    differing: dict[str, dict[str, str]] = {}
    for alike in jobs.values():
        shared = {id(run.conditions): run.conditions for run in alike}  # mostly one
        settings = {key: _settings(conditions) for key, conditions in shared.items()}
        if len({tuple(values.items()) for values in settings.values()}) > 1:
            keys = _keys_between_groups(alike, settings, places)
            for run in alike:
                own = settings[id(run.conditions)]
                differing[run.figures.run] = {key: own.get(key, "unset") for key in keys}
    return differing


def _settings(conditions: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that must be equal, as texts; the device and backend of a run that never
    began are not known."""
    known = (
        (key, value) for key, value in _compared(conditions).items() if value not in (None, "")
    )
    return {key: _setting_text(value) for key, value in sorted(known)}


def _setting_text(value: Any) -> str:
    """Return a value of a setting as people write it: arguments as a command line has them."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value) or "none"
    return str(value)


def _keys_between_groups(
    runs: Sequence[MeasuredRun],
    settings: Mapping[int, Mapping[str, str]],
    places: Mapping[str, int],
) -> list[str]:
    """Return the keys with other values in one group than in another; within a group, sizes may
    have batches of their own."""
    values: dict[object, dict[str, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    every = sorted({key for own in settings.values() for key in own})
    for run in runs:
        own = settings[id(run.conditions)]
        group = places.get(run.figures.run, tuple(own.items()))
        for key in every:
            values[group][key].add(own.get(key))
    first, *others = values.values()
    return [
        key
        for key in every
        if any(other[key] != first[key] for other in others)
        and not (key in _OF_MACHINES and _is_partly_known(key, settings))
    ]


def _is_partly_known(key: str, settings: Mapping[int, Mapping[str, str]]) -> bool:
    """Return whether all runs that have the key have the same value."""
    return len({own[key] for own in settings.values() if key in own}) < 2


_OF_MACHINES = RanWith.__struct_fields__

_FREE = (
    "code",  # a check against a baseline asks what a change of it brings
    "torch",
    "scheduler",
    "backend",
    "script",  # another checkout of it
    "module",
    "program",
    "data.root",
)
"""Conditions that may differ beyond those that may between runs of different sizes."""

_PLACE = ("device", "device_model", "cluster")


class Digests(NamedTuple):
    """Digests of the settings that distinguish runs, without resources."""

    configuration: str
    """Digest of all that must be equal."""
    settings: str
    """Digest of the same without the place, whose device is not known of a run that never began."""


def configurations(runs: Sequence[Mapping[str, Any]]) -> list[Digests]:
    """Return the digests of each run's conditions.

    Equal conditions are mostly one object, which is looked at once.
    """
    digests = {}
    for conditions in {id(conditions): conditions for conditions in runs}.values():
        settings = _digest({key: own for key, own in conditions.items() if key not in _PLACE})
        configuration = _digest(conditions) if conditions.get("device") else settings
        digests[id(conditions)] = Digests(configuration, settings)
    return [digests[id(conditions)] for conditions in runs]


def _digest(conditions: Mapping[str, Any]) -> str:
    fixed = _compared(conditions) | {"strategy": conditions.get("strategy")}
    return digest_of(
        {key: value for key, value in fixed.items() if key not in _FREE and value is not None}
    )
