"""`hpcdist submit`: from a job to its runs, and on request to their ends."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from hpcdist.base.errors import EXIT_DONE, EXIT_INTERRUPTED, SchedulerError
from hpcdist.base.text import number_of
from hpcdist.cli import follow
from hpcdist.cli.follow import Interrupts, follow_run
from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import JOB_OPTIONS, JobOptions, how_to_follow, job_options, json_option
from hpcdist.cli.printing import note, print_json, say
from hpcdist.runs.run import Run, check_own, find_run, name_to_type

if TYPE_CHECKING:
    from hpcdist.schedulers.base import Dependency
    from hpcdist.submission.plan import PlannedSubmission


@click.command(cls=JobCommand)
@job_options(*JOB_OPTIONS)
@how_to_follow
@click.option(
    "--here",
    is_flag=True,
    help="Run in the allocation of this shell (salloc, qsub -I), and follow it.",
)
@click.option(
    "--in",
    "within",
    metavar="DEV",
    help="Run in the nodes that `hpcdist dev` holds, and follow it.",
)
@json_option
def submit(
    *,
    options: JobOptions,
    wait: bool,
    detach: bool,
    here: bool,
    within: str | None,
    as_json: bool,
) -> int:
    """Submit a job: a name from `hpcdist jobs`, a job file (.yaml), or a Python script; with
    -m, a module; with --no-python, any program.

    \b
    hpcdist submit ddp --gpus 2                    on the cluster; returns at once
    hpcdist submit ddp --gpus 2 --wait             ... and follows it to its end
    hpcdist submit ddp --nodes 2 --gpus 2 --local  here, 2 simulated nodes
    hpcdist submit ddp --here                      in the allocation of this shell
    hpcdist submit ddp --in dev                    in what hpcdist dev holds
    hpcdist submit ddp --set train.lr=0.01         any key of the job, changed
    hpcdist submit ddp --sweep "nodes=1,2 train.lr=0.1,0.01" --repeat 3
        12 runs
    hpcdist submit train.py --gpus 4 -- --lr 0.1   a script, as for torchrun
    hpcdist submit -m package.train -- --lr 0.1    a module
    hpcdist submit --no-python ./program -- -n 3   a program in any language

    With --here, a run is on all nodes of the allocation if neither the job nor --nodes says how
    many.

    On a cluster, a script runs from a copy of the git work tree, including changes that are not
    committed, so what you edit after submitting does not change queued jobs.

    Ctrl-C ends a run that was started with --local, --here or --in; with --detach it goes on.
    A run on a cluster continues; `hpcdist cancel` ends it.
    """
    from hpcdist.planning.when import foresee, start_sentence
    from hpcdist.schedulers.base import Start
    from hpcdist.submission.submit import begin, submitted_before
    from hpcdist.submission.submit import submit as hand_over

    interrupts = Interrupts()
    dev = None if within is None else find_run(options.runs, within)
    if dev is not None:  # runs in its nodes stand beside it
        options = replace(options, runs=dev.path.parent)
    if (earlier := submitted_before(options.runs)) is not None:
        with interrupts.handled():
            interrupts.defer()
            return _report_earlier(earlier, interrupts, wait=wait, as_json=as_json)
    _check_options(options, wait=wait, detach=detach, here=here, within=within)
    owned = here or ((options.local or within is not None) and not detach)
    with interrupts.handled():
        is_held = here or within is not None
        planned = _plan_in(options, dev) if is_held else plan(options)
        dependencies = settle_afters(options, planned)
        planned.prepare()  # may be interrupted
        interrupts.defer()  # from here on the runs are to be known, and can be ended
        if planned.is_run_here:  # they wait here
            planned = begin(planned, options.runs)
        else:
            start = Start()
            if not (is_held or planned.is_sweep or options.after):  # else the answer would mislead
                start, foreseen = foresee(planned.plans[0], options.runs)
                planned = replace(planned, plans=[replace(planned.plans[0], foreseen=foreseen)])
            planned = hand_over(planned, runs=options.runs, dependencies=dependencies)
            note(*planned.messages)
            if planned.scheduler.has_queue and (text := start_sentence(start, time.time())):
                note(f"start: {text}")
        if planned.is_sweep:
            return _see_sweep(planned, interrupts, wait=wait, as_json=as_json)
        (run,) = planned.runs
        if owned or wait:
            return follow_run(run, interrupts, as_json=as_json, owned=owned)
        report_run(run, as_json=as_json)
        interrupts.check()
        return EXIT_DONE


def _check_options(
    options: JobOptions, *, wait: bool, detach: bool, here: bool, within: str | None
) -> None:
    if here and within is not None:
        raise click.UsageError("--here and --in contradict each other")
    if detach and (wait or here):
        other = "--wait" if wait else "--here"
        raise click.UsageError(f"--detach and {other} contradict each other")
    if detach and options.is_sweep and options.local:
        raise click.UsageError("--detach is for one run: this command starts the runs of a sweep")
    if options.max_parallel and not options.is_sweep:
        raise click.UsageError("--max-parallel is for the runs of a --sweep or --repeat")


def plan(options: JobOptions) -> PlannedSubmission:
    """Check and plan every run that the options describe, and print the notes on them."""
    from hpcdist.submission.plan import plan_points

    comparison, points = options.comparison, options.points()
    scheduler, cluster = options.choose_cluster()
    planned = plan_points(
        points,
        load=options.load,
        scheduler=scheduler,
        cluster=cluster,
        snapshot=options.snapshot,
        runs=options.runs,
        max_parallel=options.max_parallel,
        comparison=None if comparison is None else comparison.name,
        is_sweep=options.is_sweep,
        same_seed=options.same_seed,
    )
    note(*planned.notes)
    return planned


def _plan_in(options: JobOptions, dev: Run | None) -> PlannedSubmission:
    """Plan a run in the allocation of a dev run; None: in that of this shell."""
    from hpcdist.schedulers import find_allocation, load_scheduler
    from hpcdist.schedulers.held import allocation_of
    from hpcdist.submission.plan import PlannedSubmission, plan_run

    option = "--here" if dev is None else "--in"
    cluster = options.cluster_here(option)
    if dev is None:
        scheduler, allocation = find_allocation(os.environ)
    else:
        check_own(dev.path, "submit --in")
        allocation = allocation_of(dev)
        scheduler = load_scheduler(str(dev.read_scheduler()))
    if options.scheduler not in {None, "auto", scheduler.name}:
        raise click.UsageError(f"{option} is in a job of {scheduler.title}")
    run = plan_run(
        options.load(nodes=allocation.num_nodes),
        scheduler=scheduler.name,
        cluster=cluster,
        snapshot=options.snapshot,
        runs=options.runs,
        allocation=allocation,
    )
    note(*run.notes)
    return PlannedSubmission(plans=[run])


def settle_afters(options: JobOptions, planned: PlannedSubmission) -> list[Dependency]:
    """Return what the scheduler has to wait for; on this machine, wait."""
    if not options.after:
        return []
    from hpcdist.submission.dependencies import find_after, settle

    afters = [find_after(options.runs, text) for text in options.after]
    return settle(afters, planned.scheduler, note=note)


def _see_sweep(
    sweep: PlannedSubmission, interrupts: Interrupts, *, wait: bool, as_json: bool
) -> int:
    """Run the points that are for this machine, or wait for a scheduler where the user wants to;
    report what there is then."""
    path, is_here = sweep.path, sweep.is_run_here
    if not as_json:
        print(sweep.id, flush=True)
        if not is_here:
            ids = ", ".join(job.job_id for job in sweep.jobs)
            jobs = f"{number_of(len(sweep.jobs), 'job')}: {ids}"
            say(f"{len(sweep.runs)} runs submitted to {sweep.scheduler.name}, as {jobs}")
            _name_verbs(path, "status", "summary", "cancel")
    code: int | None = None
    if is_here:
        code = follow.run_points(sweep, interrupts, as_json=as_json)
    elif wait:
        code = follow.wait_for_sweep(sweep.runs, path, interrupts)
    begun = [run for run in sweep.runs if run.path.exists()]
    has_ended = begun and (is_here or code not in (None, EXIT_INTERRUPTED))
    if has_ended and sweep.comparison:
        follow.print_summary(begun, path, as_json=as_json)
    elif has_ended and code == EXIT_DONE and not as_json:
        follow.name_summary(path)
    if as_json:
        print_json(_describe_sweep(sweep) | {"exit_code": code})
    if code is None:
        interrupts.check()
    return code or EXIT_DONE


def _describe_sweep(sweep: PlannedSubmission) -> dict[str, Any]:
    """Return what --json prints of a sweep."""
    described = []
    for run, point in zip(sweep.runs, sweep.points, strict=True):
        begun = run if run.path.exists() else None
        told: dict[str, Any] = {"run": begun and run.id, "path": begun and run.path}
        told |= {"point": point.values, "repeat": point.repeat, "job_id": run.read_job_id()}
        described.append(told | {"verdict": run.read_verdict()})
    return {
        "sweep": sweep.id,
        "path": sweep.path,
        "scheduler": sweep.scheduler.name,
        "runs": described,
        "jobs": [{"name": job.target.name, "job_id": job.job_id} for job in sweep.jobs],
    }


def _report_earlier(
    runs: Sequence[Run], interrupts: Interrupts, *, wait: bool, as_json: bool
) -> int:
    """Report what was submitted before a laptop's connection broke, and on request its end."""
    if unclear := [run for run in runs if run.read_submission() is None]:
        raise SchedulerError(
            f"run {unclear[0].id} was being submitted when this host stopped: its "
            "scheduler may or may not have it",
            hint=f"check with: hpcdist status {name_to_type(unclear[0].path)}",
        )
    place = runs[0].spec.sweep
    if place is None and wait:
        return follow_run(runs[0], interrupts, as_json=as_json, owned=False)
    if place is None:
        report_run(runs[0], as_json=as_json)
        return EXIT_DONE
    if as_json:
        print_json({"sweep": place.id, "runs": [follow.describe_end(run) for run in runs]})
    else:
        print(place.id, flush=True)
    path = runs[0].path.parent / str(place.id)
    return follow.wait_for_sweep(runs, path, interrupts) if wait else EXIT_DONE


def report_run(run: Run, *, as_json: bool) -> None:
    """Print the id of a run that goes on by itself, and the commands for it."""
    if as_json:
        print_json(follow.describe_end(run))
        return
    from hpcdist.schedulers import runs_here

    print(run.id, flush=True)
    scheduler, job_id = run.read_scheduler() or "", run.read_job_id()
    job = f" as job {job_id}" if job_id and not runs_here(scheduler) else ""
    say(f"submitted to {scheduler}{job}; its directory is {run.path}")
    _name_verbs(run.path, "status", "logs --follow", "cancel")


def _name_verbs(path: Path, *verbs: str) -> None:
    for verb in verbs:
        say(f"  hpcdist {verb} {name_to_type(path)}")
