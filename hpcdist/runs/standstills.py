"""From the ranks' accounts of their collective operations to the one in which a run stands still.

Every rank of a process group counts the operations that it begins there, and all must begin the
same ones in the same order. So the first number that some have begun and not finished, and others
have not begun, or began as something else, is where the run hangs; who is missing there and waits
nowhere else is the rank to look at.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    missing: list[int] = []
    """Ranks that have begun fewer operations in this group."""
    others: dict[int, Operation] = {}
    """Ranks that began something else in its place."""
    mute: list[int] = []
    """Ranks that said nothing: they may have begun it."""


def known_accounts(told: Mapping[int, Collectives | None]) -> dict[int, Collectives]:
    """Return the accounts that count, of those that ranks gave: none where no recorder runs; else
    one that has recorded nothing says that the rank has begun nothing."""
    accounts = {rank: one for rank, one in told.items() if one is not None}
    return accounts if any(one.is_recorded for one in accounts.values()) else {}


def find_standstills(
    accounts: Mapping[int, Collectives], ranks: Collection[int], mute: Collection[int] = ()
) -> list[Standstill]:
    """Return where the ranks of a run wait for each other, the origin first.

    `accounts` are those of the living ranks that gave one, `mute` are living ranks that gave none,
    and `ranks` all of the run.
    """
    names = {group.name for account in accounts.values() for group in account.groups}
    found = [
        standstill
        for name in sorted(names)
        if (standstill := _standstill(name, accounts, ranks, mute)) is not None
    ]
    waiting = {rank for standstill in found for rank in standstill.waiting}

    def order(one: Standstill) -> tuple[bool, bool, float]:
        is_explained = bool(one.missing or one.others or one.mute)
        follows = not one.others and set(one.missing) <= waiting
        return (not is_explained, follows, one.operation.begun_s)

    return sorted(found, key=order)


def _standstill(
    name: str,
    accounts: Mapping[int, Collectives],
    ranks: Collection[int],
    mute: Collection[int],
) -> Standstill | None:
    records = {
        rank: group
        for rank, account in accounts.items()
        for group in account.groups
        if group.name == name
    }
    all_begun = [one for group in records.values() for one in group.operations]
    number = min((one.number for one in all_begun if not one.is_done), default=None)
    if number is None:
        return None
    begun = {
        rank: operation
        for rank, group in records.items()
        for operation in sorted(group.operations, key=lambda one: not one.is_done)
        if operation.number == number  # of two by one number, the one that goes on
    }
    # Of those that go on, the one that most ranks began; then that of the lowest rank.
    usual = max(
        (begun[rank] for rank in sorted(begun) if not begun[rank].is_done),
        key=lambda one: sum(_fits(other, one) for other in begun.values()),
    )
    others = {rank: one for rank, one in begun.items() if not _fits(one, usual)}
    members = next((group.ranks for group in records.values() if group.ranks), None)
    expected = sorted(ranks) if members is None else members
    return Standstill(
        group=name,
        num_members=len(expected),
        waiting=sorted(r for r, one in begun.items() if r not in others and not one.is_done),
        operation=usual,
        missing=[
            rank
            for rank in expected
            if rank not in mute and _last_number(accounts.get(rank), name) < number
        ],
        others=others,
        mute=sorted(set(expected) & set(mute)),
    )


def _last_number(account: Collectives | None, name: str) -> int:
    groups = account.groups if account is not None else []
    return max((group.last_number for group in groups if group.name == name), default=0)


def _fits(one: Operation, other: Operation) -> bool:
    """Return True where two ranks' operations are one; a root gives what others do not."""
    if one.name != other.name:
        return False
    if one.name not in _OF_ONE_SIZE or not one.sizes or not other.sizes:
        return True
    return (one.sizes, one.dtypes) == (other.sizes, other.dtypes)


# Sentences.


def to_blame(standstills: Sequence[Standstill]) -> int | None:
    """Return the rank that the others wait for; None where that cannot be told."""
    if not standstills:
        return None
    first = standstills[0]
    waiting = {rank for standstill in standstills for rank in standstill.waiting}
    free = [rank for rank in first.missing if rank not in waiting]
    if free:
        return free[0]
    if first.others:
        return min(first.others)
    return first.mute[0] if first.mute and not first.missing else None


def describe(
    standstills: Sequence[Standstill],
    lines: Mapping[int, str],
    *,
    lacks: str = "never reached",
) -> str | None:
    """Return how the ranks stand to each other in words; None where nothing is known.

    `lines` are those of the program where ranks are, by rank; `lacks` is what a rank does that is
    missing in an operation.
    """
    if not standstills:
        return None
    first, blamed = standstills[0], to_blame(standstills)
    if first.others:
        other = min(first.others)
        instead = f"{_signature(first.others[other])} in its place{_at([other], lines)}"
        who = listed(sorted(first.others))
        return f"{_who_waits(first, lines)}, and {who} began {instead}"
    if blamed is not None and blamed in first.mute:
        return _who_waits(first, lines)
    if blamed is None and len(standstills) > 1:
        waits = ", and ".join(_who_waits(one, lines) for one in standstills[:_MOST_SHOWN])
        return f"the ranks use process groups in different orders: {waits}"
    operation = _operation(first, lines)
    if not first.missing:
        members = number_of(first.num_members, "rank")
        return f"all {members} have begun {operation}, which does not end"
    waits = f"in which {_waiters(first)} since {_clock(first)}"
    return f"{listed(first.missing)} {lacks} {operation}, {waits}"


def _who_waits(standstill: Standstill, lines: Mapping[int, str]) -> str:
    where = _operation(standstill, lines)
    return f"{_waiters(standstill)} in {where} since {_clock(standstill)}"


def _waiters(standstill: Standstill) -> str:
    return f"{listed(standstill.waiting)} {'waits' if len(standstill.waiting) == 1 else 'wait'}"


def _operation(standstill: Standstill, lines: Mapping[int, str]) -> str:
    operation = standstill.operation
    group = "" if standstill.group == "0" else f" of process group {standstill.group}"
    name = f"{_signature(operation)}, number {operation.number}{group}"
    return name + _at(standstill.waiting, lines)


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    line = next((lines[rank] for rank in ranks if rank in lines), None)
    return f" (at {line})" if line else ""


def _clock(standstill: Standstill) -> str:
    return time.strftime("%H:%M:%S", time.localtime(standstill.operation.begun_s))


def _signature(operation: Operation) -> str:
    tensors = ", ".join(
        f"{dtype.lower()}[{'x'.join(map(str, sizes))}]"
        for sizes, dtype in zip(operation.sizes, operation.dtypes, strict=False)
    )
    return f"{operation.name}({tensors})" if tensors else operation.name


# Stacks.


def place_of(frames: Sequence[Frame]) -> tuple[str | None, str | None, bool]:
    """Return where a thread is by its stack (its innermost line outside installed libraries, or of
    all), the library's function that it called there, and whether it waits for other ranks in
    it."""
    if not frames:
        return None, None, False
    own = [frame for frame in frames if not _is_in(frame.file, _LIBRARIES)]
    innermost = (own or frames)[0]
    below = reversed(frames[: frames.index(innermost)])
    called = next((frame for frame in below if not _is_in(frame.file, _DECORATORS)), None)
    calls = f"{called.function} of {Path(called.file).name}" if called else None
    # It waits where only installed libraries' frames are below one that waits for others.
    files = (frame.file for frame in frames)
    decisive = next((f for f in files if _is_in(f, _WAITING) or not _is_in(f, _LIBRARIES)), "")
    is_waiting = _is_in(decisive, _WAITING)
    place = f"{Path(innermost.file).name}:{innermost.line} ({innermost.function})"
    return place, calls, is_waiting


def _is_in(file: str, places: Iterable[str]) -> bool:
    return any(place in file for place in places)
