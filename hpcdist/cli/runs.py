"""`hpcdist runs`: what was submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdist.base.text import one_line
from hpcdist.cli.described import by_sweep, describe_run, size, states_in_words
from hpcdist.cli.options import json_option, runs_option
from hpcdist.cli.printing import local_time, note, print_columns, print_json
from hpcdist.runs.run import all_runs


@click.command(name="runs")
@runs_option
@click.option("--all", "every", is_flag=True, help="Give every run of a sweep a line of its own.")
@json_option
def runs(*, runs: Path, every: bool, as_json: bool) -> None:
    """List all runs, the oldest first, with their states; a sweep is one line."""
    from hpcdist.monitor.states import run_conditions

    found = all_runs(runs)
    conditions = run_conditions(found, warn=note)
    described = [
        describe_run(run, conditions[run.id].state, conditions[run.id].reason) for run in found
    ]
    if as_json:
        print_json(described)
        return
    if not found:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
        return
    parts = [[run] for run in described] if every else by_sweep(described)
    print_columns(
        ("RUN", "STATE", "SCHEDULER", "NODES x GPUS", "SUBMITTED", "JOB"),
        [_row(part[0]) if len(part) == 1 else _sweep_row(part) for part in parts],
    )


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    sweep = run["sweep"]
    point = f": {one_line(str(sweep['label']))}" if sweep else ""
    return (
        one_line(run["run"]),
        run["state"],
        run["scheduler"] or "-",
        size(run),
        local_time(run["created_s"]),
        one_line(str(run["job"] or "-")) + point,
    )


def _sweep_row(runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    sizes = list(dict.fromkeys(size(run) for run in runs))
    states = list(dict.fromkeys(run["state"] for run in runs))
    return (
        one_line(runs[0]["sweep"]["id"]),
        states[0] if len(states) == 1 else states_in_words(run["state"] for run in runs),
        runs[0]["scheduler"] or "-",
        sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes",
        local_time(runs[0]["created_s"]),
        _what_sweep(runs),
    )


def _what_sweep(runs: Sequence[Mapping[str, Any]]) -> str:
    comparison = runs[0]["sweep"].get("comparison")
    kind = "comparison" if comparison else "sweep"
    return f"{one_line(str(comparison or runs[0]['job'] or '-'))}, {kind} of {len(runs)} runs"
