"""`hpcdist cancel`: end runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import click

from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option, named_runs, runs_option
from hpcdist.cli.printing import note, print_json, say
from hpcdist.machine.command import announce_waits
from hpcdist.runs.run import Run, check_own


@click.command(cls=HostCommand)
@click.argument("run_names", metavar="RUN...", nargs=-1, required=True)
@host_option
@runs_option
@json_option
def cancel(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """End runs, and wait until none of their processes is left. A sweep's id stands for all of its
    runs."""
    from hpcdist.monitor.states import OPEN_STATES, run_states
    from hpcdist.runs.sweep import Sweep, find_named
    from hpcdist.schedulers import load_scheduler

    announce_waits(note)
    sweeps = [one for name in run_names if isinstance(one := find_named(runs, name), Sweep)]
    named_list = named_runs(runs, run_names)
    for path in [sweep.path for sweep in sweeps] + [run.path for run in named_list]:
        check_own(path, "cancel")
    for sweep in sweeps:
        sweep.ask_to_cancel()
    before = run_states(named_list)
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in named_list:
        if before[run.id] in OPEN_STATES:
            scheduler = run.read_scheduler()
            assert scheduler is not None  # or it would be lost
            by_scheduler[scheduler].append(run)
    for scheduler, theirs in by_scheduler.items():
        load_scheduler(scheduler).cancel(theirs)
    after = run_states(named_list)
    if as_json:
        print_json(
            [
                {"run": run.id, "state_before": before[run.id], "state": after[run.id]}
                for run in named_list
            ]
        )
        return
    for run in named_list:
        had_ended = before[run.id] == after[run.id]
        words = f" had ended already: {before[run.id]}" if had_ended else f": {after[run.id]}"
        say(f"run {run.id}{words}")
