"""The stacks of a living run, put in order: equal ones together, the odd ones first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from hpcdist.runs.requests import Answer, Collectives, Frame, NodeStacks, Operation, RankStacks
from hpcdist.runs.standstills import (
    describe,
    find_standstills,
    known_accounts,
    place_of,
    to_blame,
)

_LAUNCHER = "/hpcdist/workloads/rank_process.py"
_STARTERS = ("/hpcdist/agent/", "/hpcdist/workloads/", "runpy.py", "<frozen runpy>")
_LEAST_WAIT_S = 3.0
"""Younger operations say nothing: ranks that step reach them one after the other."""


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, with its place, and its newest collective operation."""

    node: int
    host: str
    of: RankStacks
    newest: Operation | None = None
    group: str = "0"
    """Name of its process group."""


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One stack, and the ranks whose thread has it."""

    ranks: list[int]
    threads: list[str] = []
    """Names of the threads; none for the main ones."""
    frames: list[Frame]
    """Innermost first, without those of how the rank was started."""
    note: str | None = None
    """Why there is none, or less than there should be."""


class StacksView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole picture."""

    attempt: int
    time_s: float
    world_size: int
    finding: str | None = None
    """How the ranks stand to each other, where some wait for others."""
    blamed: int | None = None
    groups: list[StackGroup] = []
    """Of the main threads, the odd ones first."""
    other_threads: list[StackGroup] = []
    ranks: list[RankView] = []
    absent: list[int] = []
    """Ranks that have ended, or not begun."""
    troubles: dict[int, str] = {}
    """Why nodes have told nothing, by node."""


def view_stacks(answer: Answer, wanted: Iterable[int] | None = None) -> StacksView:
    """Return the picture that the agents' answer gives; of these ranks, where only some were
    asked."""
    views = sorted(_views(answer), key=lambda view: view.of.rank)
    expected = set(range(answer.world_size) if wanted is None else wanted)
    there = {view.of.rank for view in views}
    num_nodes = len(answer.reports) + len(answer.missing)
    per_node = answer.world_size // max(1, num_nodes)
    troubles = answer.troubles()
    silent = {rank for rank in expected if per_node and rank // per_node in troubles}
    finding, blamed = _finding(answer, views, silent) if wanted is None else (None, None)
    return StacksView(
        attempt=answer.attempt,
        time_s=answer.time_s,
        world_size=answer.world_size,
        finding=finding,
        blamed=blamed,
        groups=_main_groups(views, blamed),
        other_threads=_other_groups(views),
        ranks=views,
        absent=sorted(expected - there - silent),
        troubles=troubles,
    )


def _views(answer: Answer) -> Iterable[RankView]:
    for node, report in answer.reports.items():
        if isinstance(report, NodeStacks):
            for rank in report.ranks:
                newest = _newest(rank.collectives)
                group, operation = newest if newest is not None else ("0", None)
                yield RankView(node=node, host=report.host, of=rank, newest=operation, group=group)


def _newest(collectives: Collectives | None) -> tuple[str, Operation] | None:
    groups = collectives.groups if collectives is not None else []
    found = [(group.name, one) for group in groups for one in group.operations]
    return max(found, key=lambda each: (each[1].begun_s, each[1].number), default=None)


def _finding(
    answer: Answer, views: Sequence[RankView], silent: set[int]
) -> tuple[str | None, int | None]:
    """Return how the ranks stand to each other, and the one to blame; nobody knows of the ranks of
    silent nodes what they have begun."""
    accounts = known_accounts({view.of.rank: view.of.collectives for view in views})
    there = {view.of.rank for view in views}
    mute = (there | silent) - accounts.keys() if accounts else set()
    standstills = [
        standstill
        for standstill in find_standstills(accounts, range(answer.world_size), mute)
        if answer.time_s - standstill.operation.begun_s > _LEAST_WAIT_S
    ]
    lines = {view.of.rank: where for view in views if (where := _where(view.of)) is not None}
    return describe(standstills, lines, lacks="has not reached"), to_blame(standstills)


def _where(rank: RankStacks) -> str | None:
    return place_of(_own_frames(rank.threads[0].frames))[0] if rank.threads else None


def _main_groups(views: Sequence[RankView], blamed: int | None) -> list[StackGroup]:
    """Return the main threads' stacks: that of the rank to blame, then the rarest ones."""
    found: dict[tuple[tuple[Frame, ...], str | None], list[int]] = defaultdict(list)
    for view in views:
        frames = _own_frames(view.of.threads[0].frames) if view.of.threads else []
        found[tuple(frames), view.of.note].append(view.of.rank)
    groups = [
        StackGroup(ranks=ranks, frames=list(frames), note=note)
        for (frames, note), ranks in found.items()
    ]
    return sorted(groups, key=lambda one: (blamed not in one.ranks, len(one.ranks), one.ranks))


def _other_groups(views: Sequence[RankView]) -> list[StackGroup]:
    found: dict[tuple[Frame, ...], list[tuple[int, str]]] = defaultdict(list)
    for view in views:
        for thread in view.of.threads[1:]:
            found[tuple(thread.frames)].append((view.of.rank, thread.name or "unnamed"))
    groups = [
        StackGroup(
            ranks=sorted({rank for rank, _ in threads}),
            threads=sorted({name for _, name in threads}),
            frames=list(frames),
        )
        for frames, threads in found.items()
        if frames
    ]
    return sorted(groups, key=lambda one: (len(one.ranks), one.ranks))


def _own_frames(frames: list[Frame]) -> list[Frame]:
    """Return a stack's calls without those of how its rank was started; all where no other is."""
    end = next((i for i, one in enumerate(frames) if one.file.endswith(_LAUNCHER)), 0)
    while end and any(one in frames[end - 1].file for one in _STARTERS):
        end -= 1
    return frames[:end] or frames
