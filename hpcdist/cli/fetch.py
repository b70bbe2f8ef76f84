"""`hpcdist fetch`: the run directories of runs elsewhere, brought home."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.base.text import number_of, show_bytes
from hpcdist.cli.options import json_option, named_runs, run_arguments, runs_option
from hpcdist.cli.printing import note, print_json, say
from hpcdist.runs.remote import read_remote
from hpcdist.runs.run import Run


@click.command
@run_arguments
@click.option(
    "--checkpoints", is_flag=True, help="Also download checkpoints and other files above 64 MiB."
)
@runs_option
@json_option
def fetch(*, run_names: tuple[str, ...], checkpoints: bool, runs: Path, as_json: bool) -> None:
    """Download what runs elsewhere have published: their events, logs and verdicts.

    It is for runs of schedulers that share no file system with this machine, such as Azure;
    without RUN, for all of them. Only what is new is downloaded, so you can repeat the command
    while a run is active. After a run has ended, status, summary and the other commands download
    what they need. For a run on a host that ssh reaches, it prints the command that copies it.
    """
    described, errors = [], []
    for run in named_runs(runs, run_names):
        try:
            fetched = fetch_run(run, is_named=bool(run_names), with_checkpoints=checkpoints)
        except SchedulerError as error:
            errors.append(error)
        else:
            described += [] if fetched is None else [fetched]
    if as_json:
        print_json(described)
    note(*(other.message for other in errors[1:]))
    if errors:
        raise errors[0]


def fetch_run(run: Run, *, is_named: bool, with_checkpoints: bool) -> dict[str, Any] | None:
    """Bring a run home, and say so; None where there is nothing to bring.

    Raises SchedulerError where it cannot be brought.
    """
    from hpcdist.schedulers import load_scheduler

    scheduler, remote = run.read_scheduler(), read_remote(run)
    try:
        fetched = None
        if scheduler and not remote:
            fetched = load_scheduler(scheduler).fetch(run, with_checkpoints=with_checkpoints)
    except OSError as error:
        raise SchedulerError(
            f"run {run.id} cannot be downloaded: {files.reason(error)}",
            hint="run the command again: it continues there",
        ) from None
    if fetched is None:
        if is_named and remote:
            there = shlex.quote(f"{remote.host}:{remote.runs}/{run.id}")
            say(f"run {run.id} is at {remote.host}; summaries bring home what they need")
            say(f"  rsync -a {there} .    # the whole directory, with its checkpoints")
        elif is_named:
            say(f"run {run.id} is here: there is nothing to download")
        return None
    left = ""
    if fetched.num_left:
        what = f"{number_of(fetched.num_left, 'file')} ({show_bytes(fetched.left_bytes)})"
        left = f"; {what}, checkpoints and large files, are left out without --checkpoints"
    say(f"run {run.id}: {number_of(fetched.num_files, 'file')} downloaded{left}")
    return {"run": run.id, "path": str(run.path), **fetched._asdict()}
