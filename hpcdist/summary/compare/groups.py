"""Group the runs that can be compared, and compare the sizes, the variants and the clusters: pure.

Two runs are alike when they differ only in nodes and GPUs. Everything else in the job, and all that
`RanWith` lists, must be equal, except what changes no step: `NOT_COMPARED` lists it. What is not
known of a run is taken as that of the others, where these have one value. Only done runs enter.

Weak scaling: more GPUs, and each takes as many samples per step as before, so that a step gets
larger. Strong scaling: more GPUs share a step of as many samples as before, so that each takes
fewer. A job's `train.batch_size` is per GPU, so runs that differ only in resources scale weakly;
runs whose batch_size x GPUs x accumulate is equal scale strongly, though their settings differ.
Runs for which no other size is alike are compared with those whose whole batch is the same.

The variants of a comparison stand against its first variant. Runs of one job on several clusters
have equal settings and sizes; device, scheduler and version of torch may differ, which are what a
cluster has.
"""

from __future__ import annotations

import functools
import itertools
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hpcdist.base.statistics import mean
from hpcdist.summary.compare.cells import Size, contrast, size, why_unfit
from hpcdist.summary.compare.forecast import make_forecast
from hpcdist.summary.figures.rank import digest_of
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Cell, Group, RanWith, RunFigures, Scaling

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


class Beside(Struct, frozen=True):
    """A run beside those that it is compared with."""

    speedup: float | None = None
    """Against the mean of its baseline."""
    efficiency: float | None = None
    compared_with: list[str] = []
    not_compared_because: str | None = None
    differs_in: dict[str, str] = {}
    """Settings in which runs of its job differ so that they are not compared."""


class Compared(NamedTuple):
    """The results of comparing runs with each other."""

    runs: list[Beside]
    """One for each run, in their order."""
    sizes: list[Group]
    """Runs that are alike, but those of comparisons."""
    variants: list[Group]


def compare_runs(measured: Sequence[MeasuredRun]) -> Compared:
    """Sort runs into groups and comparisons, and compare those within each."""
    jobs: dict[str, list[MeasuredRun]] = defaultdict(list)
    comparisons: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in measured:
        if run.figures.comparison is None:
            jobs[run.figures.job].append(run)
        else:
            comparisons[run.figures.comparison].append(run)
    beside: dict[int, Beside] = {}
    sizes: list[Group] = []
    for runs in jobs.values():
        settings = _comparable(runs)
        alike = sorted(_alike(runs, settings), key=lambda each: _importance(each.runs))
        differs_in = _differing(runs, alike, settings)
        for run in runs:
            reason = why_left_out(run)
            beside[id(run)] = Beside(not_compared_because=reason, differs_in=differs_in[id(run)])
        for each in alike:  # the first is what others are told by
            sizes.append(_group(each))
            reason = None if each is alike[0] else _why_unlike(each, alike[0], settings)
            for run in each.runs:
                beside[id(run)] = _stand(run, each.baseline, reason, differs_in[id(run)])
    variants = []
    for runs in comparisons.values():
        group, own = _compare_variants(runs)
        variants.append(group)
        beside |= own
    return Compared([beside[id(run)] for run in measured], sizes, variants)


class _Alike(NamedTuple):
    """Runs that can be compared with each other, smallest first."""

    runs: list[MeasuredRun]
    baseline: list[MeasuredRun]
    """Runs of the smallest size, of this group or lent by another; empty where there is nothing
    to compare with."""

    @property
    def members(self) -> list[MeasuredRun]:
        return list({id(run): run for run in (*self.baseline, *self.runs)}.values())


def why_left_out(run: MeasuredRun) -> str | None:
    """Return why a run has no speed that could be compared."""
    own = run.figures
    if own.state != "done":
        return f"its state is {own.state or 'not known'}, and only done runs are compared"
    if run.unfit is not None:
        return run.unfit
    if own.samples_per_s is None:
        return run.missing
    return "its samples/s are 0" if own.samples_per_s.mean <= 0 else None


def _counts(run: MeasuredRun) -> bool:
    return why_left_out(run) is None and run.set_aside is None


def _stand(
    run: MeasuredRun,
    baseline: Sequence[MeasuredRun],
    reason: str | None,
    differs_in: dict[str, str],
) -> Beside:
    if not baseline:
        reason = run.set_aside or reason or "there is no finished run like it of another size"
        return Beside(not_compared_because=reason, differs_in=differs_in)
    own = run.figures
    speedup = _rate(run) / mean(map(_rate, baseline))
    share = baseline[0].figures.num_gpus / own.num_gpus
    lacks_gpus = own.world_size < own.num_gpus and own.num_cpus is not None
    efficiency = None if lacks_gpus else speedup * share
    ids = [each.figures.run for each in baseline]
    return Beside(speedup, efficiency, ids, reason, differs_in)


def _rate(run: MeasuredRun) -> float:
    assert run.figures.samples_per_s is not None
    return run.figures.samples_per_s.mean


def _alike(runs: Iterable[MeasuredRun], settings: Mapping[int, Mapping[str, str]]) -> list[_Alike]:
    by_settings: dict[Any, list[MeasuredRun]] = defaultdict(list)
    set_aside = []
    for run in runs:
        if why_left_out(run) is not None:
            continue
        if run.set_aside is not None:  # where its own time went is known all the same
            set_aside.append(_Alike([run], []))
        else:
            by_settings[tuple(settings[id(run.conditions)].items())].append(run)
    groups = [alike for group in by_settings.values() for alike in _by_strategy(group)]
    several = [group for group in groups if group.baseline]
    singles = [group for group in groups if not group.baseline]
    return several + _join(singles, several, settings) + set_aside


def _by_strategy(group: Sequence[MeasuredRun]) -> list[_Alike]:
    """Make a group for each strategy, as two of one size are no repeats of each other; all of them
    begin with the runs on one GPU, which needs none."""
    alone = [run for run in group if run.figures.num_gpus == 1]
    strategies: dict[Any, list[MeasuredRun]] = defaultdict(list)
    for run in group:
        if run.figures.num_gpus > 1:
            strategies[run.conditions.get("strategy")].append(run)
    if len(strategies) < 2:
        return [_Alike(sorted(group, key=_size), _smallest(group))]
    main, *others = sorted(strategies.values(), key=_importance)
    return [
        _Alike(sorted([*alone, *main], key=_size), _smallest([*alone, *main])),
        *(_Alike(sorted(runs, key=_size), alone or _smallest(runs)) for runs in others),
    ]


def _join(
    singles: Sequence[_Alike],
    several: Sequence[_Alike],
    settings: Mapping[int, Mapping[str, str]],
) -> list[_Alike]:
    """Join groups of one size each: those of one whole batch become one, compared as strong
    scaling.

    It is compared with its smallest runs, which may be the baseline of another group: one smallest
    size often begins a weak and a strong line.
    """

    def by_batch(groups: Iterable[Sequence[MeasuredRun]]) -> dict[Any, list[MeasuredRun]]:
        """Group runs by their settings and batch: without a batch, a run is like no other."""
        found: dict[Any, list[MeasuredRun]] = defaultdict(list)
        for run in itertools.chain.from_iterable(groups):
            own = settings[id(run.conditions)]
            others = tuple(item for item in own.items() if item[0] not in _BATCH_KEYS)
            has_batch = _BATCH_KEYS[0] in own
            found[others, _batch(run) if has_batch else run.figures.run].append(run)
        return found

    lent = by_batch(group.baseline for group in several)
    joined = []
    for key, runs in by_batch(group.runs for group in singles).items():
        if baseline := _smallest([*runs, *lent[key]]):
            joined.append(_Alike(sorted(runs, key=_size), baseline))
    taken = {id(run) for group in joined for run in group.runs}
    return joined + [group for group in singles if id(group.runs[0]) not in taken]


def _group(alike: _Alike) -> Group:
    members, strategy = alike.members, alike.runs[-1].conditions.get("strategy")
    scaling: Scaling | None = None
    if alike.baseline:
        batches = [(run.figures.num_gpus, _batch(run)) for run in members]
        if _are_equal([whole for _, whole in batches]):
            scaling = "strong"
        elif _are_equal([whole and whole / gpus for gpus, whole in batches]):
            scaling = "weak"
    sizes = [list(own) for _, own in itertools.groupby(sorted(members, key=_size), key=_size)]
    cells = [
        msgspec.structs.replace(cell, scaling=scaling, strategy=strategy)
        for cell in contrast(sizes, alike.baseline)
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
    return {
        run: cell
        for group in (*compared.variants, *compared.sizes)
        for cell in group.cells
        for run in cell.runs
        if run in group.runs
    }


def _why_unlike(
    group: _Alike, main: _Alike, settings: Mapping[int, Mapping[str, str]]
) -> str | None:
    """`train.batch_size is 32, but 64 in ddp-...`."""
    if any(run is other_run for run in group.baseline for other_run in main.runs):
        return None  # it is compared with the same
    first, other = group.runs[0], main.runs[0]
    mine, theirs = (settings[id(run.conditions)] for run in (first, other))
    if mine == theirs:
        mine, theirs = ({"strategy": str(run.conditions.get("strategy"))} for run in (first, other))
    unlike = [
        f"{key} is {mine.get(key, 'unset')}, but {theirs.get(key, 'unset')}"
        for key in sorted(mine.keys() | theirs.keys())
        if mine.get(key) != theirs.get(key)
    ]
    more = len(unlike) - _SHOWN_DIFFERENCES
    ending = f" (and {more} more)" if more > 0 else ""
    return f"{'; '.join(unlike[:_SHOWN_DIFFERENCES])} in {other.figures.run}{ending}"


def _batch(run: MeasuredRun) -> float | None:
    """Return the samples per step over all GPUs: as the job says, or else as was measured."""
    batch = run.conditions.get("train.batch_size")
    accumulate = run.conditions.get("train.accumulate") or 1
    if isinstance(batch, int) and isinstance(accumulate, int):
        return batch * accumulate * run.figures.num_gpus
    return run.figures.samples_per_step


def _are_equal(values: Sequence[float | None]) -> bool:
    positive = [value for value in values if value]
    return len(positive) == len(values) > 0 and max(positive) <= (1 + _SAME_BATCH) * min(positive)


def _smallest(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs of the smallest size; none if all have the same size."""
    least = min(map(_size, runs))
    smallest = [run for run in runs if _size(run) == least]
    return smallest if len(smallest) < len(runs) else []


def _size(run: MeasuredRun) -> Size:
    return size(run.figures)


def _importance(group: Sequence[MeasuredRun]) -> tuple[int, int]:
    """Sorts the group with most sizes, then with most runs, to the front."""
    return -len({_size(run) for run in group}), -len(group)


# Settings that must be equal.


@functools.cache  # thousands of runs have the same keys
def _may_differ(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in NOT_COMPARED)


def _comparable(runs: Iterable[MeasuredRun]) -> dict[int, dict[str, str]]:
    """Return the settings that must be equal, as texts, by the identity of a run's conditions: of
    thousands of runs most share theirs."""
    shared = {id(run.conditions): run.conditions for run in runs}
    # What one run has and the other does not say is no difference.
    free = {
        key
        for key in RanWith.__struct_fields__
        if len({own.get(key) for own in shared.values()} - {None}) < 2
    }
    return {
        key: {
            name: _setting_text(value)
            for name, value in sorted(own.items())
            if value not in (None, "") and name not in free and not _may_differ(name)
        }
        for key, own in shared.items()
    }


def _setting_text(value: Any) -> str:
    """Return a value of a setting as people write it: arguments as a command line has them."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value) or "none"
    return str(value)


def _differing(
    runs: Sequence[MeasuredRun],
    groups: Sequence[_Alike],
    settings: Mapping[int, Mapping[str, str]],
) -> dict[int, dict[str, str]]:
    """Return, by the identity of a run, its values of the settings with other values in one group
    than in another; within a group, sizes may have batches of their own."""
    places = {id(run): place for place, group in enumerate(groups) for run in group.runs}
    values: dict[Any, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    every = sorted({key for own in settings.values() for key in own})
    for run in runs:
        own = settings[id(run.conditions)]
        for key in every:
            values[places.get(id(run), tuple(own.items()))][key].add(own.get(key, "unset"))
    first, *others = values.values()
    keys = [key for key in every if any(other[key] != first[key] for other in others)]
    return {
        id(run): {key: settings[id(run.conditions)].get(key, "unset") for key in keys}
        for run in runs
    }


_FREE = (
    "code",  # a check against a baseline asks what a change of it brings
    *("torch", "scheduler", "backend", "data.root"),
    *("script", "module", "program"),  # another checkout of it
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
    return digest_of(
        {
            key: value
            for key, value in conditions.items()
            if value is not None
            and key not in _FREE
            and (key == "strategy" or not _may_differ(key))
        }
    )


# Variants and clusters.


def _compare_variants(runs: Sequence[MeasuredRun]) -> tuple[Group, dict[int, Beside]]:
    """Compare the variants of one comparison, in the order of `runs`, and each run with the mean of
    the first variant; only done runs are counted."""
    by_name: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        own = by_name.setdefault(run.figures.variant or "", [])
        own.append(_as_repeat(run, own[0]) if own else run)
    baseline = [run for run in next(iter(by_name.values())) if _counts(run)]
    # Variants that differ in their size alone have a forecast, as sizes do.
    forecasts = {}
    for alike in _alike(runs, _comparable(runs)):
        variants = {(run.figures.variant, _size(run)) for run in alike.members}
        firsts = {run.figures.variant or "" for run in alike.baseline}
        num_sizes = len({own for _, own in variants})
        if firsts == {next(iter(by_name))} and len(variants) == num_sizes:
            forecasts[alike.runs[-1].figures.run] = _group(alike).cells[-1].forecast
    cells = [
        msgspec.structs.replace(
            cell, name=name, forecast=next(filter(None, map(forecasts.get, cell.runs)), None)
        )
        for name, cell in zip(
            by_name, contrast([*by_name.values()], baseline, counts=_counts), strict=True
        )
    ]
    group = Group(
        job=runs[0].figures.job,
        name=runs[0].figures.comparison or "",
        runs=[run.figures.run for run in runs],
        baseline=[run.figures.run for run in baseline],
        cells=cells,
    )
    as_repeats = {run.figures.run: run for own in by_name.values() for run in own}
    beside = {}
    for run in runs:
        reason = why_left_out(run) or why_unfit(as_repeats[run.figures.run])
        if reason is None and not baseline:
            reason = "no run of the first variant is done"
        beside[id(run)] = (
            Beside(not_compared_because=reason) if reason else _stand(run, baseline, None, {})
        )
    return group, beside


def _as_repeat(run: MeasuredRun, first: MeasuredRun) -> MeasuredRun:
    """Return a run of a variant as one that does not count where it is no repeat of the first."""
    mine, theirs = (msgspec.structs.asdict(each.figures.ran_with) for each in (run, first))
    for key, value in mine.items():
        if value and theirs[key] and value != theirs[key]:
            why = f"{key} is {value}, but {theirs[key]} in {first.figures.run}"
            return msgspec.structs.replace(run, set_aside=why)
    return run


def place_of(run: RunFigures) -> str:
    """Return the name of the profile that a run went by, or else its scheduler's."""
    return run.cluster or run.scheduler or ""


def compare_places(measured: Sequence[MeasuredRun], settings: Sequence[str]) -> list[Group]:
    """Compare done runs that were the same but for their cluster; the first one is the baseline.
    `settings` are digests of their settings."""
    alike: dict[Any, dict[str, list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
    for run, digest in zip(measured, settings, strict=True):
        if why_left_out(run) is None:
            own = run.figures
            kind = (own.job, digest, own.ran_with.code, own.comparison, _size(run))
            alike[kind][place_of(own)].append(run)
    groups = []
    for places in alike.values():
        if len(places) > 1:
            first, *_ = places.values()
            cells = contrast([*places.values()], first)
            groups.append(
                Group(
                    job=cells[0].job,
                    runs=[run for cell in cells for run in cell.runs],
                    baseline=cells[0].runs,
                    cells=[
                        msgspec.structs.replace(cell, name=name)
                        for name, cell in zip(places, cells, strict=True)
                    ],
                )
            )
    return groups
