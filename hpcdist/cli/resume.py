"""`hpcdist resume`: a run that ended before its work was done goes on from its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.cli.follow import Interrupts, describe_end, follow_run
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import flags_of, host_option, json_option, run_argument, runs_option
from hpcdist.cli.printing import note, print_json, say
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.machine.command import announce_waits
from hpcdist.runs.run import Run, find_run, name_to_type

if TYPE_CHECKING:
    from hpcdist.job import Flag
    from hpcdist.submission.resume import Ended


@click.command(cls=HostCommand)
@run_argument
@click.option("--wait", is_flag=True, help="Follow the run, and end with its exit code.")
@click.option(
    "--local", is_flag=True, help="Follow a run on this machine; it ends with this command."
)
@click.option(
    "--time", "time_limit", metavar="T", help="Time limit: minutes, H:MM:SS or D-HH:MM:SS."
)
@click.option("--partition", metavar="P", help="Partition (Slurm) or queue (LSF, PBS).")
@click.option(
    "--set",
    "overrides",
    metavar="KEY.PATH=VALUE",
    multiple=True,
    help="Set a key of the job: resources.time_limit_min, mem_gb or cpus_per_gpu, any of launch, "
    "and how often checkpoints are saved.",
)
@host_option
@runs_option
@json_option
def resume(
    *,
    run_name: str,
    wait: bool,
    local: bool,
    time_limit: str | None,
    partition: str | None,
    overrides: tuple[str, ...],
    runs: Path,
    as_json: bool,
) -> int:
    """Continue a run that failed, was cancelled, stopped or lost, from its last checkpoint.

    \b
    hpcdist resume last --wait
    hpcdist resume RUN --time 12:00:00 --set resources.mem_gb=64

    The run continues in its directory as another job of the scheduler, with the code and the job
    file that it was submitted with. If it has saved no checkpoint, it starts from the beginning.
    On Azure, a new run starts from the checkpoint. With --local, the run ends when this command
    ends.
    """
    from hpcdist.schedulers import load_scheduler
    from hpcdist.submission.resume import look_at

    announce_waits(note)
    run = find_run(runs, run_name)
    flags = flags_of(time_limit, overrides)
    ended = look_at(run)
    scheduler = load_scheduler(str(run.read_scheduler()))
    if local and scheduler.name != LOCAL:
        raise click.UsageError(
            f"--local is for runs on this machine, and {run.id} is on {scheduler.title}: "
            "omit it, or use --wait"
        )
    interrupts = Interrupts()
    with interrupts.handled():
        begin = run.newest_attempt() + 1
        if scheduler.shares_files:
            _go_on(run, ended, flags, partition, interrupts)
        else:
            run, begin = _start_from(run, flags, partition, interrupts), 0
        if wait or local:
            return follow_run(
                run, scheduler.name, interrupts, as_json=as_json, owned=local, first_attempt=begin
            )
    if as_json:
        print_json(describe_end(run, scheduler.name))
    else:
        print(run.id)
        for verb in ("status", "logs --follow", "cancel"):
            say(f"  hpcdist {verb} {name_to_type(run.path)}")
    return 0


def _go_on(
    run: Run,
    ended: Ended,
    flags: Mapping[str, Flag],
    partition: str | None,
    interrupts: Interrupts,
) -> None:
    """Start the next life of a run, in its directory."""
    from hpcdist.submission.resume import plan_resume, resume, sentence

    here = Path.cwd()
    try:
        planned = plan_resume(run, ended, flags, partition=partition)
        note(*planned.notes)
        planned.prepare()
        interrupts.defer()
        said = resume(run, ended, planned)
    finally:
        os.chdir(here)  # planning went to the run's: the commands that are printed are typed here
    say(sentence(run, ended))
    note(*said)


def _start_from(
    run: Run, flags: Mapping[str, Flag], partition: str | None, interrupts: Interrupts
) -> Run:
    """Bring home what a run saved elsewhere, and start another run from it; return that one."""
    from hpcdist.cli.fetch import fetch_run
    from hpcdist.submission.resume import (
        look_at,
        plan_resume,
        sentence,
        starting_from,
        submit_from,
    )

    fetch_run(run, is_named=True, with_checkpoints=True)
    ended = look_at(run)
    planned = plan_resume(run, starting_from(ended, run), flags, partition=partition)
    note(*planned.notes)
    interrupts.defer()
    submitted = submit_from(run, ended, planned)
    say(f"{sentence(run, ended)}: as run {submitted.id}")
    note(*submitted.messages)
    return submitted.runs[0]
