"""`hpcdist profile`: what takes the time in the next steps of a living run."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED
from hpcdist.base.text import (
    decimals_for,
    format_number,
    format_percent,
    format_time,
    listed,
    number_of,
    one_line,
)
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, ranks_option, run_argument
from hpcdist.cli.printing import note, print_columns, print_json, print_wrapped
from hpcdist.cli.stacks import ask_agents
from hpcdist.runs.run import Run, find_run

if TYPE_CHECKING:
    from hpcdist.runs.requests import StepReport

_RANKS_UNASKED = 8
_WAIT_S = 120.0
"""Time for the steps."""
_EXTRA_S = 60.0
"""Time for a trace to be written."""
_NAME_WIDTH = 46
_SHOWN_ROWS = 15
_LEAST_SHARE = 0.0005
"""Of a step, of a row that is no operation."""


@click.command(cls=HostCommand)
@run_argument
@click.option(
    "--steps", type=click.IntRange(1, 1000), default=5, show_default=True, help="Steps to profile."
)
@ranks_option
@about_runs
def profile(
    *, run_name: str, steps: int, ranks: list[int] | None, runs: Path, as_json: bool
) -> int:
    """Show what takes the time in the next steps of a living run, and write traces of them.

    Trainers, and scripts that call record.step, are profiled by torch's profiler between two of
    their steps; the run goes on with the same numbers, those steps take a little longer.

    \b
    CALLS, MS  of one step, mean of the ranks; without what the operation calls
    %          of the time of a step; all rows together are the step
    """
    from hpcdist.runs.requests import NodeProfiles, Request

    run = find_run(runs, run_name)
    num_ranks = run.spec.outline.num_ranks
    if ranks is None and num_ranks > _RANKS_UNASKED:
        ranks = list(range(_RANKS_UNASKED))
        note(f"the first {_RANKS_UNASKED} of {num_ranks} ranks are profiled; --ranks names others")
    limit_s = _WAIT_S + _EXTRA_S
    request = Request(limit_s=limit_s, ranks=ranks, profiled_steps=steps, wait_s=_WAIT_S)
    answer = ask_agents(run, request, f"waiting for {number_of(steps, 'step')} of the ranks")
    nodes = [node.ranks for node in answer.reports.values() if isinstance(node, NodeProfiles)]
    reports = dict(sorted((rank, one) for ranks in nodes for rank, one in ranks.items()))
    errors = {rank: one.error for rank, one in reports.items() if one.error is not None}
    told = {"attempt": answer.attempt, "ranks": reports, "troubles": answer.troubles}
    if as_json:
        print_json({"run": run.id, "path": run.path} | told)
    elif done := {rank: one for rank, one in reports.items() if one.steps}:
        _print(run, done)
    note(*(f"rank {rank}: {why}" for rank, why in errors.items()))
    note(*(f"node {node}: {why}" for node, why in answer.troubles.items()))
    return EXIT_FAILED if answer.troubles or errors else EXIT_DONE


def _print(run: Run, reports: Mapping[int, StepReport]) -> None:
    """Print the mean of the ranks that were profiled, and where their traces are."""
    num_steps = sum(one.steps for one in reports.values())
    wall_s = sum(one.wall_s for one in reports.values())
    calls: Counter[str] = Counter()
    times_s: defaultdict[str, float] = defaultdict(float)
    for each in chain.from_iterable(one.operations for one in reports.values()):
        calls[each.name] += each.calls
        times_s[each.name] += each.self_s
    steps, step_time = number_of(round(num_steps / len(reports)), "step"), wall_s / num_steps
    whose = listed(list(reports))
    print_wrapped(f"{run.id}: {steps} of {whose}, {format_time(step_time)} each under the profiler")
    print()
    shown = sorted(times_s.items(), key=lambda each: -each[1])[:_SHOWN_ROWS]
    operations_s = sum(one.operations_s for one in reports.values())
    busy_s = sum(one.busy_s for one in reports.values())
    rest = {
        "other operations": operations_s - sum(time_s for _, time_s in shown),
        "outside of operations: Python, waiting": wall_s - busy_s,
        "several at once, counted above for each": busy_s - operations_s,
    }
    decimals = decimals_for([time_s / num_steps * 1e3 for _, time_s in shown])
    shown += [each for each in rest.items() if abs(each[1] / wall_s) >= _LEAST_SHARE]
    rows = [
        (
            text if len(text := one_line(name)) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 3]}...",
            format_number(calls[name] / num_steps, 1) if name in calls else "",
            format_number(time_s / num_steps * 1e3, decimals),
            format_percent(time_s / wall_s),
        )
        for name, time_s in shown
    ]
    print_columns(["OPERATION", "CALLS", "MS", "%"], rows, right=slice(1, None))
    traces = [one.trace for one in reports.values() if one.trace]
    print(f"\n{number_of(len(traces), 'file')} for ui.perfetto.dev:")
    for name in traces:
        print(f"  {one_line(shlex.quote(str(run.path / name)))}")
