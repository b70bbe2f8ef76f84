"""`hpcdist submit`: from a job to its runs, and on request to their ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hpcdist.base.errors import EXIT_DONE, EXIT_INTERRUPTED, SchedulerError
from hpcdist.base.text import number_of, one_line
from hpcdist.cli.follow import (
    Interrupts,
    describe_end,
    follow_run,
    name_summary,
    print_summary,
    run_points,
    wait_for_sweep,
)
from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import (
    JobOptions,
    cluster_from_options,
    cluster_here,
    detach_option,
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
    from hpcdist.schedulers.base import Dependency
    from hpcdist.submission.plan import PlannedRun, PlannedSubmission
    from hpcdist.submission.points import Point
    from hpcdist.submission.submit import Submission

_LISTED_POINTS = 40
"""A longer table would push what comes before it off the screen."""


@click.command(cls=JobCommand)
@job_options()
@click.option("--wait", is_flag=True, help="Follow the run, and end with its exit code.")
@detach_option
@click.option(
    "--here",
    is_flag=True,
    help="Run in the allocation of this shell (salloc, qsub -I), and follow it.",
)
@json_option
def submit(*, options: JobOptions, wait: bool, detach: bool, here: bool, as_json: bool) -> int:
    """Submit a job: a name from `hpcdist jobs`, a job file (.yaml), a Python script, or a folder
    with a __main__.py; with -m, a module; with --no-python, any program.

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

    Ctrl-C ends a run that was started with --local or --here; with --detach it goes on by itself.
    A run on a cluster continues; `hpcdist cancel` ends it.
    """
    announce_waits(note)
    if (earlier := submitted_before(options.runs)) is not None:
        return _report_earlier(earlier, wait=wait, as_json=as_json)
    _check_options(options, wait=wait, detach=detach, here=here)
    if here:
        return _submit_here(options, as_json=as_json)
    follows = (options.local and not detach) or wait
    interrupts = Interrupts()
    with interrupts.handled():
        planned = plan(options)
        if not planned.has_queue and options.summary_after and not (follows or planned.is_sweep):
            raise click.UsageError("--summary-after on this machine needs --local or --wait")
        dependencies = settle_afters(options, planned)
        if options.after:
            planned = planned.now()  # this machine may look otherwise after the waiting
        planned.prepare()  # may be interrupted
        if planned.is_sweep:
            return _submit_sweep(
                planned, options, interrupts, dependencies, wait=wait, as_json=as_json
            )
        submitted = _submit(planned, options, interrupts, dependencies)
        (run,) = submitted.runs
        if not follows:
            report_run(run, as_json=as_json)
            interrupts.check()
            return EXIT_DONE
        return follow_run(
            run,
            interrupts,
            as_json=as_json,
            owned=options.local and not detach,
            with_summary=options.summary_after,
        )


def _check_options(options: JobOptions, *, wait: bool, detach: bool, here: bool) -> None:
    others = (options.is_sweep, options.max_parallel, options.after, options.summary_after, detach)
    if here and any(others):
        raise click.UsageError(
            "--here runs one job at once, without --sweep, --repeat, --max-parallel, --after, "
            "--summary-after and --detach"
        )
    if detach and wait:
        raise click.UsageError("--detach and --wait contradict each other")
    if detach and options.is_sweep and options.local:
        raise click.UsageError("--detach is for one run: this command starts the runs of a sweep")
    if options.max_parallel and not options.is_sweep:
        raise click.UsageError("--max-parallel is for the runs of a --sweep or --repeat")


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
        same_seed=options.same_seed,
    )
    note(*planned.notes)
    return planned


def settle_afters(options: JobOptions, planned: PlannedSubmission) -> list[Dependency]:
    """Return what the scheduler has to wait for; on this machine, wait."""
    if not options.after:
        return []
    from hpcdist.submission.dependencies import find_afters, settle

    return settle(find_afters(options.runs, options.after), planned.scheduler, note=note)


def _submit_here(options: JobOptions, *, as_json: bool) -> int:
    from hpcdist.schedulers import find_allocation
    from hpcdist.submission.plan import PlannedSubmission, plan_run

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
        return follow_run(started, interrupts, as_json=as_json, owned=True)


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
    if submitted.summary_job_id is not None:
        file = submitted.path / "summary.txt"
        note(f"job {submitted.summary_job_id} will write {file}")
    return submitted


def _submit_sweep(
    planned: PlannedSubmission,
    options: JobOptions,
    interrupts: Interrupts,
    dependencies: Sequence[Dependency],
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit a sweep, run the points that are for this machine, and wait where the user wants
    to."""
    from hpcdist.submission.submit import Submission

    submitted: Submission | None = None
    interrupts.defer()
    if planned.has_queue:
        places = submitted = _submit(planned, options, interrupts, dependencies)
    else:
        places = Submission(planned, options.runs)
    if not as_json:
        print(places.id, flush=True)
        if submitted is not None:
            _print_sweep(planned, submitted)
    code: int | None = None
    if planned.points_here():
        code = run_points(places, interrupts, as_json=as_json)
    begun = [run for run in places.runs if run.path.exists()]
    if submitted is not None and wait and code != EXIT_INTERRUPTED:
        waited = wait_for_sweep(begun, places.path, interrupts)
        code = code or waited
    has_ended = begun and (submitted is None or (wait and code != EXIT_INTERRUPTED))
    if has_ended and (planned.comparison or options.summary_after):
        print_summary(begun, places.path, as_json=as_json)
    elif has_ended and code == EXIT_DONE and not as_json:
        name_summary(places.path)
    if as_json:
        print_json(_describe_sweep(places) | {"exit_code": code})
    if submitted is not None and not wait:
        interrupts.check()
    return code or EXIT_DONE


def _describe_sweep(places: Submission) -> dict[str, Any]:
    """Return what --json prints of a sweep."""
    jobs = zip(places.jobs, places.job_ids, strict=True)
    return {
        "sweep": places.id,
        "path": str(places.path),
        "scheduler": places.planned.scheduler.name,
        "runs": [
            {
                "run": run.id if run.path.exists() else None,
                "path": str(run.path) if run.path.exists() else None,
                "point": point.values,
                "repeat": point.repeat,
                "job_id": run.read_job_id(),
                "verdict": msgspec.to_builtins(run.read_verdict()),
            }
            for run, point in zip(places.runs, places.planned.points, strict=True)
        ],
        "jobs": [{"name": job.target.name, "job_id": job_id} for job, job_id in jobs],
        "summary_job_id": places.summary_job_id,
    }


def _print_sweep(planned: PlannedSubmission, submitted: Submission) -> None:
    here = set(planned.points_here())
    pairs = zip(submitted.runs, planned.points, strict=True)
    listed = [(run, point) for run, point in pairs if point.index not in here]
    num_jobs = len(submitted.jobs)
    queues = dict.fromkeys(run.scheduler.name for run in planned.plans if run.scheduler.has_queue)
    jobs = number_of(num_jobs, "job")
    say(f"{len(listed)} runs submitted to {', '.join(queues)}, as {jobs}:")
    rows = [
        (run.id, str(run.read_job_id()), one_line(point.label))
        for run, point in listed[:_LISTED_POINTS]
    ]
    print_columns(("RUN", "JOB ID", "POINT"), rows, is_error=True)
    if len(listed) > _LISTED_POINTS:
        say(f"... and {len(listed) - _LISTED_POINTS} more")
    if planned.max_parallel is not None and planned.max_parallel < num_jobs:
        note(
            f"--max-parallel {planned.max_parallel}: jobs of different sizes wait for "
            "each other, because the limit applies to all of them together"
        )
    for verb in ("status", "summary", "cancel"):
        say(f"  hpcdist {verb} {name_to_type(submitted.path)}")


def _report_earlier(submitted: Sequence[Run], *, wait: bool, as_json: bool) -> int:
    """Report what was submitted before a laptop's connection broke, and on request its end."""
    if unclear := [run for run in submitted if run.read_submission() is None]:
        raise SchedulerError(
            f"run {unclear[0].id} was being submitted when this host stopped: its "
            "scheduler may or may not have it",
            hint=f"check with: hpcdist status {name_to_type(unclear[0].path)}",
        )
    interrupts = Interrupts()
    place = submitted[0].read_sweep_place()
    with interrupts.handled():
        interrupts.defer()
        if place is None and wait:
            return follow_run(submitted[0], interrupts, as_json=as_json, owned=False)
        if place is None:
            report_run(submitted[0], as_json=as_json)
        elif as_json:
            print_json({"sweep": place.id, "runs": [describe_end(run) for run in submitted]})
        else:
            print(place.id, flush=True)
        path = submitted[0].path.parent / str(place and place.id)
        return wait_for_sweep(submitted, path, interrupts) if wait else EXIT_DONE


def report_run(run: Run, *, as_json: bool) -> None:
    """Print the id of a run that goes on by itself, and the commands for it."""
    if as_json:
        print_json(describe_end(run))
        return
    from hpcdist.schedulers import runs_here

    print(run.id, flush=True)
    scheduler, job_id = run.read_scheduler() or "", run.read_job_id()
    job = f" as job {job_id}" if job_id and not runs_here(scheduler) else ""
    say(f"submitted to {scheduler}{job}; its directory is {run.path}")
    for verb in ("status", "logs --follow", "cancel"):
        say(f"  hpcdist {verb} {name_to_type(run.path)}")
