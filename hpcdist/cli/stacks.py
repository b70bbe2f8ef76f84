"""`hpcdist stacks`: where the ranks of a living run are."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED
from hpcdist.base.progress import StatusLine
from hpcdist.base.text import UNDEFINED, format_ranges, one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs, ranks_option, run_argument
from hpcdist.cli.printing import note, print_columns, print_json, print_wrapped
from hpcdist.runs.run import Run, find_run

if TYPE_CHECKING:
    from hpcdist.monitor.living import RankView, StacksView
    from hpcdist.runs.requests import Answer, Frame, Request

_LIMIT_S = 4.0
_SHOWN_ROWS = 50
_SHOWN_OF_OTHERS = 3
"""Frames of threads beside the main one."""
_STATES = {"R": "runs", "S": "sleeps", "D": "in I/O", "T": "stopped", "t": "traced", "Z": "ended"}
_FRAME_WIDTH = 34


@click.command(cls=HostCommand)
@run_argument
@ranks_option
@about_runs
def stacks(*, run_name: str, ranks: list[int] | None, runs: Path, as_json: bool) -> int:
    """Show where the ranks of a living run are, and who waits for whom.

    Ranks with the same stack are one group; the one that others wait for comes first, then those
    that are alone. The ranks go on meanwhile: this is no sign of a hang, and ends nothing.

    NEWEST COLLECTIVE: its number in the process group, and how long it has waited
    """
    from hpcdist.monitor.living import view_stacks
    from hpcdist.runs.requests import Request

    run = find_run(runs, run_name)
    request = Request(limit_s=_LIMIT_S, ranks=ranks)
    answer = ask_agents(run, request, "waiting for the agents")
    view = view_stacks(answer, ranks)
    if as_json:
        print_json({"run": run.id, **structs.asdict(view)})
    else:
        _print(run.id, view)
    note(*(f"node {node}: {why}" for node, why in view.troubles.items()))
    return EXIT_FAILED if view.troubles else EXIT_DONE


def ask_agents(run: Run, request: Request, what: str) -> Answer:
    """Ask the agents of a run; on a terminal, say meanwhile `what` takes the time."""
    from hpcdist.monitor.living import ask

    with StatusLine() as line:
        return ask(run, request, on_wait=lambda waited_s: line.show(f"{what}: {waited_s:.0f} s"))


def _print(name: str, view: StacksView) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(view.time_s))
    attempt = f", attempt {view.attempt}" if view.attempt else ""
    print(f"{one_line(name)}{attempt}: {len(view.ranks)} of {view.world_size} ranks at {at}")
    if view.finding is not None:
        print()
        print_wrapped(one_line(view.finding))
    for group in view.groups:
        share = f" ({len(group.ranks)} of {view.world_size})" if len(group.ranks) > 1 else ""
        why = f": {one_line(group.note)}" if group.note else ""
        beside = f", beside it: {one_line(group.thread)}" if group.thread else ""
        print()
        print_wrapped(f"{_who(group.ranks)}{share}{beside}{why}")
        most = _SHOWN_OF_OTHERS if group.thread else len(group.frames)
        for frame in group.frames[:most]:
            place = one_line(_place(frame))
            print(f"    {place:<{_FRAME_WIDTH}}  {one_line(frame.function)}".rstrip())
        if len(group.frames) > most:
            print(f"    ... and {len(group.frames) - most} more")
    if view.ranks:
        ranks = sorted(view.ranks, key=lambda one: one.of.rank)
        header = ("RANK", "NODE", "STEP", "STATE", "RSS (GB)", "NEWEST COLLECTIVE")
        print()
        print_columns(header, [_row(rank, view) for rank in ranks[:_SHOWN_ROWS]], right=slice(-1))
        if len(ranks) > _SHOWN_ROWS:
            print(f"... and {len(ranks) - _SHOWN_ROWS} more: --rank R shows others, --json each")
    if view.absent:
        print()
        print_wrapped(f"{_who(view.absent)}: no process: it has ended or not started")


def _place(frame: Frame) -> str:
    """Return the name of a file, for one of a library with its package, and the line."""
    name = re.split("/(?:site|dist)-packages/", frame.file)[-1]
    parts = name.split("/") if name != frame.file else [name.rsplit("/", 1)[-1]]
    parts = [parts[0], "..", parts[-1]] if len(parts) > 2 else parts
    return f"{'/'.join(parts)}:{frame.line}"


def _who(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"


def _row(rank: RankView, view: StacksView) -> list[str]:
    newest = UNDEFINED
    if (operation := rank.newest) is not None:
        of_group = "" if rank.group == "0" else f" of group {rank.group}"
        waits = f"waits {max(0.0, view.time_s - operation.begun_s):.0f} s"
        state = "done" if operation.is_done else waits
        newest = one_line(f"{operation.name} {operation.number}{of_group}, {state}")
    of = rank.of
    return [
        str(of.rank),
        str(rank.node),
        UNDEFINED if of.step is None else str(of.step),
        _STATES.get(of.state, of.state),
        UNDEFINED if of.rss_bytes is None else f"{of.rss_bytes / 1e9:.2f}",
        newest,
    ]
