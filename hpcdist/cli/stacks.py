"""`hpcdist stacks`: where the ranks of a living run are."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED
from hpcdist.base.text import UNDEFINED, format_number, format_ranges, one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option, parse_ranks, run_argument, runs_option
from hpcdist.cli.printing import Waiting, note, paged, print_columns, print_json, print_wrapped
from hpcdist.machine.command import announce_waits
from hpcdist.runs.run import find_run

if TYPE_CHECKING:
    from hpcdist.agent.stacks import Frame
    from hpcdist.monitor.stacks import RankView, StacksView

_LIMIT_S = 4.0
_SINGLE_ROWS = 16
"""Ranks that have a line each; of more, those that do the same have one."""
_SHOWN_ROWS = 50
_SHOWN_OF_OTHERS = 3
"""Frames of threads beside the main one."""
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "in I/O",
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "I": "idle",
}
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")
_FRAME_WIDTH = 34
_RANKS_WIDTH = 10


@click.command(cls=HostCommand)
@run_argument
@click.option(
    "--rank",
    "ranks",
    metavar="R[,R...]",
    callback=parse_ranks,
    help="Only these ranks, such as 3 or 0,8-11.",
)
@host_option
@runs_option
@json_option
@paged
def stacks(*, run_name: str, ranks: list[int] | None, runs: Path, as_json: bool) -> int:
    """Show where the ranks of a living run are, and who waits for whom.

    Ranks with the same stack are one group; the one that others wait for comes first, then those
    that are alone. The ranks go on meanwhile: this is no sign of a hang, and ends nothing.

    \b
    CPU %              of one CPU, in the last moment
    NEWEST COLLECTIVE  its number in the process group, and how long it has waited
    """
    from hpcdist.agent.requests import WantStacks
    from hpcdist.monitor.requests import ask
    from hpcdist.monitor.stacks import view_stacks

    announce_waits(note)
    run = find_run(runs, run_name)
    request = WantStacks(limit_s=_LIMIT_S, ranks=ranks)
    with Waiting("the agents") as waiting:
        answer = ask(run, request, on_wait=waiting.show)
    view = view_stacks(answer, ranks)
    if as_json:
        import msgspec

        print_json({"run": run.id, **msgspec.to_builtins(view)})
    else:
        _print(run.id, view)
    note(*(f"node {node}: {why}" for node, why in view.troubles.items()))
    return EXIT_FAILED if view.troubles else EXIT_DONE


def _print(name: str, view: StacksView) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(view.time_s))
    attempt = f", attempt {view.attempt}" if view.attempt else ""
    print(f"{one_line(name)}{attempt}: {len(view.ranks)} of {view.world_size} ranks at {at}")
    if view.finding is not None:
        print()
        print_wrapped(one_line(view.finding))
    for group in view.groups:
        print()
        share = f" ({len(group.ranks)} of {view.world_size})" if len(group.ranks) > 1 else ""
        why = f": {one_line(group.note)}" if group.note else ""
        print_wrapped(f"{_who(group.ranks)}{share}{why}")
        _print_frames(group.frames, len(group.frames))
    for group in view.other_threads:
        print()
        names = ", ".join(map(one_line, group.threads))
        print_wrapped(f"{_who(group.ranks)}, beside it: {names}")
        _print_frames(group.frames[:_SHOWN_OF_OTHERS], len(group.frames))
    if view.ranks:
        print()
        _print_ranks(view)
    if view.absent:
        print()
        print_wrapped(f"{_who(view.absent)}: no process: it has ended or not started")


def _who(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"


def _print_frames(frames: Sequence[Frame], num_frames: int) -> None:
    for frame in frames:
        place = f"{_short(frame.file)}:{frame.line}"
        print(f"    {one_line(place):<{_FRAME_WIDTH}}  {one_line(frame.function)}".rstrip())
    if num_frames > len(frames):
        print(f"    ... and {num_frames - len(frames)} more")


def _short(path: str) -> str:
    """Return the name of a file, for one of a library with its package."""
    for folder in _LIBRARY_FOLDERS:
        if folder in path:
            parts = path.rsplit(folder, maxsplit=1)[-1].split("/")
            return "/".join(parts if len(parts) < 3 else [parts[0], "..", parts[-1]])
    return path.rsplit("/", 1)[-1]


def _print_ranks(view: StacksView) -> None:
    """Print a line for each rank; of many, one for those that do the same."""
    rows = _rows(view)
    shown = rows[:_SHOWN_ROWS]
    cells = [[show(row, view) for _, show in _COLUMNS] for row in shown]
    print_columns([name for name, _ in _COLUMNS], cells, right=slice(-1))
    if left := sum(map(len, rows[_SHOWN_ROWS:])):
        print(f"... and {left} more: --rank R shows others, --json each")


def _rows(view: StacksView) -> list[list[RankView]]:
    stack_of = {rank: index for index, group in enumerate(view.groups) for rank in group.ranks}
    alike: dict[object, list[RankView]] = defaultdict(list)
    for rank in view.ranks:
        newest = rank.newest
        operation = newest and (rank.group, newest.name, newest.number, newest.is_done)
        does = (stack_of.get(rank.of.rank), rank.of.state, operation)
        alike[rank.of.rank if len(view.ranks) <= _SINGLE_ROWS else does].append(rank)
    return list(alike.values())


def _newest(row: Sequence[RankView], view: StacksView) -> str:
    operation, group = row[0].newest, row[0].group
    if operation is None:
        return UNDEFINED
    of_group = "" if group == "0" else f" of group {group}"
    text = f"{operation.name} {operation.number}{of_group}"
    if operation.is_done:
        return one_line(f"{text}, done")
    begun_s = min(rank.newest.begun_s for rank in row if rank.newest)
    return one_line(f"{text}, waits {max(0.0, view.time_s - begun_s):.0f} s")


def _short_ranges(ranks: Sequence[int]) -> str:
    text = format_ranges(ranks)
    if len(text) <= _RANKS_WIDTH:
        return text
    return f"{text[:_RANKS_WIDTH].rpartition(', ')[0]} ... ({len(ranks)})"


def _span(values: Iterable[float | None], decimals: int, per: float = 1.0) -> str:
    """Return the smallest and the largest value, as one where they look alike."""
    known = [value / per for value in values if value is not None]
    if not known:
        return UNDEFINED
    ends = [format_number(value, decimals) for value in (min(known), max(known))]
    return "-".join(dict.fromkeys(ends))


_Show = Callable[["Sequence[RankView]", "StacksView"], str]
_PERCENT, _GB = 0.01, 1e9
_COLUMNS: list[tuple[str, _Show]] = [
    ("RANK", lambda row, _: _short_ranges([rank.of.rank for rank in row])),
    ("NODE", lambda row, _: format_ranges(sorted({rank.node for rank in row}))),
    ("STEP", lambda row, _: _span((rank.of.step for rank in row), 0)),
    ("STATE", lambda row, _: _STATES.get(row[0].of.state, row[0].of.state)),
    ("CPU %", lambda row, _: _span((rank.of.cpu_share for rank in row), 0, _PERCENT)),
    ("RSS (GB)", lambda row, _: _span((rank.of.rss_bytes for rank in row), 2, _GB)),
    ("NEWEST COLLECTIVE", _newest),
]
