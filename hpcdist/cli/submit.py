"""`hpcdist submit`: from a job to a run, and on request to its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.errors import EXIT_INTERRUPTED
from hpcdist.base.text import one_line
from hpcdist.cli.after import print_summary_here, settle, submit_summary
from hpcdist.cli.interrupts import Interrupted, Interrupts
from hpcdist.cli.options import (
    JobOptions,
    cluster_from_options,
    cluster_here,
    job_options,
    json_option,
    load_from_options,
    snapshot_from_options,
)
from hpcdist.cli.printing import note, print_json, say
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    from hpcdist.cluster.load import LoadedProfile
    from hpcdist.job import LoadedJob
    from hpcdist.runs.verdict import Verdict
    from hpcdist.schedulers.base import Dependency
    from hpcdist.submission.single import PlannedSubmission


@click.command
@job_options
@click.option("--wait", is_flag=True, help="Follow the run, and end with its exit code.")
@click.option("--here", is_flag=True, help="Run in this shell's allocation (salloc), and follow.")
@click.option("--debug", is_flag=True, help="Run one rank in this very process, for pdb.")
@json_option
def submit(*, options: JobOptions, wait: bool, here: bool, debug: bool, as_json: bool) -> int:
    """Submit a job: a name from `hpcdist jobs`, a job file (.yaml), a Python script, or a folder or
    zip file with a __main__.py; with -m, a module; with --no-python, any program.

    \b
    hpcdist submit ddp --nodes 2 --gpus 2 --local
        2 simulated nodes with 2 ranks each on this machine, followed to the end
    hpcdist submit ddp --nodes 2 --gpus 2
        the same on the cluster, Slurm or LSF; returns at once, --wait follows it
    hpcdist submit ddp --here --gpus 2
        the same in the allocation of this shell (salloc), at once, on all its nodes if neither
        the job nor --nodes says how many
    hpcdist submit ddp --local --set train.lr=0.01 --set model.name=resnet18
        any key of the job file, changed for this run
    hpcdist submit train.py --nodes 2 --gpus 4 -- --lr 0.1
        a script as torchrun would run it; what follows -- is for the script
    hpcdist submit -m package.train --nodes 2 --gpus 4 -- --lr 0.1
        a module, as torchrun -m would run it
    hpcdist submit --no-python ./program --nodes 2 --gpus 4 -- --lr 0.1
        a program in any language, as torchrun --no-python would execute it in every rank
    hpcdist submit ddp --sweep "nodes=1,2 train.lr=0.1,0.01" --repeat 3
        12 runs: each combination three times; their common id names all of them

    On a cluster a script runs from a copy of the git work tree, changes that are not committed
    included, so that what you edit after submitting changes nothing that is queued.

    Ctrl-C ends a run that was started with --local or --here. A run that was submitted to a
    cluster goes on; `hpcdist cancel` ends it.
    """
    if here:
        return _submit_here(options, debug=debug, as_json=as_json)
    if options.is_sweep:
        from hpcdist.cli.sweeping import submit_sweep

        return submit_sweep(options, wait=wait, debug=debug, as_json=as_json)
    _refuse_what_needs_more(options, debug=debug)
    loaded = load_from_options(options)
    if debug:
        if wait:
            raise click.UsageError("--debug always waits for the run; leave --wait away")
        name, cluster = cluster_from_options(options, debug=True)
        return _debug(loaded, name, cluster, options, as_json=as_json)
    name, cluster = cluster_from_options(options)
    follows = options.local or wait
    interrupts = Interrupts()
    with interrupts.handled():
        planned = _plan(loaded, name, cluster, options)
        name = planned.scheduler.name
        if not planned.scheduler.has_queue and options.summary_after and not follows:
            raise click.UsageError("--summary-after on this machine needs --local or --wait")
        planned, dependencies = settle(options, planned)
        run = _submit(planned, options.runs, interrupts, dependencies)
        if options.summary_after:
            submit_summary(planned, run)
        if not follows:
            _report_submitted(run, name, as_json=as_json)
            interrupts.check()
            return 0
        return _follow_to_end(
            run,
            name,
            interrupts,
            as_json=as_json,
            owned=options.local,
            with_summary=options.summary_after,
        )


def _submit_here(options: JobOptions, *, debug: bool, as_json: bool) -> int:
    from hpcdist.schedulers import find_allocation
    from hpcdist.submission.single import plan_step

    if debug:
        raise click.UsageError("--here and --debug contradict each other")
    if options.is_sweep or options.max_parallel or options.after or options.summary_after:
        raise click.UsageError(
            "--here runs one job at once: leave --sweep, --repeat, --max-parallel, --after and "
            "--summary-after away"
        )
    cluster = cluster_here(options)
    scheduler, allocation = find_allocation(os.environ)
    loaded = load_from_options(options, defaults={"resources.nodes": allocation.num_nodes})
    interrupts = Interrupts()
    with interrupts.handled():
        planned = plan_step(
            loaded,
            allocation,
            scheduler=scheduler,
            cluster=cluster,
            snapshot=snapshot_from_options(options),
        )
        _note_all(planned)
        run = _submit(planned, options.runs, interrupts)
        return _follow_to_end(run, scheduler.name, interrupts, as_json=as_json, owned=True)


def _follow_to_end(
    run: Run,
    scheduler: str,
    interrupts: Interrupts,
    *,
    as_json: bool,
    owned: bool,
    with_summary: bool = False,
) -> int:
    verdict, code = _follow(run, interrupts, as_json=as_json, owned=owned)
    if with_summary and verdict is not None:
        print_summary_here([run], run.path, as_json=as_json)
    if as_json:
        print_json(_described(run, scheduler, verdict, code))
    return code


def _debug(
    loaded: LoadedJob,
    scheduler: str,
    cluster: LoadedProfile,
    options: JobOptions,
    *,
    as_json: bool,
) -> int:
    from hpcdist.submission import single as submission

    num_ranks = loaded.job.resources.nodes * loaded.job.ranks_per_node
    if num_ranks > 1:
        note(f"--debug runs one rank in place of {num_ranks}")
    planned = _plan(submission.one_rank(loaded), scheduler, cluster, options)
    submission.prepare(planned)
    with _stdout_as_stderr() if as_json else nullcontext():
        run, verdict = submission.debug(planned, runs=options.runs, command=sys.argv)
    print(f"debug run {verdict.state}: {one_line(verdict.message)}", file=sys.stderr)
    code = verdict.exit_code_of_run
    if as_json:
        print_json(_described(run, scheduler, verdict, code))
    return code


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """What the rank, and what it starts, prints on stdout goes to stderr: stdout is for JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _refuse_what_needs_more(options: JobOptions, *, debug: bool) -> None:
    """Options without a meaning for one run."""
    if options.max_parallel is not None:
        raise click.UsageError("--max-parallel is for the runs of a --sweep or --repeat")
    if debug and (options.after or options.summary_after):
        raise click.UsageError("--debug runs here and now; leave --after and --summary-after away")


def _plan(
    loaded: LoadedJob, scheduler: str, cluster: LoadedProfile, options: JobOptions
) -> PlannedSubmission:
    from hpcdist.submission.single import plan_submission

    planned = plan_submission(
        loaded, scheduler=scheduler, cluster=cluster, snapshot=snapshot_from_options(options)
    )
    _note_all(planned)
    return planned


def _note_all(planned: PlannedSubmission) -> None:
    for text in planned.notes:
        note(text)


def _submit(
    planned: PlannedSubmission,
    runs: Path,
    interrupts: Interrupts,
    dependencies: Sequence[Dependency] = (),
) -> Run:
    from hpcdist.submission.single import prepare, submit

    prepare(planned)  # may be interrupted
    interrupts.defer()  # until the caller knows the run, and can end it
    submitted = submit(planned, runs=runs, command=sys.argv, dependencies=dependencies)
    for text in submitted.said:
        note(text)
    return submitted.run


def _follow(
    run: Run, interrupts: Interrupts, *, as_json: bool, owned: bool
) -> tuple[Verdict | None, int]:
    """Follow the run to its end; `owned` is a run that must not outlive this command."""
    from hpcdist.monitor.follow.run import end_sentence, follow
    from hpcdist.monitor.follow.screen import Screen

    with closing(Screen(log=sys.stderr if as_json else sys.stdout)) as screen:
        screen.say(f"run {run.id} in {one_line(str(run.path))}")
        try:
            verdict = follow(run, screen, check=interrupts.check)
        except Interrupted:
            screen.close()
            return _interrupted(run, owned=owned), EXIT_INTERRUPTED
        except BaseException:  # such as a closed pipe: the run has lost its reader
            if owned:
                _cancel(run)
            raise
        screen.say(one_line(end_sentence(run, verdict)))
    return verdict, verdict.exit_code_of_run


def _interrupted(run: Run, *, owned: bool) -> Verdict | None:
    if not owned:
        say(f"run {run.id} goes on; end it with: hpcdist cancel {run.id}")
        return None
    _cancel(run)
    say(f"run {run.id} cancelled: interrupted; it is in {one_line(str(run.path))}")
    return run.read_verdict()


def _cancel(run: Run) -> None:
    from hpcdist.cluster.schedulers import LOCAL
    from hpcdist.schedulers import load_scheduler

    load_scheduler(run.read_scheduler() or LOCAL).cancel([run])


def _report_submitted(run: Run, scheduler: str, *, as_json: bool) -> None:
    from hpcdist.schedulers import runs_here

    if as_json:
        print_json(_described(run, scheduler, None, None))
        return
    print(run.id)
    job_id = run.read_job_id()
    job = f" as job {job_id}" if job_id and not runs_here(scheduler) else ""
    where = one_line(str(run.path))
    print(f"submitted to {scheduler}{job}; its directory is {where}", file=sys.stderr)
    for verb in ("status", "logs --follow", "cancel"):
        print(f"  hpcdist {verb} {run.id}", file=sys.stderr)


def _described(
    run: Run, scheduler: str, verdict: Verdict | None, exit_code: int | None
) -> dict[str, Any]:
    import msgspec

    from hpcdist.monitor.states import run_states

    return {
        "run": run.id,
        "path": str(run.path),
        "scheduler": scheduler,
        "job_id": run.read_job_id(),
        "state": run_states([run])[run.id] if verdict is None else verdict.state,
        "exit_code": exit_code,
        "verdict": None if verdict is None else msgspec.to_builtins(verdict),
    }
