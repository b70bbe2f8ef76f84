"""`hpcdist status`: the state of runs, and how far they have come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.cli.described import describe_run, size
from hpcdist.cli.options import json_option, named_runs, run_arguments, runs_option
from hpcdist.cli.printing import local_time, note, one_line, print_json
from hpcdist.run import Run
from hpcdist.verdict import State

if TYPE_CHECKING:
    from hpcdist.follow.live import Progress
    from hpcdist.schedulers import Condition


@click.command
@run_arguments
@runs_option
@json_option
def status(*, run_names: tuple[str, ...], runs: Path, as_json: bool) -> None:
    """Show the state of runs, and how far they have come.

    Without RUN: the runs that have not ended, or else the last one.
    """
    import msgspec

    from hpcdist.follow.live import LiveProgress
    from hpcdist.nodes import seen_nodes
    from hpcdist.states import run_conditions

    found = named_runs(runs, run_names)
    conditions = run_conditions(found, warn=note)
    states = {name: condition.state for name, condition in conditions.items()}
    shown = found if run_names else _of_interest(found, states)
    progress = {run.id: LiveProgress(run).read() for run in shown}
    if as_json:
        print_json(
            [
                describe_run(run, states[run.id])
                | {
                    "progress": msgspec.to_builtins(progress[run.id]),
                    "reason": conditions[run.id].reason,
                    "expected_start_s": conditions[run.id].expected_start_s,
                    "hosts": msgspec.to_builtins(seen_nodes(run)),
                }
                for run in shown
            ]
        )
        return
    if not shown:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
    for run in shown:
        _print(describe_run(run, states[run.id]), progress[run.id])
        _print_place(run, conditions[run.id])


def _of_interest(found: Sequence[Run], states: Mapping[str, State]) -> list[Run]:
    from hpcdist.states import OPEN_STATES

    return [run for run in found if states[run.id] in OPEN_STATES] or list(found[-1:])


def _print(run: Mapping[str, Any], progress: Progress | None) -> None:
    from hpcdist.states import OPEN_STATES

    lines = {
        "job": f"{run['job'] or '-'}, {size(run)} (nodes x GPUs), {run['scheduler'] or '-'}",
        "submitted": local_time(run["created_s"]),
        "progress": _place(progress, is_open=run["state"] in OPEN_STATES),
        "directory": run["path"],
        "so far": run["last_attempt"],
        "verdict": run["message"],
    }
    print(f"{one_line(run['run'])}: {run['state']}")
    for name, value in lines.items():
        _print_line(name, value)


def _print_place(run: Run, condition: Condition) -> None:
    """Why it waits, or where it is and by which way its nodes reach the first one."""
    from hpcdist.follow.beginning import waiting_sentence
    from hpcdist.nodes import master_sentence, node_lines, seen_nodes

    _print_line("pending", waiting_sentence(condition))
    nodes = seen_nodes(run)
    for name, line in zip_longest(["nodes"], node_lines(nodes), fillvalue=""):
        _print_line(name, line or None)
    _print_line("node 0 at", master_sentence(nodes))


def _print_line(name: str, value: str | None) -> None:
    if value is not None:
        print(f"  {name:<10} {one_line(value)}")


def _place(progress: Progress | None, *, is_open: bool) -> str | None:
    from hpcdist.follow.screen import progress_figures, progress_place

    if progress is None or progress.step is None:
        return None
    figures = progress_figures(progress) if is_open else ""
    return ", ".join(part for part in (progress_place(progress), figures) if part)
