"""Runs in figures and beside each other: the stages of the summary, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from hpcdist.cluster.schedulers import LOCAL
from hpcdist.job.goal import Goal
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import State
from hpcdist.summary.compare.groups import (
    compare_places,
    compare_runs,
    settings_digests,
)
from hpcdist.summary.figures.learning import time_to_goal
from hpcdist.summary.figures.run import MeasuredRun, place_run
from hpcdist.summary.measuring import find_measurements
from hpcdist.summary.read.collect import sentence, without_copies
from hpcdist.summary.values import RunSummary, Summary

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
Ask: TypeAlias = Callable[[Sequence[Run]], Mapping[str, T]]
"""Returns what is known of some runs, by their ids."""


def summarize(
    runs: Sequence[Run],
    states: Mapping[str, State] | Ask[State],
    *,
    accounting: Mapping[str, Accounting] | Ask[Accounting] | None = None,
    uses_kept: bool = False,
    goal: Goal | None = None,
) -> Summary:
    """Return runs in figures, in the order given; what is no run is skipped, and listed.

    `states` holds, by run id, what the scheduler says of runs that have no verdict, and
    `accounting` what it has on jobs; or they are asked for that, for the runs that may have it.
    With `uses_kept`, figures that are kept beside runs which have not changed since are taken, and
    those of the user's other runs are kept.
    `goal` is the accuracy or loss that times are for; None: there are no such times.
    """
    measured: list[MeasuredRun] = []
    runs, skipped = without_copies(runs)
    # Before anything is read: what is asked may bring files of runs here.
    known: Mapping[str, State] = states if not callable(states) else {}
    if callable(states):
        known = states([run for run in runs if not os.path.lexists(run.verdict_file)])
    measurements = find_measurements(runs, uses_kept=uses_kept)
    # Then for the states of runs whose verdict cannot be read, and for the books on those that were
    # not on this machine: of thousands of runs no file is read once more.
    found = [
        (run, each.run.figures) for run, each in zip(runs, measurements, strict=True) if each.run
    ]
    if callable(states):
        torn = [run for run, own in found if own.state is None and run.id not in known]
        known = {**known, **states(torn)}
    if callable(accounting):
        here = (LOCAL, None)
        accounting = accounting([run for run, own in found if (own.scheduler, own.cluster) != here])
    for run, measurement in zip(runs, measurements, strict=True):
        skipped += [sentence(run, fault) for fault in measurement.faults]
        if measurement.run is not None:
            state, account = known.get(run.id), (accounting or {}).get(run.id)
            measured.append(place_run(measurement.run, run.path, state=state, accounting=account))
    digests = settings_digests([run.conditions for run in measured])
    measured = _set_disturbed_aside(measured, digests)
    beside_others, sizes, variants = compare_runs(measured)
    return Summary(
        runs=[
            RunSummary(
                **msgspec.structs.asdict(run.figures),
                **msgspec.structs.asdict(beside),
                settings=digest,
                time_to_accuracy=time_to_goal(run.bests, goal, each=run.figures.samples_per_step),
            )
            for run, beside, digest in zip(measured, beside_others, digests, strict=True)
        ],
        groups=sizes,
        comparisons=variants,
        places=compare_places(measured, digests),
        series={run.figures.path: run.series for run in measured if run.figures.path},
        skipped=skipped,
    )


def _set_disturbed_aside(
    measured: Sequence[MeasuredRun], settings: Sequence[str]
) -> list[MeasuredRun]:
    """Return runs, those that something else disturbed as such that are not compared, where others
    of their kind were undisturbed: on a machine that is never idle, what there is is compared."""
    each = zip((run.figures for run in measured), settings, strict=True)
    kinds = [
        (own.job, own.comparison, own.variant, own.size, key, own.ran_with) for own, key in each
    ]
    known = list(zip(kinds, measured, strict=True))
    done = [(kind, run) for kind, run in known if run.figures.state == "done"]
    calm = {kind for kind, run in done if run.figures.disturbed is None}
    return [
        msgspec.structs.replace(run, set_aside=run.figures.disturbed) if kind in calm else run
        for kind, run in known
    ]


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print what `hpcdist summary` shows; on stdout where no console is given."""
    from hpcdist.summary.report.report import make_report
    from hpcdist.summary.report.text import make_console, print_report

    print_report(make_report(summary), console or make_console())
