"""`hpcdist cancel`: end runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcdist.cli.options import json_option, named_runs, runs_option
from hpcdist.cli.printing import print_json
from hpcdist.run import Run
from hpcdist.verdict import State


@click.command
@click.argument("run_names", metavar="RUN...", nargs=-1, required=True)
@runs_option
@json_option
def cancel(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """End runs, and wait until nothing of them is left."""
    found = named_runs(runs, run_names)
    ended: list[dict[str, str]] = []
    for run in found:
        before, state = _cancel(run)
        ended.append({"run": run.id, "state_before": before, "state": state})
        if not as_json:
            print(_sentence(run, before, state), file=sys.stderr)
    if as_json:
        print_json(ended)


def _cancel(run: Run) -> tuple[State, State]:
    """The run's state before and after."""
    from hpcdist.schedulers import load_scheduler
    from hpcdist.states import OPEN_STATES, run_states
    from hpcdist.submitted import scheduler_of

    before = run_states([run])[run.id]
    if before not in OPEN_STATES:
        return before, before
    scheduler = scheduler_of(run)
    assert scheduler is not None  # or it would be lost
    load_scheduler(scheduler).cancel([run])
    return before, run_states([run])[run.id]


def _sentence(run: Run, before: State, state: State) -> str:
    if before == state:
        return f"run {run.id} had ended already: {before}"
    return f"run {run.id}: {state}"
