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
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hpcdist.base.statistics import mean
from hpcdist.summary.compare.cells import contrast
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
    *("record.enabled", "record.window_s", "record.usage_s", "record.track"),
    *("container.runtime", "container.mounts", "container.python", "container.options"),
    "train.seed",  # repeats
    "data.download",
    "checkpoint.keep",
    "checkpoint.resume",
    "python_path",  # of a function: names the snapshot, if there is one
    "modules",
)
"""Keys, and sections, of a job that may differ between runs that are compared."""

_by_size = attrgetter("figures.size")
NO_OTHER_SIZE = "there is no finished run like it of another size"
_BATCH_KEYS = ("train.batch_size", "train.accumulate")
_SAME_BATCH = 0.1
"""The last step of an epoch may be smaller: measured batches that differ by less are equal."""


class Beside(Struct, frozen=True, kw_only=True):
    """A run beside those that it is compared with; the fields are those of `RunSummary`."""

    cell: Cell | None = None
    speedup: float | None = None
    efficiency: float | None = None
    compared_with: list[str] = []
    not_compared_because: str | None = None
    differs_in: dict[str, str] = {}


def compare_runs(
    measured: Sequence[MeasuredRun],
) -> tuple[list[Beside], list[Group], list[Group]]:
    """Sort runs into groups and comparisons, and compare those within each. Return how each run
    stands, the groups of sizes, and those of variants."""
    jobs: dict[str, list[MeasuredRun]] = defaultdict(list)
    comparisons: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in measured:
        if run.figures.comparison is None:
            jobs[run.figures.job].append(run)
        else:
            comparisons[run.figures.comparison].append(run)
    beside: dict[int, Beside] = {}
    sizes, variants = [], []
    for runs in jobs.values():
        settings = _comparable(runs)
        lines = sorted(_lines(runs, settings), key=lambda line: _importance(line.runs))
        stands = {id(run): Beside(not_compared_because=why_left_out(run)) for run in runs}
        for line in lines:
            sizes.append(group := _group(line))
            stands |= _stand(line.runs, group, line.baseline, {})
        differs_in = _differing(runs, lines, settings)
        for key, own in stands.items():
            beside[key] = msgspec.structs.replace(own, differs_in=differs_in[key])
    for runs in comparisons.values():
        group, baseline, as_repeats = _compare_variants(runs)
        variants.append(group)
        reasons = {
            id(run): why_left_out(run) or as_repeat.unfit or as_repeat.set_aside
            for run, as_repeat in zip(runs, as_repeats, strict=True)
        }
        beside |= _stand(runs, group, baseline, reasons)
    return [beside[id(run)] for run in measured], sizes, variants


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


def _stand(
    runs: Sequence[MeasuredRun],
    group: Group,
    baseline: Sequence[MeasuredRun],
    reasons: Mapping[int, str | None],
) -> dict[int, Beside]:
    """Return how runs of a group stand against the mean of its baseline, but those with a reason
    not to; by their identity, as the reasons."""
    cells = {run: cell for cell in group.cells for run in cell.runs}
    rate = mean([each.figures.rate for each in baseline]) if baseline else None
    ids = [each.figures.run for each in baseline]
    stands = {}
    for run in runs:
        cell, reason = cells[run.figures.run], reasons.get(id(run))
        if reason or rate is None:
            why = run.set_aside or reason or NO_OTHER_SIZE
            stands[id(run)] = Beside(cell=cell, not_compared_because=why)
            continue
        speedup = run.figures.rate / rate
        stands[id(run)] = Beside(
            cell=cell,
            speedup=speedup,
            efficiency=None if cell.is_without_its_gpus else speedup / cell.ideal,
            compared_with=ids,
        )
    return stands


class _Line(NamedTuple):
    """Runs that can be compared with each other, smallest first."""

    runs: list[MeasuredRun]
    baseline: list[MeasuredRun]
    """Runs of the smallest size, of this line or lent by another; empty where there is nothing
    to compare with."""


def _lines(runs: Iterable[MeasuredRun], settings: Mapping[int, Mapping[str, str]]) -> list[_Line]:
    by_settings: dict[Any, list[MeasuredRun]] = defaultdict(list)
    keys = {conditions: tuple(own.items()) for conditions, own in settings.items()}
    fit = [run for run in runs if why_left_out(run) is None]
    for run in fit:
        if run.set_aside is None:
            by_settings[keys[id(run.conditions)]].append(run)
    lines = []
    for alike in by_settings.values():
        # A line for each strategy, as two of one size are no repeats of each other; all of them
        # begin with the runs on one GPU, which needs none.
        alone = [run for run in alike if run.figures.num_gpus == 1]
        strategies: dict[Any, list[MeasuredRun]] = defaultdict(list)
        for run in alike:
            if run.figures.num_gpus > 1:
                strategies[run.conditions.get("strategy")].append(run)
        for place, own in enumerate(sorted(strategies.values(), key=_importance) or [[]]):
            members = [*alone, *own]
            line = own if place else members
            lines.append(_Line(sorted(line, key=_by_size), _smallest(members)))
    # Where the own time of a run that is set aside went is known all the same.
    set_aside = [_Line([run], []) for run in fit if run.set_aside is not None]
    return _join(lines, settings) + set_aside


def _join(lines: Sequence[_Line], settings: Mapping[int, Mapping[str, str]]) -> list[_Line]:
    """Join lines of one size each: those of one whole batch become one, compared as strong
    scaling.

    It is compared with its smallest runs, which may be the baseline of another line: one smallest
    size often begins a weak and a strong line.
    """
    several = [line for line in lines if line.baseline]
    singles = [line for line in lines if not line.baseline]
    by_batch: tuple[dict[Any, list[MeasuredRun]], ...] = (defaultdict(list), defaultdict(list))
    sides = ([line.runs for line in singles], [line.baseline for line in several])
    for found, side in zip(by_batch, sides, strict=True):
        for run in itertools.chain.from_iterable(side):
            own = settings[id(run.conditions)]
            others = tuple(item for item in own.items() if item[0] not in _BATCH_KEYS)
            # Without a batch, a run is like no other.
            batch = _batch(run) if _BATCH_KEYS[0] in own else run.figures.run
            found[others, batch].append(run)
    alone, lent = by_batch
    joined = []
    for key, runs in alone.items():
        if baseline := _smallest([*runs, *lent[key]]):
            joined.append(_Line(sorted(runs, key=_by_size), baseline))
    taken = {id(run) for line in joined for run in line.runs}
    return several + joined + [line for line in singles if id(line.runs[0]) not in taken]


def _group(line: _Line) -> Group:
    members = list({id(run): run for run in (*line.baseline, *line.runs)}.values())
    strategy = line.runs[-1].conditions.get("strategy")
    scaling: Scaling | None = None
    if line.baseline:
        batches = [(run.figures.num_gpus, _batch(run)) for run in members]
        if _are_equal([whole for _, whole in batches]):
            scaling = "strong"
        elif _are_equal([whole and whole / gpus for gpus, whole in batches]):
            scaling = "weak"
    sizes = [list(own) for _, own in itertools.groupby(sorted(members, key=_by_size), key=_by_size)]
    cells = [
        msgspec.structs.replace(cell, scaling=scaling, strategy=strategy)
        for cell in contrast(sizes, line.baseline)
    ]
    if line.baseline:
        forecast = make_forecast([run.figures for run in members], scaling)
        cells[-1] = msgspec.structs.replace(cells[-1], forecast=forecast)
    return Group(
        job=line.runs[0].figures.job,
        runs=[run.figures.run for run in line.runs],
        baseline=[run.figures.run for run in line.baseline],
        cells=cells,
    )


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
    least = min(run.figures.size for run in runs)
    smallest = [run for run in runs if run.figures.size == least]
    return smallest if len(smallest) < len(runs) else []


def _importance(group: Sequence[MeasuredRun]) -> tuple[int, int]:
    """Sorts the group with most sizes, then with most runs, to the front."""
    return -len({run.figures.size for run in group}), -len(group)


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
            name: str(value)
            for name, value in sorted(own.items())
            if value not in (None, "") and name not in free and not _may_differ(name)
        }
        for key, own in shared.items()
    }


def _differing(
    runs: Sequence[MeasuredRun],
    lines: Sequence[_Line],
    settings: Mapping[int, Mapping[str, str]],
) -> dict[int, dict[str, str]]:
    """Return, by the identity of a run, its values of the settings with other values in one group
    than in another; within a group, sizes may have batches of their own."""
    places = {id(run): place for place, line in enumerate(lines) for run in line.runs}
    # Of thousands of runs most are alike, and looked at once.
    alike = {(places.get(id(run)), id(run.conditions)) for run in runs}
    values: dict[Any, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    every = sorted({key for own in settings.values() for key in own})
    for place, conditions in alike:
        own = settings[conditions]
        for key in every:
            group = tuple(own.items()) if place is None else place
            values[group][key].add(own.get(key, "unset"))
    groups = list(values.values())  # none where no setting is known of any run
    keys = [key for key in every if any(one[key] != groups[0][key] for one in groups[1:])]
    differing = {
        conditions: {key: own.get(key, "unset") for key in keys}
        for conditions, own in settings.items()
    }
    return {id(run): differing[id(run.conditions)] for run in runs}


_FREE = (
    "code",  # a check against a baseline asks what a change of it brings
    *("torch", "scheduler", "backend", "data.root"),
    *("script", "module", "program"),  # another checkout of it
)
"""Conditions that may differ beyond those that may between runs of different sizes."""
_PLACE = ("device", "device_model", "cluster")
"""Conditions of the place, which are told apart by `ran_with`: a run that never began has none."""


def settings_digests(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of the settings in each run's conditions, without resources and place.

    Equal conditions are mostly one object, which is looked at once.
    """
    each = {id(conditions): conditions for conditions in runs}
    digests = {key: _digest(conditions) for key, conditions in each.items()}
    return [digests[id(conditions)] for conditions in runs]


def _digest(conditions: Mapping[str, Any]) -> str:
    return digest_of(
        {
            key: value
            for key, value in conditions.items()
            if value is not None
            and key not in (*_FREE, *_PLACE)
            and (key == "strategy" or not _may_differ(key))
        }
    )


# Variants and clusters.


def _compare_variants(
    runs: Sequence[MeasuredRun],
) -> tuple[Group, list[MeasuredRun], list[MeasuredRun]]:
    """Compare the variants of one comparison; also return the runs of the first variant that count,
    and all runs, of which those that are no repeats of the first of their variant are set aside."""
    by_name: dict[str, list[MeasuredRun]] = {}
    as_repeats = []
    for run in runs:
        own = by_name.setdefault(run.figures.variant or "", [])
        known = msgspec.structs.asdict((own or [run])[0].figures.ran_with)
        for key, theirs in known.items():
            mine = getattr(run.figures.ran_with, key)
            if mine and theirs and mine != theirs and run.set_aside is None:
                why = f"{key} is {mine}, but {theirs} in {own[0].figures.run}"
                run = msgspec.structs.replace(run, set_aside=why)  # noqa: PLW2901
        own.append(run)
        as_repeats.append(run)

    def counts(run: MeasuredRun) -> bool:
        return why_left_out(run) is None and run.set_aside is None

    baseline = [run for run in next(iter(by_name.values())) if counts(run)]
    cells = contrast([*by_name.values()], baseline, counts=counts, pooled=True)
    group = _named_group([*by_name], cells, name=runs[0].figures.comparison or "")
    return group, baseline, as_repeats


def _named_group(names: Sequence[str], cells: Sequence[Cell], *, name: str = "") -> Group:
    named = [
        msgspec.structs.replace(cell, name=own) for own, cell in zip(names, cells, strict=True)
    ]
    runs = [run for cell in cells for run in cell.runs]
    return Group(job=cells[0].job, name=name, runs=runs, baseline=cells[0].runs, cells=named)


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
            kind = (own.job, digest, own.ran_with.code, own.comparison, run.figures.size)
            alike[kind][place_of(own)].append(run)
    return [
        _named_group([*places], contrast([*places.values()], next(iter(places.values()))))
        for places in alike.values()
        if len(places) > 1
    ]
