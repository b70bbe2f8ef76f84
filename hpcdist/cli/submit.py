"""`hpcdist submit`: from a job to its runs, and on request to their ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_INTERRUPTED, SchedulerError
from hpcdist.base.text import one_line
from hpcdist.cli.follow import (
    Interrupts,
    describe_end,
    describe_sweep,
    follow_run,
    run_points_here,
    run_sweep_here,
    wait_for_sweep,
)
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import (
    JobOptions,
    cluster_from_options,
    cluster_here,
    job_options,
    json_option,
    load_from_options,
    snapshot_from_options,
    sweep_points,
)
from hpcdist.cli.printing import note, print_columns, print_json, say
from hpcdist.machine.command import announce_waits
from hpcdist.runs.run import Run, name_to_type
from hpcdist.submission.once import submitted_before

if TYPE_CHECKING:
    from hpcdist.job import LoadedJob
    from hpcdist.runs.verdict import Verdict
    from hpcdist.schedulers.base import Dependency
    from hpcdist.submission.plan import PlannedRun, PlannedSubmission
    from hpcdist.submission.submit import Submission

_LISTED_POINTS = 40
"""A longer table would push what comes before it off the screen."""


@click.command(cls=HostCommand)
@job_options()
@click.option("--wait", is_flag=True, help="Follow the run, and end with its exit code.")
@click.option(
    "--here",
    is_flag=True,
    help="Run in the allocation of this shell (salloc, qsub -I), and follow it.",
)
@json_option
def submit(
    *,
    options: JobOptions,
    wait: bool,
    here: bool,
    as_json: bool,
) -> int:
    """Submit a job: a name from `hpcdist jobs`, a job file (.yaml), a Python script, or a folder or
    zip file with a __main__.py; with -m, a module; with --no-python, any program.

    \b
    hpcdist submit ddp --nodes 2 --gpus 2 --local
        2 simulated nodes with 2 ranks each on this machine, followed to the end
    hpcdist submit ddp --nodes 2 --gpus 2
        the same on the cluster; returns at once; --wait follows it
    hpcdist submit ddp --here --gpus 2
        the same in the allocation of this shell (salloc, qsub -I), at once,
        on all its nodes if neither the job nor --nodes says how many
    hpcdist submit ddp --local --set train.lr=0.01 --set model.name=resnet18
        any key of the job file, changed for this run
    hpcdist submit train.py --nodes 2 --gpus 4 -- --lr 0.1
        a script as torchrun would run it; what follows -- is for the script
    hpcdist submit -m package.train --nodes 2 --gpus 4 -- --lr 0.1
        a module, as torchrun -m would run it
    hpcdist submit --no-python ./program --nodes 2 --gpus 4 -- --lr 0.1
        a program in any language, as torchrun --no-python would execute it
    hpcdist submit ddp --sweep "nodes=1,2 train.lr=0.1,0.01" --repeat 3
        12 runs: each combination three times; they have a common id

    On a cluster, a script runs from a copy of the git work tree, including changes that are not
    committed, so what you edit after submitting does not change queued jobs.

    Ctrl-C ends a run that was started with --local or --here. A run on a cluster continues;
    `hpcdist cancel` ends it.
    """
    announce_waits(note)
    if (earlier := submitted_before(options.runs)) is not None:
        return _report_earlier(earlier, wait=wait, as_json=as_json)
    if here:
        return _submit_here(options, as_json=as_json)
    if options.max_parallel is not None and not options.is_sweep:
        raise click.UsageError("--max-parallel is for the runs of a --sweep or --repeat")
    return _submit_job(options, wait=wait, as_json=as_json)


def _submit_job(options: JobOptions, *, wait: bool, as_json: bool) -> int:
    """Submit a run or a sweep, and follow it where the user wants to."""
    follows = options.local or wait
    interrupts = Interrupts()
    with interrupts.handled():
        planned = plan(options)
        has_queue = planned.has_queue
        if not has_queue and options.summary_after and not (follows or planned.is_sweep):
            raise click.UsageError("--summary-after on this machine needs --local or --wait")
        dependencies = settle_afters(options, planned)
        if options.summary_after:
            planned.only_scheduler("--summary-after")
        if options.after:
            planned = planned.now()  # this machine may look otherwise after the waiting
        planned.prepare()  # may be interrupted
        if planned.is_sweep and not has_queue:
            return run_sweep_here(
                planned,
                options.runs,
                interrupts,
                as_json=as_json,
                with_summary=options.summary_after,
            )
        submitted = _submit(planned, options, interrupts, dependencies)
        if planned.is_sweep:
            return _report_sweep(planned, submitted, interrupts, wait=wait, as_json=as_json)
        (run,) = submitted.runs
        _note_summary(submitted)
        if not follows:
            _report_run(run, planned.scheduler.name, as_json=as_json)
            interrupts.check()
            return 0
        return follow_run(
            run,
            planned.scheduler.name,
            interrupts,
            as_json=as_json,
            owned=options.local,
            with_summary=options.summary_after,
        )


def plan(options: JobOptions) -> PlannedSubmission:
    """Check and plan every run that the options describe, and print the notes on them."""
    from hpcdist.submission.plan import plan_points, plan_run
    from hpcdist.submission.points import Point

    comparison = options.comparison
    # Looked for once, and late: a mistake in the job is told before one in the profile.
    find_cluster = cache(cluster_from_options)

    def plan_loaded(loaded: LoadedJob, point: Point) -> PlannedRun:
        scheduler, profile = find_cluster(options, name=point.cluster)
        snapshot = snapshot_from_options(options)
        return plan_run(loaded, scheduler=scheduler, cluster=profile, snapshot=snapshot)

    planned = plan_points(
        sweep_points(options) if options.is_sweep else [Point(index=0, flags={})],
        load=lambda point: load_from_options(options, point),
        plan=plan_loaded,
        max_parallel=options.max_parallel,
        comparison=None if comparison is None else comparison.name,
        is_sweep=options.is_sweep,
    )
    note(*planned.notes)
    return planned


def settle_afters(options: JobOptions, planned: PlannedSubmission) -> list[Dependency]:
    """Return what the scheduler has to wait for; on this machine, wait."""
    if not options.after:
        return []
    from hpcdist.submission.dependencies import find_afters, settle

    scheduler = planned.only_scheduler("--after")
    return settle(find_afters(options.runs, options.after), scheduler, note=note)


def _submit_here(options: JobOptions, *, as_json: bool) -> int:
    from hpcdist.schedulers import find_allocation
    from hpcdist.submission.plan import PlannedSubmission, plan_run

    if options.is_sweep or options.max_parallel or options.after or options.summary_after:
        raise click.UsageError(
            "--here runs one job at once, without --sweep, --repeat, --max-parallel, --after and "
            "--summary-after"
        )
    cluster = cluster_here(options)
    scheduler, allocation = find_allocation(os.environ)
    loaded = load_from_options(options, defaults={"resources.nodes": allocation.num_nodes})
    interrupts = Interrupts()
    with interrupts.handled():
        run = plan_run(
            loaded,
            scheduler=scheduler.name,
            cluster=cluster,
            snapshot=snapshot_from_options(options),
            allocation=allocation,
        )
        planned = PlannedSubmission.of_run(run)
        note(*planned.notes)
        planned.prepare()
        (started,) = _submit(planned, options, interrupts).runs
        return follow_run(started, scheduler.name, interrupts, as_json=as_json, owned=True)


def _submit(
    planned: PlannedSubmission,
    options: JobOptions,
    interrupts: Interrupts,
    dependencies: Sequence[Dependency] = (),
) -> Submission:
    from hpcdist.submission.submit import submit

    interrupts.defer()  # until the caller knows the runs, and can end them
    submitted = submit(
        planned,
        runs=options.runs,
        dependencies=dependencies,
        summary_after=options.summary_after,
    )
    note(*submitted.messages)
    return submitted


def _report_earlier(submitted: Sequence[Run], *, wait: bool, as_json: bool) -> int:
    """Report what was submitted before a laptop's connection broke, and on request its end."""
    from hpcdist.monitor.states import EndWatch, exit_code_of_all

    if unclear := [run for run in submitted if run.read_submission() is None]:
        raise SchedulerError(
            (
                f"run {unclear[0].id} was being submitted when this host stopped: its "
                "scheduler may or may not have it"
            ),
            hint=f"check with: hpcdist status {name_to_type(unclear[0].path)}",
        )
    interrupts = Interrupts()
    place = submitted[0].read_sweep_place()
    name = submitted[0].id if place is None else str(place.id)
    with interrupts.handled():
        interrupts.defer()
        scheduler = submitted[0].read_scheduler() or ""
        if place is None and wait:
            return follow_run(submitted[0], scheduler, interrupts, as_json=as_json, owned=False)
        if place is None:
            _report_run(submitted[0], scheduler, as_json=as_json)
            return 0
        if as_json:
            print_json({"sweep": name, "runs": [describe_end(run, scheduler) for run in submitted]})
        else:
            print(name, flush=True)
        if not wait:
            return 0
        verdicts = EndWatch(submitted).wait(check=interrupts.check)
    return exit_code_of_all(verdicts.values())


def _note_summary(submitted: Submission) -> None:
    if submitted.summary_job_id is not None:
        file = submitted.places.path / "summary.txt"
        note(f"job {submitted.summary_job_id} will write {file}")


def _report_run(run: Run, scheduler: str, *, as_json: bool) -> None:
    if as_json:
        print_json(describe_end(run, scheduler))
        return
    from hpcdist.schedulers import runs_here

    print(run.id)
    job_id = run.read_job_id()
    job = f" as job {job_id}" if job_id and not runs_here(scheduler) else ""
    where = one_line(str(run.path))
    print(f"submitted to {scheduler}{job}; its directory is {where}", file=sys.stderr)
    for verb in ("status", "logs --follow", "cancel"):
        print(f"  hpcdist {verb} {name_to_type(run.path)}", file=sys.stderr)


def _report_sweep(
    planned: PlannedSubmission,
    submitted: Submission,
    interrupts: Interrupts,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    if not as_json:
        print(submitted.id, flush=True)
        _print_sweep(planned, submitted)
    verdicts: dict[str, Verdict] = {}
    code: int | None = None
    if planned.points_here():
        code = run_points_here(submitted, interrupts, as_json=as_json)
    if wait and code != EXIT_INTERRUPTED:
        verdicts, code_of_all = wait_for_sweep(planned, submitted, interrupts, as_json=as_json)
        code = code or code_of_all
    if as_json:
        print_json(
            describe_sweep(planned, submitted.places, verdicts)
            | {
                "exit_code": code,
                "jobs": [{"name": job.name, "job_id": job.job_id} for job in submitted.jobs],
                "summary_job_id": submitted.summary_job_id,
            }
        )
    if not wait:
        interrupts.check()
    return code or 0


def _print_sweep(planned: PlannedSubmission, submitted: Submission) -> None:
    here = set(planned.points_here())
    listed = [
        (run, point)
        for run, point in zip(submitted.runs, planned.points, strict=True)
        if point.index not in here
    ]
    num_runs, num_jobs = len(listed), len(submitted.jobs)
    jobs = "1 job" if num_jobs == 1 else f"{num_jobs} jobs"
    queues = dict.fromkeys(run.scheduler.name for run in planned.runs if run.scheduler.has_queue)
    say(f"{num_runs} runs submitted to {', '.join(queues)}, as {jobs}:")
    rows = [
        (run.id, str(run.read_job_id()), one_line(point.label))
        for run, point in listed[:_LISTED_POINTS]
    ]
    print_columns(("RUN", "JOB ID", "POINT"), rows, file=sys.stderr)
    if num_runs > _LISTED_POINTS:
        say(f"... and {num_runs - _LISTED_POINTS} more")
    if planned.max_parallel is not None and planned.max_parallel < num_jobs:
        note(
            f"--max-parallel {planned.max_parallel}: jobs of different sizes wait for "
            "each other, because the limit applies to all of them together"
        )
    _note_summary(submitted)
    for verb in ("status", "summary", "cancel"):
        say(f"  hpcdist {verb} {name_to_type(submitted.places.path)}")
