"""The collective operation in which a run stands still, from the ranks' accounts of theirs.

Every rank of a process group counts the operations that it begins there, and all must begin the
same ones in the same order. So the first number that some have begun and not finished, and others
have not begun, or began as something else, is where the run hangs; the rank that is missing there
and waits nowhere else is the one to look at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcdist.base.text import listed, number_of
from hpcdist.runs.requests import Collectives, Frame, Operation

_OF_ONE_SIZE = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "barrier")
"""Operations into which every rank puts tensors of one size; gathers and scatters may differ."""
_MOST_SHOWN = 3
_WAITING = ("/torch/distributed/", "/torch/autograd/graph.py", "/torch/nn/parallel/distributed.py")
"""Files whose frames mean that a rank waits for others: collectives, and the backward pass, which
ends when the gradients of all ranks are there."""
_DECORATORS = ("/torch/distributed/c10d_logger.py", "/torch/utils/_contextlib.py")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/hpcdist/rank/")


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that some ranks of a group have begun, and that does not end."""

    group: str
    num_members: int
    waiting: list[int]
    """Ranks that have begun it, as most of them did."""
    operation: Operation
    """The operation, as the first of these began it."""
    missing: list[int]
    """Ranks that have begun fewer operations in this group."""
    others: dict[int, Operation]
    """Ranks that began something else in its place."""
    mute: list[int]
    """Ranks that said nothing: they may have begun it."""


def find_standstills(
    told: Mapping[int, Collectives | None], ranks: Collection[int], living: Collection[int] = ()
) -> list[Standstill]:
    """Return where the ranks of a run wait for each other, the origin first.

    `told` are the accounts of ranks that answered, `ranks` all of the run. Nobody knows what those
    of the `living` have begun that gave no account.
    """
    accounts = {rank: one for rank, one in told.items() if one is not None}
    if not any(one.is_recorded for one in accounts.values()):
        return []
    # An account that has recorded nothing says that the rank has begun nothing.
    mute = set(living) - accounts.keys()
    names = {group.name for account in accounts.values() for group in account.groups}
    each = (_standstill(name, accounts, ranks, mute) for name in sorted(names))
    found = [standstill for standstill in each if standstill is not None]
    waiting = {rank for standstill in found for rank in standstill.waiting}

    def order(one: Standstill) -> tuple[bool, bool, float]:
        is_explained = bool(one.missing or one.others or one.mute)
        follows = not one.others and set(one.missing) <= waiting
        return (not is_explained, follows, one.operation.begun_s)

    return sorted(found, key=order)


def _standstill(
    name: str, accounts: Mapping[int, Collectives], ranks: Collection[int], mute: Collection[int]
) -> Standstill | None:
    groups = {
        rank: group
        for rank, account in sorted(accounts.items())
        for group in account.groups
        if group.name == name
    }
    pending = [op.number for group in groups.values() for op in group.operations if not op.is_done]
    if not pending:
        return None
    number, begun = min(pending), dict[int, Operation]()
    for rank, group in groups.items():
        for operation in group.operations:
            # Of two by one number, the one that goes on.
            if operation.number == number and (rank not in begun or not operation.is_done):
                begun[rank] = operation
    # Of those that go on, the one that most ranks began; then that of the lowest rank.
    usual = max(
        (one for one in begun.values() if not one.is_done),
        key=lambda one: sum(_fits(other, one) for other in begun.values()),
    )
    members = next((group.ranks for group in groups.values() if group.ranks), sorted(ranks))
    behind = {r for r in members if r not in groups or groups[r].last_number < number}
    return Standstill(
        group=name,
        num_members=len(members),
        waiting=[r for r, one in begun.items() if _fits(one, usual) and not one.is_done],
        operation=usual,
        missing=[rank for rank in members if rank in behind and rank not in mute],
        others={rank: one for rank, one in begun.items() if not _fits(one, usual)},
        mute=sorted(set(members) & set(mute)),
    )


def _fits(one: Operation, other: Operation) -> bool:
    """Return True where two ranks' operations are one; a root gives what others do not."""
    if one.name not in _OF_ONE_SIZE or not one.sizes or not other.sizes:
        return one.name == other.name
    return (one.name, one.sizes, one.dtypes) == (other.name, other.sizes, other.dtypes)


def to_blame(standstills: Sequence[Standstill]) -> int | None:
    """Return the rank that the others wait for; None where that cannot be told."""
    if not standstills:
        return None
    first = standstills[0]
    waiting = {rank for standstill in standstills for rank in standstill.waiting}
    if free := [rank for rank in first.missing if rank not in waiting]:
        return free[0]
    if first.others:
        return min(first.others)
    return first.mute[0] if first.mute and not first.missing else None


def describe(
    standstills: Sequence[Standstill], lines: Mapping[int, str], *, lacks: str = "never reached"
) -> str | None:
    """Return how the ranks stand to each other in words; None where nothing is known.

    `lines` are those of the program where ranks are, by rank; `lacks` is what a rank does that is
    missing in an operation.
    """
    if not standstills:
        return None
    first, blamed = standstills[0], to_blame(standstills)
    operation, waiters, since = _words(first, lines)
    if first.others:
        other = min(first.others)
        instead = f"{_signature(first.others[other])} in its place{_at([other], lines)}"
        who = listed(sorted(first.others))
        return f"{waiters} in {operation} {since}, and {who} began {instead}"
    if blamed is not None and blamed in first.mute:
        return f"{waiters} in {operation} {since}"
    if blamed is None and len(standstills) > 1:
        each = (_words(one, lines) for one in standstills[:_MOST_SHOWN])
        waits = ", and ".join(f"{who} in {what} {when}" for what, who, when in each)
        return f"the ranks use process groups in different orders: {waits}"
    if not first.missing:
        members = number_of(first.num_members, "rank")
        return f"all {members} have begun {operation}, which does not end"
    return f"{listed(first.missing)} {lacks} {operation}, in which {waiters} {since}"


def _words(one: Standstill, lines: Mapping[int, str]) -> tuple[str, str, str]:
    """Return words on the operation, on the ranks that wait in it, and since when."""
    group = "" if one.group == "0" else f" of process group {one.group}"
    operation = f"{_signature(one.operation)}, number {one.operation.number}{group}"
    waiters = f"{listed(one.waiting)} {'waits' if len(one.waiting) == 1 else 'wait'}"
    clock = time.strftime("%H:%M:%S", time.localtime(one.operation.begun_s))
    return operation + _at(one.waiting, lines), waiters, f"since {clock}"


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    line = next((lines[rank] for rank in ranks if rank in lines), None)
    return f" (at {line})" if line else ""


def _signature(operation: Operation) -> str:
    shapes = ("x".join(map(str, sizes)) for sizes in operation.sizes)
    tensors = [
        f"{kind.lower()}[{shape}]" for shape, kind in zip(shapes, operation.dtypes, strict=False)
    ]
    return f"{operation.name}({', '.join(tensors)})" if tensors else operation.name


def place_of(frames: Sequence[Frame]) -> tuple[str | None, str | None, bool]:
    """Return where a thread is by its stack (its innermost line outside installed libraries, or of
    all), the library's function that it called there, and whether it waits for other ranks in
    it."""
    if not frames:
        return None, None, False

    def is_in(frame: Frame, places: Sequence[str]) -> bool:
        return any(place in frame.file for place in places)

    innermost = next((frame for frame in frames if not is_in(frame, _LIBRARIES)), frames[0])
    below = reversed(frames[: frames.index(innermost)])
    called = next((frame for frame in below if not is_in(frame, _DECORATORS)), None)
    calls = f"{called.function} of {Path(called.file).name}" if called else None
    # It waits where only installed libraries' frames are below one that waits for others.
    waits = (f for f in frames if is_in(f, _WAITING) or not is_in(f, _LIBRARIES))
    decisive = next(waits, None)
    place = f"{Path(innermost.file).name}:{innermost.line} ({innermost.function})"
    return place, calls, decisive is not None and is_in(decisive, _WAITING)
