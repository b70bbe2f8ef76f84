"""`hpcdist runs`: what was submitted."""

from __future__ import annotations

from pathlib import Path

import click

from hpcdist.cli.described import describe_run, size
from hpcdist.cli.options import json_option, runs_option
from hpcdist.cli.printing import local_time, note, one_line, print_columns, print_json
from hpcdist.run import all_runs


@click.command(name="runs")
@runs_option
@json_option
def runs(*, runs: Path, as_json: bool) -> None:
    """List all runs, the oldest first, with their states."""
    from hpcdist.states import run_states

    found = all_runs(runs)
    states = run_states(found, warn=note)
    described = [describe_run(run, states[run.id]) for run in found]
    if as_json:
        print_json(described)
        return
    if not found:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
        return
    print_columns(
        ("RUN", "STATE", "SCHEDULER", "NODES x GPUS", "SUBMITTED", "JOB"),
        [
            (
                one_line(run["run"]),
                run["state"],
                run["scheduler"] or "-",
                size(run),
                local_time(run["created_s"]),
                one_line(str(run["job"] or "-")),
            )
            for run in described
        ],
    )
