"""`hpcdist resume`: a run that ended before its work was done goes on from its checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.cli.follow import Interrupts, follow_run
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import (
    RESUME_OPTIONS,
    about_runs,
    flags_of,
    how_to_follow,
    run_argument,
    with_options,
)
from hpcdist.cli.printing import note, say
from hpcdist.cli.submit import report_run
from hpcdist.runs.run import find_run


@click.command(cls=HostCommand)
@run_argument
@how_to_follow
@with_options(*RESUME_OPTIONS)
@about_runs
def resume(
    *,
    run_name: str,
    wait: bool,
    detach: bool,
    time_limit: str | None,
    overrides: tuple[str, ...],
    runs: Path,
    as_json: bool,
) -> int:
    """Continue a run that failed, was cancelled, stopped or lost, from its last checkpoint.

    \b
    hpcdist resume last --wait
    hpcdist resume RUN --time 12:00:00 --set resources.mem_gb=64

    --set changes resources.time_limit_min, mem_gb or cpus_per_gpu, any key of launch, and how often
    checkpoints are saved.

    The run continues in its directory as another job of the scheduler, with the code and the job
    file that it was submitted with. If it has saved no checkpoint, it starts from the beginning.
    On Azure, a new run starts from the checkpoint. A run on this machine is followed, and ends when
    this command ends, but with --detach.
    """
    from hpcdist.schedulers import load_scheduler, runs_here
    from hpcdist.submission import resume as resuming
    from hpcdist.submission.plan import PlannedSubmission
    from hpcdist.submission.submit import submit

    run = find_run(runs, run_name)
    flags = flags_of(time_limit, overrides)
    ended = resuming.look_at(run)
    scheduler = load_scheduler(str(run.read_scheduler()))
    is_owned = runs_here(scheduler.name) and not detach
    interrupts = Interrupts()
    with interrupts.handled():
        begin = run.newest_attempt() + 1
        if scheduler.shares_files:
            here = Path.cwd()
            try:
                planned = resuming.plan_resume(run, ended, flags)
                note(*planned.notes)
                planned.prepare()
                interrupts.defer()
                said = resuming.resume(run, ended, planned)
            finally:
                os.chdir(here)  # planning went to the run's: the next commands are typed here
            say(resuming.sentence(run, ended))
            note(*said)
        else:
            # Bring home what it saved elsewhere, and start another run from it.
            try:
                scheduler.fetch(run, with_checkpoints=True)
            except OSError as error:
                message = f"run {run.id} cannot be downloaded: {files.reason(error)}"
                raise SchedulerError(message, hint="type it again: it goes on there") from None
            ended = resuming.look_at(run)
            planned = resuming.plan_resume(run, ended, flags)
            note(*planned.notes)
            interrupts.defer()
            submitted = submit(PlannedSubmission(plans=[planned]), runs=run.path.parent)
            say(f"{resuming.sentence(run, ended)}: as run {submitted.id}")
            note(*submitted.messages)
            run, begin = submitted.runs[0], 0
        if wait or is_owned:
            return follow_run(run, interrupts, as_json=as_json, owned=is_owned, first_attempt=begin)
    report_run(run, as_json=as_json)
    return 0
