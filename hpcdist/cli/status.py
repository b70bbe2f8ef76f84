"""`hpcdist status`: the state of runs, and how far they have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.text import one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, named_runs, run_arguments
from hpcdist.cli.printing import local_time, note, print_fact, print_json, print_wrapped
from hpcdist.cli.runs import by_sweep, describe_run, size, states_in_words
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
@about_runs
def status(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Show the state of runs, and how far they have come.

    Without RUN, show the runs that have not ended, or else the last one. For a sweep, show the
    runs that are not done.
    """
    from hpcdist.monitor.progress import RunningRun, seen_nodes

    candidates = named_runs(runs, run_names)
    conditions = run_conditions(candidates, warn=note)
    listed = candidates
    if not run_names:
        listed = [run for run in listed if conditions[run.id].state in OPEN_STATES] or listed[-1:]
    progress = {run.id: RunningRun(run).look(conditions[run.id]) for run in listed}
    described = [describe_run(run, conditions[run.id]) for run in listed]
    if as_json:
        for run, told in zip(listed, described, strict=True):
            condition = conditions[run.id]
            told["hang"] = _read_hang(run) if condition.state == "running" else None
            told["progress"] = progress[run.id]
            told["hosts"] = [] if condition.state == "pending" else seen_nodes(run)
        print_json(described)
        return
    if not listed:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
    left = jobs_left(listed)
    by_id = {run.id: run for run in listed}
    for part in by_sweep(described):
        if len(part) > 1:
            _print_sweep(part, progress)
        else:
            name = part[0]["run"]
            _print(by_id[name], part[0], conditions[name], left.get(name), progress[name])


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
                print_fact(f"  {number} pending: ", reason)
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


def _print(
    run: Run,
    described: Mapping[str, Any],
    condition: Condition,
    left: Condition | None,
    progress: Progress | None,
) -> None:
    """Print a run's state, why it waits or ended, its nodes, and the way to the first one; `left`
    is a job that has outlived it."""
    from hpcdist.monitor.progress import awaited_nodes, describe_nodes, waiting_sentence
    from hpcdist.notify import read_last
    from hpcdist.schedulers import runs_here

    state = described["state"]
    whose = described["scheduler"] or "-"
    if described["job_id"] and not runs_here(whose):  # by the name that its commands take
        whose += f" job {described['job_id']}"
    has_ended, is_running = state not in OPEN_STATES, state == "running"
    nodes, reached = ([], None) if state == "pending" else describe_nodes(run)
    num_nodes = run.spec.outline.resources.nodes or 1
    problem = setup_problem(run) if is_running else None
    has_log = has_ended and run.read_verdict() is None
    hang = _read_hang(run) if is_running else None
    lines = {
        "job": f"{described['job'] or '-'}, {size(described)} (nodes x GPUs), {whose}",
        "submitted": local_time(described["created_s"]),
        "progress": (progress and progress.sentence(with_pace=not has_ended)) or None,
        "directory": described["path"],
        "damaged": described["damage"],
        "so far": described["last_attempt"],
        "verdict": described["message"],
        "go on": described["continue_with"],
        # Of one that runs it is what keeps it from running on, such as a suspension.
        "reason": described["reason"] if state in _REASONED else None,
        "hang": hang and hang.message,
        "notify": read_last(run),
        "job left": _job_left(run, left) if left and left.state == "pending" else None,
        "pending": waiting_sentence(condition),
        "job's log": next((str(path) for path in run.job_logs()), None) if has_log else None,
        "setup": problem and f"a line of the profile's setup failed: {problem}",
        "nodes": nodes[0] if nodes else None,
        **dict(zip((" " * number for number in range(1, len(nodes))), nodes[1:], strict=False)),
        "waits for": awaited_nodes(run, num_nodes=num_nodes) if is_running else None,
        "rendezvous": reached and f"MASTER_ADDR {reached}",
    }
    print(f"{one_line(described['run'])}: {state}")
    for name, value in lines.items():
        if value is not None:
            print_fact(f"  {name:<10} ", value)


def _job_left(run: Run, left: Condition) -> str:
    """Say of a job that it has outlived its run."""
    from hpcdist.schedulers import load_scheduler

    why = f" ({left.reason})" if left.reason else ""
    title = load_scheduler(str(run.read_scheduler())).title
    return f"{title} still has its job{why}: hpcdist cancel {name_to_type(run.path)} ends it"


def _read_hang(run: Run) -> Hang | None:
    with suppress(OSError):  # the folder is damaged
        return run.read_hang(run.newest_attempt())
    return None
