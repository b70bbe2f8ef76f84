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
from hpcdist.runs.requests import Collectives, Frame, GroupRecord, Operation

_OF_ONE_SIZE = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "barrier")
"""Operations into which every rank puts tensors of one size; gathers and scatters may differ."""
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
    accounts = {rank: one for rank, one in sorted(told.items()) if one is not None}
    if not any(one.is_recorded for one in accounts.values()):
        return []
    # An account that has recorded nothing says that the rank has begun nothing.
    mute = set(living) - accounts.keys()
    records: dict[str, dict[int, GroupRecord]] = {}
    for rank, account in accounts.items():
        for group in account.groups:
            records.setdefault(group.name, {})[rank] = group
    found = []
    for name, groups in sorted(records.items()):
        operations = [(rank, one) for rank, group in groups.items() for one in group.operations]
        if not (pending := [one.number for _, one in operations if not one.is_done]):
            continue
        number = min(pending)
        # Of two by one number, the one that goes on.
        begun = {rank: one for rank, one in operations if one.number == number and one.is_done}
        waiting = {r: one for r, one in operations if one.number == number and not one.is_done}
        begun |= waiting
        # Of those that go on, the one that most ranks began; then that of the lowest rank.
        usual = max(waiting.values(), key=lambda one: sum(_fits(o, one) for o in begun.values()))
        members = next((group.ranks for group in groups.values() if group.ranks), sorted(ranks))
        behind = [r for r in members if r not in groups or groups[r].last_number < number]
        found.append(
            Standstill(
                group=name,
                num_members=len(members),
                waiting=[rank for rank, one in waiting.items() if _fits(one, usual)],
                operation=usual,
                missing=[rank for rank in behind if rank not in mute],
                others={rank: one for rank, one in begun.items() if not _fits(one, usual)},
                mute=sorted(mute.intersection(members)),
            )
        )
    all_waiting = {rank for one in found for rank in one.waiting}

    def order(one: Standstill) -> tuple[bool, bool, float]:
        is_explained = bool(one.missing or one.others or one.mute)
        follows = not one.others and all_waiting.issuperset(one.missing)
        return (not is_explained, follows, one.operation.begun_s)

    return sorted(found, key=order)


def _fits(one: Operation, other: Operation) -> bool:
    """Return True where two ranks' operations are one; a root gives what others do not."""
    if one.name not in _OF_ONE_SIZE or not one.sizes or not other.sizes:
        return one.name == other.name
    return (one.name, one.sizes, one.dtypes) == (other.name, other.sizes, other.dtypes)


def to_blame(standstills: Sequence[Standstill]) -> int | None:
    """Return the rank that the others wait for; None where that cannot be told."""
    if not standstills:
        return None
    first, waiting = standstills[0], {rank for one in standstills for rank in one.waiting}
    if free := [rank for rank in first.missing if rank not in waiting]:
        return free[0]
    if first.others:
        return min(first.others)
    return first.mute[0] if first.mute and not first.missing else None


def describe(standstills: Sequence[Standstill], lines: Mapping[int, str]) -> str | None:
    """Return how the ranks stand to each other in words; None where nothing is known. `lines` are
    those of the program where ranks are, by rank."""
    if not standstills:
        return None
    waits = []
    for one in standstills:
        operation, group = (
            one.operation,
            "" if one.group == "0" else f" of process group {one.group}",
        )
        what = f"{_signature(operation)}, number {operation.number}{group}{_at(one.waiting, lines)}"
        who = f"{listed(one.waiting)} {'waits' if len(one.waiting) == 1 else 'wait'}"
        clock = time.strftime("%H:%M:%S", time.localtime(operation.begun_s))
        waits.append((who, what, f"since {clock}"))
    first, blamed, (who, what, since) = standstills[0], to_blame(standstills), waits[0]
    if first.others:
        other = min(first.others)
        instead = f"{_signature(first.others[other])} in its place{_at([other], lines)}"
        return f"{who} in {what} {since}, and {listed(sorted(first.others))} began {instead}"
    if blamed is not None and blamed in first.mute:
        return f"{who} in {what} {since}"
    if blamed is None and len(standstills) > 1:
        each = ", and ".join(f"{who} in {what} {since}" for who, what, since in waits[:3])
        return f"the ranks use process groups in different orders: {each}"
    if not first.missing:
        return f"all {number_of(first.num_members, 'rank')} have begun {what}, which does not end"
    return f"{listed(first.missing)} never reached {what}, in which {who} {since}"


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    return next((f" (at {lines[rank]})" for rank in ranks if rank in lines), "")


def _signature(operation: Operation) -> str:
    pairs = zip(operation.dtypes, operation.sizes, strict=False)
    tensors = ", ".join(f"{kind.lower()}[{'x'.join(map(str, sizes))}]" for kind, sizes in pairs)
    return f"{operation.name}({tensors})" if tensors else operation.name


def place_of(frames: Sequence[Frame]) -> tuple[str | None, str | None, bool]:
    """Return where a thread is by its stack (its innermost line outside installed libraries, or of
    all), the library's function that it called there, and whether it waits for other ranks in
    it."""
    if not frames:
        return None, None, False
    place, called, waits = frames[0], None, False
    for number, frame in enumerate(frames):
        if any(library in frame.file for library in _LIBRARIES):
            waits |= any(file in frame.file for file in _WAITING)
            continue
        place = frame
        below = reversed(frames[:number])
        called = next((f for f in below if not f.file.endswith(_DECORATORS)), None)
        break
    calls = f"{called.function} of {Path(called.file).name}" if called else None
    return f"{Path(place.file).name}:{place.line} ({place.function})", calls, waits
