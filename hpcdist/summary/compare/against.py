"""Compare runs with a baseline, and find those slower than a threshold allows: pure.

Runs are matched by job, variant, nodes, GPUs and settings, and by device and cluster where the
baseline has several. A change is a regression where the mean fell by more than the threshold, and
the two means differ (`base.statistics`; all changes are one family): over the repeats of both
sides, or over blocks of windows of steps where there is one run of each.
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
_GONE, _NEW = "they are only in the baseline", "the baseline has none like them"
_DISTURBED = "something else used their CPUs"
BASELINE_HINT = (
    "a baseline is a run, a sweep, a folder of runs, or the output of: hpcdist summary --json"
)


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
    differing: dict[str, list[str]]
    """Key of `ran_with` that differs -> its values before and now."""
    outcome: Outcome = "failed"


class Changes(Struct, frozen=True, kw_only=True):
    """All changes of runs against a baseline."""

    threshold: float
    """Relative loss up to which a change is no regression."""
    regression: bool
    changes: list[Change]
    left_out: dict[str, list[str]]
    """Why runs are not compared -> ids of these runs."""


Runs = Sequence[RunSummary]


def compare_with(baseline: Runs, runs: Runs, *, threshold: float) -> Changes:
    """Compare every quantity that both sides measured, job by job; runs that were disturbed are
    left out: a gate must not fail by chance."""
    every = [(run, why) for side, why in ((baseline, _GONE), (runs, _NEW)) for run in side]
    baseline, runs = ([run for run in side if not run.disturbed] for side in (baseline, runs))
    changes: list[Change] = []
    for theirs, mine in _pairs(baseline, runs):
        before, now = _measured(theirs), _measured(mine)
        for quantity, old in before.items():
            new = now.get(quantity, {})
            if new or not now:
                first = mine[0]
                change = Change(
                    job=first.job,
                    variant=first.variant or None,
                    nodes=first.nodes,
                    gpus_per_node=first.gpus_per_node,
                    quantity=quantity,
                    before=Side(runs=[*old], measured=over_runs([*old.values()])),
                    now=Side(
                        runs=[*new] or [run.run for run in mine],
                        measured=over_runs([*new.values()]) if new else None,
                    ),
                    differing=_differing(theirs, mine),
                )
                changes.append(change)
    # All are judged together, so that many are no more likely to show one by chance than one.
    sides = [(each.now.measured, each.before.measured) for each in changes]
    judged = iter(ratios([(mine, theirs) for mine, theirs in sides if mine and theirs]))
    changes = [
        _judge(each, next(judged), threshold) if each.now.measured else each for each in changes
    ]
    compared = {run for change in changes for run in (*change.before.runs, *change.now.runs)}
    left_out: dict[str, list[str]] = {}
    for run, why in every:
        if run.run not in compared:
            why = "they did not end well" if run.state in _ENDED else why  # noqa: PLW2901
            left_out.setdefault(_DISTURBED if run.disturbed else why, []).append(run.run)
    return Changes(
        threshold=threshold,
        regression=any(change.outcome in REGRESSIONS for change in changes),
        changes=changes,
        left_out=left_out,
    )


def _pairs(baseline: Runs, runs: Runs) -> Iterator[tuple[Runs, Runs]]:
    """Yield the runs of both sides that are matched: of now the done ones, or where none is, those
    that ended otherwise."""
    by_key: dict[Any, tuple[list[RunSummary], list[RunSummary]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate((baseline, runs)):
        for run in side:
            key = (run.job, run.variant or "", run.nodes, run.gpus_per_node, run.settings or "")
            by_key[key][number].append(run)
    for _, (before, now) in sorted(by_key.items()):
        theirs, mine = _by_place(before), _by_place(now)
        for place, own in mine.items():
            if found := theirs.get(place) or (len(theirs) == 1 and next(iter(theirs.values()))):
                yield found, own
        if now and not mine and all(run.state in _ENDED for run in now):
            yield from ((found, now) for found in theirs.values())


def _by_place(runs: Runs) -> dict[Any, list[RunSummary]]:
    """Return the done runs by the devices that they ran on: no others have figures."""
    places: dict[Any, list[RunSummary]] = {}
    for run in runs:
        if run.state == "done":
            own = run.ran_with
            places.setdefault((own.device, own.device_model, own.cluster), []).append(run)
    return places


def _differing(theirs: Runs, mine: Runs) -> dict[str, list[str]]:
    differing = {}
    for key in RanWith.__struct_fields__:
        sides = [{getattr(run.ran_with, key) for run in side} - {None} for side in (theirs, mine)]
        if all(sides) and sides[0] != sides[1]:
            differing[key] = [", ".join(sorted(values)) for values in sides]
    return differing


def _judge(change: Change, times: Ratio, threshold: float) -> Change:
    outcome: Outcome = "slower" if times.mean < 1 else "faster"
    if not differs(times):
        outcome = "not distinguishable"
    elif abs(times.mean - 1) <= threshold:
        outcome = "within threshold"
    return msgspec.structs.replace(change, times=times, outcome=outcome)


def _measured(runs: Runs) -> dict[str, dict[str, Measure]]:
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


def read_saved(path: Path) -> list[RunSummary]:
    """Return the runs of a saved summary; raises UserError where it is none, or of another
    schema."""
    try:
        runs = msgspec.convert(msgspec.json.decode(path.read_bytes()), list[dict[str, Any]])
        if schemas := {run.get("schema", SCHEMA) for run in runs} - {SCHEMA}:
            raise UserError(
                f"{path}: its schema is {schemas.pop()}, and this hpcdist reads {SCHEMA}",
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


def check_comparison(comparison: Changes, baseline: Runs, runs: Runs, *, name: str) -> None:
    """Raise UserError where there was nothing to compare; `name` is that of the baseline."""
    if comparison.changes:
        return
    if not any(run.state == "done" for run in baseline):
        raise UserError(f"the baseline {name} has no run that is done", hint=BASELINE_HINT)
    sides = (
        first_few([f"{run.job} on {run.nodes} x {run.gpus_per_node}" for run in side])
        for side in (baseline, runs)
    )
    theirs, mine = (side or "none besides it" for side in sides)
    whys = "".join(f"; {first_few(ids)}: {why}" for why, ids in comparison.left_out.items())
    raise UserError(
        f"{name} has nothing in common with the runs: it has {theirs}, and they are {mine}{whys}",
        hint="compare runs of one job, on as many nodes and GPUs, and with equal settings",
    )
