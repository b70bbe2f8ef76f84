"""Compare runs with a baseline, and find those slower than a threshold allows: pure.

Runs are matched by job, variant, nodes, GPUs and settings. Where a job has one setting only on
each side, they are matched though the settings differ, which is told: a job file may have changed.

A change is a regression where the mean fell by more than the threshold, and the two means differ
(`base.statistics`; all changes are one family): over the repeats of both sides; where only one side
was repeated, as if the other spread alike; over blocks of windows of steps where there is one run
of each. The last does not know how runs differ from one to the next. Runs that something else
disturbed are left out: a gate must not fail by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.base.statistics import (
    Interval,
    Measure,
    Ratio,
    differs,
    measure,
    ratios,
    spread_measure,
)
from hpcdist.base.text import first_few
from hpcdist.runs.benchmarks import rates
from hpcdist.summary.values import SCHEMA, RanWith, RunSummary

Outcome = Literal["slower", "faster", "within threshold", "not distinguishable", "failed"]
"""Failed: no run is done. Not distinguishable: the difference may be chance."""
Over = Literal["repeats", "repeats of one side", "windows"]
REGRESSIONS: tuple[Outcome, ...] = ("slower", "failed")


class Side(Struct, frozen=True, kw_only=True):
    """The runs of one side, and what they came to."""

    runs: list[str]
    mean: float | None = None
    """None where no run is done."""
    sd: float | None = None
    """Over the runs; of a single one, within it."""
    interval: Interval | None = None
    """Interval of the mean; None where no spread is known."""


class Change(Struct, frozen=True, kw_only=True):
    """One quantity of one job and size, before and now."""

    job: str
    variant: str | None
    nodes: int
    gpus_per_node: int
    quantity: str
    before: Side
    now: Side
    change: float | None = None
    """Relative: -0.1 is 10 % less."""
    interval: Interval | None = None
    """Interval of the change; None where no spread is known."""
    p: float | None = None
    """Probability of such a change by chance alone, adjusted for the number of changes."""
    over: Over | None = None
    """The origin of the spread."""
    same_settings: bool = True
    differing: dict[str, list[str]] = {}
    """Key of `ran_with` that differs -> its values before and now."""
    outcome: Outcome


class Changes(Struct, frozen=True, kw_only=True):
    """All changes of runs against a baseline."""

    version: int = 1
    threshold: float
    """Relative loss up to which a change is no regression."""
    regression: bool
    changes: list[Change]
    only_before: list[str]
    """Ids of runs of the baseline that have no counterpart."""
    only_now: list[str]
    failed_now: list[str] = []
    """Runs of now that did not end well: repeats of them may have, and count alone."""
    disturbed: list[str] = []
    """Runs of both sides that are left out, as something else used their CPUs."""


class _Pair(NamedTuple):
    """Runs of one job, variant and size on both sides."""

    before: list[RunSummary]
    now: list[RunSummary]
    same_settings: bool


def compare_with(
    baseline: Sequence[RunSummary],
    runs: Sequence[RunSummary],
    *,
    threshold: float,
    compares_disturbed: bool = False,
) -> Changes:
    """Compare every quantity that both sides measured, job by job; of runs that were disturbed only
    with `compares_disturbed`."""
    left_out = [run.run for run in (*baseline, *runs) if run.disturbed and not compares_disturbed]
    baseline, runs = ([run for run in side if run.run not in left_out] for side in (baseline, runs))
    pairs = _pairs(baseline, runs)
    changes = _judge([compared for pair in pairs for compared in _compare(pair)], threshold)
    compared = {run for change in changes for run in (*change.before.runs, *change.now.runs)}
    only_now = [run for run in runs if run.run not in compared]
    return Changes(
        threshold=threshold,
        regression=any(change.outcome in REGRESSIONS for change in changes),
        changes=changes,
        only_before=[run.run for run in baseline if run.run not in compared],
        only_now=[run.run for run in only_now],
        failed_now=[run.run for run in only_now if _has_ended([run])],
        disturbed=left_out,
    )


def _pairs(baseline: Sequence[RunSummary], runs: Sequence[RunSummary]) -> list[_Pair]:
    before, now = _by_key(baseline), _by_key(runs)
    pairs = []
    for key in sorted(now.keys() & before.keys()):
        theirs, mine = before[key], _as_begun(now[key], before[key])
        common = mine.keys() & theirs.keys()
        own = [_Pair(theirs[settings], mine[settings], same_settings=True) for settings in common]
        if not common and len(mine) == len(theirs) == 1:
            (theirs_only,), (mine_only,) = theirs.values(), mine.values()
            own.append(_Pair(theirs_only, mine_only, same_settings=False))
        pairs += sorted(own, key=lambda pair: pair.now[0].run)
    return pairs


def _as_begun(
    mine: Mapping[str, list[RunSummary]], theirs: Mapping[str, list[RunSummary]]
) -> Mapping[str, list[RunSummary]]:
    """Take runs that never began, whose device nobody knows, as repeats of those with their
    settings."""
    begun = {runs[0].settings: configuration for configuration, runs in theirs.items()}
    by_configuration: dict[str, list[RunSummary]] = defaultdict(list)
    for configuration, runs in mine.items():
        never_began = configuration == runs[0].settings
        like = begun.get(configuration, configuration) if never_began else configuration
        by_configuration[like] += runs
    return by_configuration


_Key = tuple[str, str, int, int]
"""Job, variant, nodes and GPUs per node."""


def _by_key(runs: Sequence[RunSummary]) -> Mapping[_Key, Mapping[str, list[RunSummary]]]:
    """Group runs by what they are, then by their settings."""
    by_key: dict[_Key, dict[str, list[RunSummary]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        key = (run.job, run.variant or "", run.nodes, run.gpus_per_node)
        by_key[key][run.configuration or ""].append(run)
    return by_key


class _Compared(NamedTuple):
    """One quantity of a pair; without `now` it could not be measured again."""

    change: Change
    before: Mapping[str, Measure]
    now: Mapping[str, Measure] | None


def _compare(pair: _Pair) -> list[_Compared]:
    before, now = _measured(pair.before), _measured(pair.now)
    has_failed = not now and _has_ended(pair.now)
    compared = []
    for quantity, measured in before.items():
        run = pair.now[0]
        change = Change(
            job=run.job,
            variant=run.variant or None,
            nodes=run.nodes,
            gpus_per_node=run.gpus_per_node,
            quantity=quantity,
            before=_side(measured),
            now=Side(runs=[run.run for run in pair.now]),
            same_settings=pair.same_settings,
            differing=_differing(pair),
            outcome="failed",
        )
        if quantity in now or has_failed:
            compared.append(_Compared(change, measured, now.get(quantity)))
    return compared


def _differing(pair: _Pair) -> dict[str, list[str]]:
    differing = {}
    for key in RanWith.__struct_fields__:
        values = [
            ", ".join(sorted({value for run in side if (value := getattr(run.ran_with, key))}))
            for side in (pair.before, pair.now)
        ]
        if all(values) and values[0] != values[1]:
            differing[key] = values
    return differing


def _judge(compared: Sequence[_Compared], threshold: float) -> list[Change]:
    """Decide on all quantities together, so that many of them are no more likely to show a change
    by chance than one."""
    pairs = [(_over_runs(each.now), _over_runs(each.before)) for each in compared if each.now]
    judged = iter(ratios(pairs))
    return [
        _measured_change(each, each.now, next(judged), threshold) if each.now else each.change
        for each in compared
    ]


def _measured_change(
    compared: _Compared, now: Mapping[str, Measure], times: Ratio, threshold: float
) -> Change:
    ends, over = times.interval, times.over
    are_repeated = len(compared.before) > 1 and len(now) > 1
    repeats: Over = "repeats" if are_repeated else "repeats of one side"
    outcome: Outcome = "slower" if times.mean < 1 else "faster"
    if not differs(times):
        outcome = "not distinguishable"
    elif abs(times.mean - 1) <= threshold:
        outcome = "within threshold"
    return msgspec.structs.replace(
        compared.change,
        now=_side(now),
        change=times.mean - 1,
        interval=ends and Interval(low=ends.low - 1, high=ends.high - 1),
        p=times.p,
        over=repeats if over == "runs" else over,
        outcome=outcome,
    )


def _side(measured: Mapping[str, Measure]) -> Side:
    over_runs = _over_runs(measured)
    return Side(
        runs=list(measured), mean=over_runs.mean, sd=over_runs.sd, interval=over_runs.interval
    )


def _measured(runs: Sequence[RunSummary]) -> dict[str, dict[str, Measure]]:
    """Quantity -> run -> what it measured; only done runs count."""
    measured: dict[str, dict[str, Measure]] = defaultdict(dict)
    for run in runs:
        if run.state != "done":
            continue
        quantities = list(rates(run.benchmark)) if run.benchmark else []
        if (rate := run.samples_per_s) is not None:
            samples = spread_measure(rate.mean, rate.sd, rate.count, over="windows")
            quantities.insert(0, ("samples/s", samples))
        for quantity, sample in quantities:
            if sample.mean > 0:
                measured[quantity][run.run] = sample
    return dict(measured)


def _over_runs(measured: Mapping[str, Measure]) -> Measure:
    """Take each run's mean as a value where there are several; a single run has its own spread."""
    if len(measured) == 1:
        return next(iter(measured.values()))
    return measure([each.mean for each in measured.values()])


def _has_ended(runs: Sequence[RunSummary]) -> bool:
    return all(run.state in {"failed", "lost", "cancelled", "preempted"} for run in runs)


BASELINE_HINT = (
    "a baseline is a run, a sweep, a folder of runs, or the output of: hpcdist summary --json"
)


class _Saved(Struct):
    """The part of a saved run that says in which schema it is."""

    schema: int


def read_saved(path: Path) -> list[RunSummary]:
    """Return the runs of a saved summary; raises UserError where it is none, or of another
    schema."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", hint=BASELINE_HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}", hint=BASELINE_HINT) from None
    runs = content["runs"] if isinstance(content, dict) and "runs" in content else content
    try:
        schemas = {run.schema for run in msgspec.convert(runs, list[_Saved])} - {SCHEMA}
        saved = [] if schemas else msgspec.convert(runs, list[RunSummary])
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is no summary: {error}", hint=BASELINE_HINT) from None
    if schemas:
        raise UserError(
            f"{path}: its schema is {min(schemas)}, and this hpcdist reads {SCHEMA}",
            hint="save the baseline again with this hpcdist",
        )
    return saved


def check_comparison(
    comparison: Changes, baseline: Sequence[RunSummary], runs: Sequence[RunSummary], *, name: str
) -> None:
    """Raise UserError where there was nothing to compare; `name` is that of the baseline."""
    if not any(run.state == "done" for run in baseline):
        raise UserError(f"the baseline {name} has no run that is done", hint=BASELINE_HINT)
    if not runs:
        raise UserError(
            f"there is no run to compare with {name}: all that are there are its own",
            hint="submit the jobs again, or name the runs",
        )
    if not comparison.changes and comparison.disturbed:
        raise UserError(
            f"there is nothing to compare with {name}: something else used the CPUs of "
            f"{first_few(comparison.disturbed)}",
            hint="run them again with nothing else on the machine, or use --with-disturbed",
        )
    if not comparison.changes:
        theirs, mine = (
            first_few([f"{run.job} on {run.nodes} x {run.gpus_per_node}" for run in side])
            for side in (baseline, runs)
        )
        raise UserError(
            f"{name} has nothing in common with the runs: it has {theirs}, and they are {mine}",
            hint="compare runs of one job, on as many nodes and GPUs, and with equal settings",
        )
