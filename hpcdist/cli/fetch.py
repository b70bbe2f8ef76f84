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
from hpcdist.runs.remote import Remote, read_remote
from hpcdist.runs.run import Run, name_to_type


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
    what they need. For a run on a host that ssh reaches, the command downloads what summaries
    need, and prints the command that copies the rest.
    """
    described = []
    errors: list[SchedulerError] = []
    for run in named_runs(runs, run_names):
        try:
            fetched = fetch_run(run, is_named=bool(run_names), with_checkpoints=checkpoints)
        except SchedulerError as error:
            errors.append(error)
            continue
        if fetched is not None:
            described.append(fetched)
    if as_json:
        print_json(described)
    for other in errors[1:]:
        note(other.message)
    if errors:
        raise errors[0]


def fetch_run(run: Run, *, is_named: bool, with_checkpoints: bool) -> dict[str, Any] | None:
    """Bring a run home, and say so; None where there is nothing to bring.

    Raises SchedulerError where it cannot be brought.
    """
    from hpcdist.runs.publishing import fetch as bring
    from hpcdist.schedulers import load_scheduler

    if (remote := read_remote(run)) is not None:
        return _fetch_from_host(run, remote) if is_named else None
    scheduler = run.read_scheduler()
    try:
        source = load_scheduler(scheduler).source_of(run) if scheduler else None
        if source is None:
            if is_named:
                say(f"run {run.id} is here: there is nothing to download")
            return None
        fetched = bring(run, source, with_checkpoints=with_checkpoints)
    except OSError as error:
        raise SchedulerError(
            f"run {run.id} cannot be downloaded: {files.reason(error)}",
            hint="run the command again: it continues there",
        ) from None
    left = ""
    if fetched.num_left:
        what = number_of(fetched.num_left, "file")
        size = show_bytes(fetched.left_bytes)
        left = f"; {what} ({size}), checkpoints and large files, are left out without --checkpoints"
    say(f"run {run.id}: {number_of(fetched.num_files, 'file')} downloaded{left}")
    return {"run": run.id, "path": str(run.path), **fetched._asdict()}


def _fetch_from_host(run: Run, remote: Remote) -> dict[str, Any]:
    """Bring what summaries need of a run at a host, and say how to get the rest."""
    from hpcdist.remote.bring import refresh
    from hpcdist.remote.ssh import Where

    Where.of(run, remote)  # refuses a host that was never named
    if not refresh([run], with_events=True, note=note):
        raise SchedulerError(f"run {run.id} was not downloaded", hint="run the command again")
    there = f"{remote.host}:{remote.runs or f'{remote.folder}/{remote.project}/runs'}/{run.id}"
    say(f"run {run.id} is at {remote.host}; what summaries need of it is here")
    say(f"  hpcdist logs {name_to_type(run.path)}")
    say(f"  rsync -a {shlex.quote(there)} .    # the whole directory, with its checkpoints")
    return {"run": run.id, "path": str(run.path), "source": there}
