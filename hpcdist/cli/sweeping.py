"""`hpcdist submit --sweep`: from options to runs, and on request to their ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.errors import EXIT_INTERRUPTED
from hpcdist.base.text import one_line
from hpcdist.cli.after import print_summary_here, settle_afters
from hpcdist.cli.described import states_in_words
from hpcdist.cli.interrupts import Interrupted, Interrupts
from hpcdist.cli.options import (
    JobOptions,
    cluster_from_options,
    load_from_options,
    snapshot_from_options,
    sweep_points,
)
from hpcdist.cli.printing import note, print_columns, print_json, say
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    from hpcdist.runs.verdict import Verdict
    from hpcdist.schedulers.base import Scheduler
    from hpcdist.submission.sweeps.local import LocalSweep, PointEnd, Shown
    from hpcdist.submission.sweeps.plan import PlannedSweep
    from hpcdist.submission.sweeps.submit import SubmittedSweep

_SHOWN_POINTS = 40
"""A longer table would push what comes before it off the screen."""


def plan(options: JobOptions) -> PlannedSweep:
    """Every point of the options' sweep, checked; the notes are printed."""
    from hpcdist.submission.single import plan_submission
    from hpcdist.submission.sweeps.plan import plan_sweep

    scheduler, cluster = cluster_from_options(options)
    planned = plan_sweep(
        sweep_points(options),
        load=lambda point: load_from_options(options, point),
        plan=lambda loaded: plan_submission(
            loaded, scheduler=scheduler, cluster=cluster, snapshot=snapshot_from_options(options)
        ),
        max_parallel=options.max_parallel,
        comparison=comparison.name if (comparison := options.comparison()) else None,
    )
    for text in planned.notes:
        note(text)
    return planned


def submit_sweep(options: JobOptions, *, wait: bool, debug: bool, as_json: bool) -> int:
    """Submit a sweep, or run it here; returns the exit code."""
    if debug:
        raise click.UsageError("--debug runs one rank of one run; leave the sweep away")
    interrupts = Interrupts()
    with interrupts.handled():
        planned = plan(options)
        dependencies = settle_afters(options, planned.scheduler)
        planned.prepare()
        scheduler = planned.scheduler
        if not scheduler.has_queue:
            return _run_here(planned, options, interrupts, as_json=as_json)
        from hpcdist.submission.sweeps.submit import submit_sweep as submit
        from hpcdist.summary.task import SummaryTask

        interrupts.defer()
        submitted = submit(
            planned,
            scheduler,
            runs=options.runs,
            command=sys.argv,
            dependencies=dependencies,
            summary_task=SummaryTask if options.summary_after else None,
        )
        return _report(planned, scheduler, submitted, interrupts, wait=wait, as_json=as_json)


# With a scheduler.


def _report(
    planned: PlannedSweep,
    scheduler: Scheduler,
    submitted: SubmittedSweep,
    interrupts: Interrupts,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    for text in submitted.said:
        note(text)
    if not as_json:
        print(submitted.sweep.id, flush=True)
        _print_submitted(planned, scheduler, submitted)
    verdicts: dict[str, Verdict] = {}
    code: int | None = None
    if wait:
        verdicts, code = _wait(submitted, interrupts)
        if verdicts and (planned.comparison or submitted.summary_job_id is not None):
            print_summary_here(submitted.runs, submitted.sweep.path, as_json=as_json)
    if as_json:
        print_json(
            _described(planned, submitted.sweep.id, submitted.runs, verdicts)
            | {
                "exit_code": code,
                "jobs": [{"name": job.name, "job_id": job.job_id} for job in submitted.jobs],
                "summary_job_id": submitted.summary_job_id,
            }
        )
    if not wait:
        interrupts.check()
    return code or 0


def _print_submitted(
    planned: PlannedSweep, scheduler: Scheduler, submitted: SubmittedSweep
) -> None:
    num_runs, num_jobs = len(submitted.runs), len(submitted.jobs)
    jobs = "1 job" if num_jobs == 1 else f"{num_jobs} jobs"
    say(f"{num_runs} runs submitted to {scheduler.name}, as {jobs}:")
    rows = [
        (run.id, str(run.read_job_id()), one_line(point.label))
        for run, point in zip(submitted.runs[:_SHOWN_POINTS], planned.points, strict=False)
    ]
    print_columns(("RUN", "JOB ID", "POINT"), rows, file=sys.stderr)
    if num_runs > _SHOWN_POINTS:
        say(f"... and {num_runs - _SHOWN_POINTS} more")
    if planned.max_parallel is not None and planned.max_parallel < num_jobs:
        note(
            f"--max-parallel {planned.max_parallel}: jobs of different sizes wait for each other, "
            f"as the limit holds for all of them together"
        )
    if submitted.summary_job_id is not None:
        note(f"job {submitted.summary_job_id} will write {submitted.sweep.path / 'summary.txt'}")
    for verb in ("status", "summary", "cancel"):
        say(f"  hpcdist {verb} {submitted.sweep.id}")


def _wait(submitted: SubmittedSweep, interrupts: Interrupts) -> tuple[dict[str, Verdict], int]:
    from hpcdist.monitor.ends import EndsWatch, exit_code_of_all

    name = submitted.sweep.id
    try:
        verdicts = EndsWatch(submitted.runs).wait(
            check=interrupts.check,
            changed=lambda counts: say(f"sweep {name}: {states_in_words(counts.elements())}"),
        )
    except Interrupted:
        say(f"sweep {name} goes on; end it with: hpcdist cancel {name}")
        return {}, EXIT_INTERRUPTED
    for run in submitted.runs:
        if verdicts[run.id].state != "done":
            say(_end_sentence(run, verdicts[run.id]))
    return verdicts, exit_code_of_all(verdicts.values())


# Here.


def _run_here(
    planned: PlannedSweep, options: JobOptions, interrupts: Interrupts, *, as_json: bool
) -> int:
    from hpcdist.monitor.ends import exit_code_of_all
    from hpcdist.runs.sweep import Sweep
    from hpcdist.submission.sweeps.local import LocalSweep, run_points

    interrupts.defer()
    planned = planned.stored(options.runs)
    sweep = Sweep.create(options.runs, planned.name)
    local = LocalSweep(planned=planned, sweep=sweep, command=sys.argv)
    local.write()
    if not as_json:
        print(sweep.id, flush=True)
    shown = _shown_here(local, interrupts, as_json=as_json)
    ends: list[PointEnd] = []
    try:
        ends = run_points(local, shown)
    except Interrupted:
        say(f"sweep {sweep.id} interrupted; its runs are cancelled or were not started")
    code = exit_code_of_all(end.verdict for end in ends) if ends else EXIT_INTERRUPTED
    if ends:
        states = [end.verdict.state if end.verdict else "not started" for end in ends]
        say(f"sweep {sweep.id}: {states_in_words(states)}")
    if (planned.comparison or options.summary_after) and local.started:
        print_summary_here(local.started, sweep.path, as_json=as_json)
    if as_json:
        verdicts = {run.id: found for run in local.started if (found := run.read_verdict())}
        runs = [sweep.run(point.index, len(planned.points)) for point in planned.points]
        print_json(_described(planned, sweep.id, runs, verdicts) | {"exit_code": code})
    return code


def _shown_here(local: LocalSweep, interrupts: Interrupts, *, as_json: bool) -> Shown:
    if (local.planned.max_parallel or 1) == 1:
        return _OneByOne(local, interrupts, as_json=as_json)
    return _several_at_once(local, interrupts)


@dataclass
class _OneByOne:
    """Follows each run as `hpcdist submit --local` does."""

    local: LocalSweep
    interrupts: Interrupts
    as_json: bool

    def started(self, index: int, run: Run) -> None:
        points = self.local.planned.points
        say(f"run {run.id} ({index + 1} of {len(points)}): {one_line(points[index].label)}")

    def ended(self, end: PointEnd) -> None:
        _say_ended(self.local, end)

    def wait(self, running: Mapping[int, Run]) -> dict[int, Verdict]:
        from hpcdist.monitor.follow.run import follow
        from hpcdist.monitor.follow.screen import Screen

        ((index, run),) = running.items()
        with closing(Screen(log=sys.stderr if self.as_json else sys.stdout)) as screen:
            return {index: follow(run, screen, check=self.interrupts.check)}


def _several_at_once(local: LocalSweep, interrupts: Interrupts) -> Shown:
    """Tells of beginnings and ends; the logs of several runs at once could not be read."""
    from hpcdist.submission.sweeps.local import EndsHere

    class SeveralAtOnce(EndsHere):
        def started(self, index: int, run: Run) -> None:
            points = local.planned.points
            place = f"{index + 1} of {len(points)}"
            say(f"run {run.id} ({place}) began: {one_line(points[index].label)}")

        def ended(self, end: PointEnd) -> None:
            _say_ended(local, end)

    return SeveralAtOnce(interrupts.check)


def _say_ended(local: LocalSweep, end: PointEnd) -> None:
    if end.run is not None and end.verdict is not None:
        say(_end_sentence(Run(end.run), end.verdict))
    else:
        label = local.planned.points[end.index].label
        say(f"the run for {one_line(label)} could not be started: {one_line(end.error or '')}")


def _end_sentence(run: Run, verdict: Verdict) -> str:
    from hpcdist.monitor.follow.run import end_sentence

    return one_line(end_sentence(run, verdict))


def _described(
    planned: PlannedSweep, name: str, runs: Sequence[Run], verdicts: Mapping[str, Verdict]
) -> dict[str, Any]:
    import msgspec

    return {
        "sweep": name,
        "path": str(runs[0].path.parent / name),
        "scheduler": planned.scheduler.name,
        "runs": [
            {
                "run": run.id if run.path.exists() else None,
                "path": str(run.path) if run.path.exists() else None,
                "point": point.values,
                "repeat": point.repeat,
                "job_id": run.read_job_id(),
                "verdict": msgspec.to_builtins(verdicts[run.id]) if run.id in verdicts else None,
            }
            for run, point in zip(runs, planned.points, strict=True)
        ],
    }
