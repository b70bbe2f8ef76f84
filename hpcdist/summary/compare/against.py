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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.base.statistics import Measure, Ratio, differs, ratios, spread_measure
from hpcdist.base.text import first_few
from hpcdist.bench.cells import rates
from hpcdist.summary.compare.cells import over_runs
from hpcdist.summary.values import SCHEMA, RanWith, RunSummary

Outcome = Literal["slower", "faster", "within threshold", "not distinguishable", "failed"]
"""Failed: no run is done. Not distinguishable: the difference may be chance."""
REGRESSIONS: tuple[Outcome, ...] = ("slower", "failed")
_ENDED = {"failed", "lost", "cancelled", "preempted"}


class Side(Struct, frozen=True, kw_only=True):
    """The runs of one side, and what they came to: over the runs, or of a single one within it."""

    runs: list[str]
    measured: Measure | None = None
    """None where no run is done."""


class Change(Struct, frozen=True, kw_only=True):
    """One quantity of one job and size, before and now."""

    job: str
    variant: str | None
    nodes: int
    gpus_per_node: int
    quantity: str
    before: Side
    now: Side
    times: Ratio | None = None
    """Now as a multiple of before: 0.9 is 10 % less; all changes are judged together."""
    same_settings: bool = True
    differing: dict[str, list[str]] = {}
    """Key of `ran_with` that differs -> its values before and now."""
    outcome: Outcome = "failed"


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


Sides = tuple[list[RunSummary], list[RunSummary]]
"""Runs of one job, variant and size, of the baseline and now."""


def compare_with(
    baseline: Sequence[RunSummary],
    runs: Sequence[RunSummary],
    *,
    threshold: float,
) -> Changes:
    """Compare every quantity that both sides measured, job by job, but not of runs that were
    disturbed."""
    left_out = [run.run for run in (*baseline, *runs) if run.disturbed]
    is_left_out = {*left_out}
    baseline, runs = (
        [run for run in side if run.run not in is_left_out] for side in (baseline, runs)
    )
    changes: list[Change] = []
    for pair, same_settings in _pairs(baseline, runs):
        before, now = map(_measured, pair)
        has_failed = not now and all(run.state in _ENDED for run in pair[1])
        for quantity, theirs in before.items():
            if quantity in now or has_failed:
                mine = now.get(quantity, {})
                first = pair[1][0]
                change = Change(
                    job=first.job,
                    variant=first.variant or None,
                    nodes=first.nodes,
                    gpus_per_node=first.gpus_per_node,
                    quantity=quantity,
                    before=Side(runs=[*theirs], measured=over_runs([*theirs.values()])),
                    now=Side(
                        runs=[*mine] or [run.run for run in pair[1]],
                        measured=over_runs([*mine.values()]) if mine else None,
                    ),
                    same_settings=same_settings,
                    differing=_differing(pair),
                )
                changes.append(change)
    # All are judged together, so that many are no more likely to show one by chance than one.
    sides = [(each.now.measured, each.before.measured) for each in changes]
    judged = iter(ratios([(mine, theirs) for mine, theirs in sides if mine and theirs]))
    changes = [
        _judge(each, next(judged), threshold) if each.now.measured else each for each in changes
    ]
    compared = {run for change in changes for run in (*change.before.runs, *change.now.runs)}
    only_now = [run for run in runs if run.run not in compared]
    return Changes(
        threshold=threshold,
        regression=any(change.outcome in REGRESSIONS for change in changes),
        changes=changes,
        only_before=[run.run for run in baseline if run.run not in compared],
        only_now=[run.run for run in only_now],
        failed_now=[run.run for run in only_now if run.state in _ENDED],
        disturbed=left_out,
    )


def _pairs(
    baseline: Sequence[RunSummary], runs: Sequence[RunSummary]
) -> Iterator[tuple[Sides, bool]]:
    """Yield the runs of both sides that are matched, and whether their settings are equal."""
    # Of runs that never began nobody knows the device: they are repeats of those that did.
    begun = {run.settings: run.configuration for run in baseline}
    by_key: dict[tuple[str, str, int, int], dict[str, Sides]] = {}
    for number, side in enumerate((baseline, runs)):
        for run in side:
            never_began = run.configuration == run.settings
            like = begun.get(run.settings) if never_began else run.configuration
            key = (run.job, run.variant or "", run.nodes, run.gpus_per_node)
            own = by_key.setdefault(key, {})
            own.setdefault(like or run.configuration or "", ([], []))[number].append(run)
    for _, own in sorted(by_key.items()):
        if common := [pair for pair in own.values() if all(pair)]:
            yield from ((pair, True) for pair in sorted(common, key=lambda pair: pair[1][0].run))
            continue
        before, now = ([pair[number] for pair in own.values() if pair[number]] for number in (0, 1))
        if len(before) == len(now) == 1:
            yield (before[0], now[0]), False


def _differing(pair: Sides) -> dict[str, list[str]]:
    differing = {}
    for key in RanWith.__struct_fields__:
        values = [
            ", ".join(sorted({value for run in side if (value := getattr(run.ran_with, key))}))
            for side in pair
        ]
        if all(values) and values[0] != values[1]:
            differing[key] = values
    return differing


def _judge(change: Change, times: Ratio, threshold: float) -> Change:
    outcome: Outcome = "slower" if times.mean < 1 else "faster"
    if not differs(times):
        outcome = "not distinguishable"
    elif abs(times.mean - 1) <= threshold:
        outcome = "within threshold"
    return msgspec.structs.replace(change, times=times, outcome=outcome)


def _measured(runs: Sequence[RunSummary]) -> dict[str, dict[str, Measure]]:
    """Quantity -> run -> what it measured; only done runs count."""
    measured: dict[str, dict[str, Measure]] = defaultdict(dict)
    for run in runs:
        if run.state == "done":
            found = list(rates(run.benchmark)) if run.benchmark else []
            if (rate := run.samples_per_s) is not None:
                samples = spread_measure(rate.mean, rate.sd, rate.count, over="windows")
                found.insert(0, ("samples/s", samples))
            for quantity, sample in found:
                if sample.mean > 0:
                    measured[quantity][run.run] = sample
    return dict(measured)


BASELINE_HINT = (
    "a baseline is a run, a sweep, a folder of runs, or the output of: hpcdist summary --json"
)


def read_saved(path: Path) -> list[RunSummary]:
    """Return the runs of a saved summary; raises UserError where it is none, or of another
    schema."""
    try:
        content = msgspec.json.decode(path.read_bytes())
        runs = content["runs"] if isinstance(content, dict) and "runs" in content else content
        for run in msgspec.convert(runs, list[dict[str, Any]]):
            if (schema := run.get("schema", SCHEMA)) != SCHEMA:
                raise UserError(
                    f"{path}: its schema is {schema}, and this hpcdist reads {SCHEMA}",
                    hint="save the baseline again with this hpcdist",
                )
        return msgspec.convert(runs, list[RunSummary])
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
    except msgspec.ValidationError as error:
        what = f"is no summary: {error}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"is not JSON: {error}"
    raise UserError(f"{path} {what}", hint=BASELINE_HINT)


def check_comparison(
    comparison: Changes, baseline: Sequence[RunSummary], runs: Sequence[RunSummary], *, name: str
) -> None:
    """Raise UserError where there was nothing to compare; `name` is that of the baseline."""
    if comparison.changes:
        return
    message, hint = f"the baseline {name} has no run that is done", BASELINE_HINT
    if not runs:
        message = f"there is no run to compare with {name}: all that are there are its own"
        hint = "submit the jobs again, or name the runs"
    elif comparison.disturbed:
        whose = first_few(comparison.disturbed)
        message = (
            f"there is nothing to compare with {name}: something else used the CPUs of {whose}"
        )
        hint = "run them again with nothing else on the machine"
    elif any(run.state == "done" for run in baseline):
        theirs, mine = (
            first_few([f"{run.job} on {run.nodes} x {run.gpus_per_node}" for run in side])
            for side in (baseline, runs)
        )
        message = (
            f"{name} has nothing in common with the runs: it has {theirs}, and they are {mine}"
        )
        hint = "compare runs of one job, on as many nodes and GPUs, and with equal settings"
    raise UserError(message, hint=hint)
