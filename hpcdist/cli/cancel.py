"""`hpcdist cancel`: end runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import click

from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, named_runs
from hpcdist.cli.printing import note, print_json, say
from hpcdist.cluster.schedulers import SCHEDULERS
from hpcdist.runs.run import Run, check_own


@click.command(cls=HostCommand)
@click.argument("run_names", metavar="RUN...", nargs=-1, required=True)
@about_runs
def cancel(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """End runs, and wait until none of their processes is left. A sweep's id stands for all of its
    runs."""
    from hpcdist.monitor.states import (
        OPEN_STATES,
        end_verdict,
        jobs_left,
        run_conditions,
        run_states,
    )
    from hpcdist.runs.run import Sweep, find_named
    from hpcdist.schedulers import load_scheduler

    sweeps = [one for name in run_names if isinstance(one := find_named(runs, name), Sweep)]
    wanted = named_runs(runs, run_names)
    for path in [each.path for each in sweeps] + [run.path for run in wanted]:
        check_own(path, "cancel")
    for sweep in sweeps:
        sweep.ask_to_cancel()
    conditions = run_conditions(wanted)
    before = {name: condition.state for name, condition in conditions.items()}
    left = jobs_left(wanted, warn=note)
    by_scheduler: dict[str, list[Run]] = defaultdict(list)
    for run in wanted:
        scheduler = run.read_scheduler() or ""
        is_open = before[run.id] in OPEN_STATES
        if not is_open and run.read_verdict() is None and scheduler in SCHEDULERS:
            # What its scheduler lists as ended may come back, and then finds that it is over.
            is_open = load_scheduler(scheduler).has_queue
            run.write_verdict(end_verdict(run, conditions[run.id]))
        if is_open or run.id in left:
            by_scheduler[scheduler].append(run)
    for scheduler, theirs in by_scheduler.items():
        load_scheduler(scheduler).cancel(theirs)
    after = run_states(wanted)
    told = [
        {"run": run.id, "state_before": before[run.id], "state": after[run.id]} for run in wanted
    ]
    if as_json:
        print_json(told)
        return
    for run in wanted:
        had_ended = before[run.id] == after[run.id]
        words = f" had ended already: {before[run.id]}" if had_ended else f": {after[run.id]}"
        if run.id in left:
            title = load_scheduler(str(run.read_scheduler())).title
            words += f"; its job, which {title} still had, is cancelled"
        say(f"run {run.id}{words}")
