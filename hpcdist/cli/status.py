"""`hpcdist status`: the state of runs, and how far they have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.text import one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option, named_runs, run_arguments, runs_option
from hpcdist.cli.printing import local_time, note, print_json, print_wrapped
from hpcdist.cli.runs import by_sweep, describe_run, size, states_in_words
from hpcdist.machine.command import announce_waits
from hpcdist.monitor.states import OPEN_STATES, jobs_left, run_conditions, setup_problem
from hpcdist.runs.run import Run, name_to_type

if TYPE_CHECKING:
    from hpcdist.monitor.progress import Progress
    from hpcdist.runs.verdict import Hang
    from hpcdist.schedulers.base import Condition


_REASONED = ("running", "unknown")
_SHOWN_RUNS = 10
"""Number of a sweep's runs that are shown in each state: there may be thousands."""


@click.command(cls=HostCommand)
@run_arguments
@host_option
@runs_option
@json_option
def status(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Show the state of runs, and how far they have come.

    Without RUN, show the runs that have not ended, or else the last one. For a sweep, show the
    runs that are not done.
    """
    import msgspec

    from hpcdist.monitor.progress import RunningRun, seen_nodes

    announce_waits(note)
    candidates = named_runs(runs, run_names)
    conditions = run_conditions(candidates, warn=note)
    listed = candidates
    if not run_names:
        listed = [run for run in listed if conditions[run.id].state in OPEN_STATES] or listed[-1:]
    progress = {run.id: RunningRun(run).look(conditions[run.id]) for run in listed}
    described = [describe_run(run, conditions[run.id]) for run in listed]
    hangs = {run.id: _hang(run, conditions[run.id]) for run in listed}
    if as_json:
        print_json(
            [
                values
                | {
                    "hang": msgspec.to_builtins(hangs[run.id]),
                    "progress": msgspec.to_builtins(progress[run.id]),
                    "expected_start_s": conditions[run.id].expected_start_s,
                    "hosts": []
                    if conditions[run.id].state == "pending"
                    else msgspec.to_builtins(seen_nodes(run)),
                }
                for run, values in zip(listed, described, strict=True)
            ]
        )
        return
    if not listed:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
    from hpcdist.notify import read_last

    left = jobs_left(listed)
    by_id = {run.id: run for run in listed}
    for part in by_sweep(described):
        if len(part) == 1:
            name = part[0]["run"]
            _print(part[0], progress[name])
            _print_line("hang", hang.message if (hang := hangs[name]) else None)
            _print_line("notify", read_last(by_id[name]))
            if name in left and left[name].state == "pending":
                _print_line("job left", _job_left(by_id[name], left[name]))
            _print_place(by_id[name], conditions[name])
        else:
            _print_sweep(part, progress)


def _hang(run: Run, condition: Condition) -> Hang | None:
    """Return what is said of a run that seems to hang."""
    with suppress(OSError):  # the folder is damaged
        return run.read_hang(run.newest_attempt()) if condition.state == "running" else None
    return None


def _job_left(run: Run, condition: Condition) -> str:
    """Say of a job that it has outlived its run."""
    from hpcdist.schedulers import load_scheduler

    why = f" ({condition.reason})" if condition.reason else ""
    title = load_scheduler(str(run.read_scheduler())).title
    return f"{title} still has its job{why}: hpcdist cancel {name_to_type(run.path)} ends it"


def _print_sweep(
    runs: Sequence[Mapping[str, Any]], progress: Mapping[str, Progress | None]
) -> None:
    """Print how many runs are in which state, and the details of those that are not done."""
    states = states_in_words(run["state"] for run in runs)
    print_wrapped(f"{one_line(runs[0]['sweep']['id'])}: {len(runs)} runs, {states}", indent=2)
    for state in dict.fromkeys(run["state"] for run in runs if run["state"] != "done"):
        theirs = [run for run in runs if run["state"] == state]
        if state == "pending" and len(theirs) > 1:
            # There is nothing to tell of each but why it waits.
            reasons = Counter(run["reason"] or "it has not started" for run in theirs)
            for reason, number in reasons.most_common():
                print_wrapped(one_line(reason), first=f"  {number} pending: ", indent=4)
            continue
        for run in theirs[:_SHOWN_RUNS]:
            progress_now = progress[run["run"]]
            place = progress_now and progress_now.sentence(with_pace=state == "running")
            why = run["reason"] if state in OPEN_STATES else run["message"] or run["reason"]
            texts = (state, run["sweep"]["label"], place, why)
            words = ", ".join(text for text in texts if text)
            print_wrapped(one_line(words), first=f"  {one_line(run['run'])}  ", indent=4)
        if len(theirs) > _SHOWN_RUNS:
            print(f"  ... and {len(theirs) - _SHOWN_RUNS} more {state}")


def _print(run: Mapping[str, Any], progress: Progress | None) -> None:
    from hpcdist.schedulers import runs_here

    whose = run["scheduler"] or "-"
    if run["job_id"] and not runs_here(whose):  # by the name that the scheduler's commands take
        whose += f" job {run['job_id']}"
    has_ended = run["state"] not in OPEN_STATES
    explains_end = has_ended and not run["message"]
    lines = {
        "job": f"{run['job'] or '-'}, {size(run)} (nodes x GPUs), {whose}",
        "submitted": local_time(run["created_s"]),
        "progress": (progress and progress.sentence(with_pace=not has_ended)) or None,
        "directory": run["path"],
        "damaged": run["damage"],
        "so far": run["last_attempt"],
        "verdict": run["message"],
        "go on": run["continue_with"],
        # Of one that runs it is what keeps it from running on, such as a suspension.
        "reason": run["reason"] if run["state"] in _REASONED or explains_end else None,
    }
    print(f"{one_line(run['run'])}: {run['state']}")
    for name, value in lines.items():
        _print_line(name, value)


def _print_place(run: Run, condition: Condition) -> None:
    """Print why the run waits, or its nodes and the way by which they reach the first one."""
    from hpcdist.monitor.progress import awaited_nodes, describe_nodes, waiting_sentence

    _print_line("pending", waiting_sentence(condition))
    if condition.state not in OPEN_STATES and run.read_verdict() is None:
        _print_line("job's log", next((str(path) for path in run.job_logs()), None))
    if condition.state == "pending":
        return  # the nodes that are known are those of its life before
    if condition.state == "running" and (problem := setup_problem(run)):
        _print_line("setup", f"a line of the profile's setup failed: {problem}")
    nodes, reached = describe_nodes(run)
    for name, line in zip_longest(["nodes"], nodes, fillvalue=""):
        _print_line(name, line or None)
    if condition.state == "running":
        _print_line(
            "waits for", awaited_nodes(run, num_nodes=run.read_outline().resources.nodes or 1)
        )
    _print_line("node 0 at", reached and f"{reached}, where the ranks meet (MASTER_ADDR)")


def _print_line(name: str, value: str | None) -> None:
    if value is not None:
        before = f"  {name:<10} "
        print_wrapped(one_line(value), first=before, indent=len(before))
