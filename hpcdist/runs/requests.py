"""Requests of commands to the agents of a living run, and the answers, as files of its directory.

A command writes a request, which node 0's agent takes about once a second. That agent asks the
others over the connections that it has, and leaves their reports in one file, whole, which the
command removes. So there is no port to find, and nothing to be polled per node or rank.

The ranks' accounts of their collective operations tell where a run stands still. Every rank of a
process group counts the operations that it begins there, and all must begin the same ones in the
same order. So the first number that some have begun and not finished, and others have not begun, or
began as something else, is where the run hangs; the rank that is missing there and waits nowhere
else is the one to look at.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from hpcdist.base import files
from hpcdist.base.progress import poll
from hpcdist.base.text import listed
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import UnixTime

_MOST_ANSWER_BYTES = 1 << 28
"""Size of an answer that is read: 10,000 ranks of 25 kB."""
_TAKEN_S = 3.0
"""A living agent has taken another command's request by then."""

_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Limit = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a command: where ranks are, which NodeStacks report, or what takes the time
    in some of their steps, which NodeProfiles report."""

    id: _Id = msgspec.field(default_factory=lambda: secrets.token_hex(8))
    """Names the answer's file."""
    limit_s: _Limit
    """Nodes that have not reported by then are left out of the answer."""
    ranks: list[int] | None = None
    """None: all."""
    profiled_steps: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """0: the command wants to know where ranks are."""
    wait_s: _Limit = 1.0
    """Ranks that have not made these steps by then are left alone."""


# Reports.


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One call of a stack."""

    file: str
    line: int
    function: str


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """Where one thread is."""

    name: str | None = None
    """None where that is not known."""
    frames: list[Frame] = []
    """Innermost first."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One collective operation as one rank began it."""

    number: int
    """Place among the operations of its group, from 1; every rank of the group counts alike."""
    name: str
    """all_reduce and its like, as the backend calls it."""
    tensors: str = ""
    """Types and sizes of what goes in: float[10], long[2x3]."""
    begun_s: UnixTime = 0.0
    """Unix time, by its host's clock."""
    is_done: bool = False


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's newest operations in one process group, oldest first."""

    name: str
    ranks: list[int] | None = None
    """Global ranks of its members; None for all."""
    operations: list[Operation] = []


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's account of its collective operations."""

    groups: list[GroupRecord] = []
    is_recorded: bool = True
    """False: no recorder runs, or this torch has none for its backend."""


class OperationTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one operation or kernel, without that of what it calls."""

    name: str
    calls: int
    self_s: float


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of a few steps of a rank."""

    steps: int = 0
    last_step: int = 0
    """Number of finished steps at its end."""
    wall_s: float = 0.0
    """Of all these steps."""
    operations: list[OperationTime] = []
    """Those with the most time, on GPUs of their kernels; over all these steps."""
    operations_s: float = 0.0
    """The time of all of them, one by one; over all these steps."""
    busy_s: float = 0.0
    """The time in which one or several of them ran; the rest is Python's, and waiting."""
    trace: str | None = None
    """Its Chrome trace, relative to the run directory."""
    error: str | None = None
    """Why there is no profile, or no trace."""


class RankStacks(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank is, and what its process does."""

    rank: int
    pid: int
    step: int | None = None
    """Number of finished steps."""
    state: str = "?"
    """State letter of the process."""
    rss_bytes: int | None = None
    threads: list[ThreadStack] = []
    note: str | None = None
    """Why there are no stacks, or less than there should be."""
    collectives: Collectives | None = None


class NodeStacks(msgspec.Struct, frozen=True, kw_only=True, tag="stacks"):
    """One agent's answer to a request for stacks."""

    host: str
    ranks: list[RankStacks]


class NodeProfiles(msgspec.Struct, frozen=True, kw_only=True, tag="profiles"):
    """One agent's answer to a request for a profile."""

    ranks: dict[int, StepReport]


NodeReport = NodeStacks | NodeProfiles


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The agents' answer to one request."""

    attempt: int
    time_s: UnixTime
    """Node 0's clock."""
    world_size: int
    reports: dict[int, NodeReport] = {}
    """By node."""
    troubles: dict[int, str] = {}
    """Why nodes have given no report, by node."""
    refusal: str | None = None
    """Why nothing was asked."""


# The command's side; that of the agents is in agent/leader.py.


def send(run: Run, request: Request) -> None:
    """Tell the agents of a request, whose answer must be removed in the end. Raises OSError."""
    poll(lambda: not files.is_there(run.request_file) or None, interval_s=0.1, limit_s=_TAKEN_S)
    files.write_whole(run.request_file, msgspec.json.encode(request))


def take_answer(run: Run, request: Request) -> Answer | None:
    """Return the answer; None until it is there. Raises OSError, MsgspecError for no agent's."""
    path = run.answer_file(request.id)
    if not files.is_there(path):
        return None
    content = files.read_bytes(path, most_bytes=_MOST_ANSWER_BYTES)
    return msgspec.json.decode(content, type=Answer)


# Where a run stands still.

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
    records: defaultdict[str, dict[int, GroupRecord]] = defaultdict(dict)
    for rank, account in accounts.items():
        for group in account.groups:
            records[group.name][rank] = group
    found = []
    for name, groups in sorted(records.items()):
        operations = [(rank, one) for rank, group in groups.items() for one in group.operations]
        number = min((one.number for _, one in operations if not one.is_done), default=None)
        if number is None:
            continue
        here = [(rank, one) for rank, one in operations if one.number == number]
        # Of two by one number, the one that goes on.
        begun = dict(sorted(here, key=lambda each: not each[1].is_done))
        waiting = {rank: one for rank, one in begun.items() if not one.is_done}
        # Of those that go on, the one that most ranks began; then that of the lowest rank.
        usual = max(waiting.values(), key=lambda one: sum(_fits(o, one) for o in begun.values()))
        members = next((group.ranks for group in groups.values() if group.ranks), sorted(ranks))
        reached = {rank for rank, one in operations if one.number >= number}
        found.append(
            Standstill(
                group=name,
                waiting=[rank for rank, one in waiting.items() if _fits(one, usual)],
                operation=usual,
                missing=[rank for rank in members if rank not in reached | mute],
                others={rank: one for rank, one in begun.items() if not _fits(one, usual)},
                mute=sorted(mute.intersection(members)),
            )
        )
    all_waiting = {rank for one in found for rank in one.waiting}

    def order(one: Standstill) -> tuple[bool, bool, float]:
        follows = not one.others and all_waiting.issuperset(one.missing)
        return not (one.missing or one.others or one.mute), follows, one.operation.begun_s

    return sorted(found, key=order)


def _fits(one: Operation, other: Operation) -> bool:
    """Return True where two ranks' operations are one; a root gives what others do not."""
    is_alike = one.name not in _OF_ONE_SIZE or not one.tensors or not other.tensors
    return one.name == other.name and (is_alike or one.tensors == other.tensors)


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
    """Return how the ranks stand to each other, in words; `lines` say where they are, by rank."""
    if not standstills:
        return None
    waits = []
    for one in standstills:
        group = "" if one.group == "0" else f" of process group {one.group}"
        where = f"number {one.operation.number}{group}{_at(one.waiting, lines)}"
        who = f"{listed(one.waiting)} {'waits' if len(one.waiting) == 1 else 'wait'}"
        since = time.strftime("since %H:%M:%S", time.localtime(one.operation.begun_s))
        waits.append((who, f"{_signature(one.operation)}, {where}", since))
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
        return f"all its ranks have begun {what}, which does not end"
    return f"{listed(first.missing)} never reached {what}, in which {who} {since}"


def _at(ranks: Sequence[int], lines: Mapping[int, str]) -> str:
    return next((f" (at {lines[rank]})" for rank in ranks if rank in lines), "")


def _signature(operation: Operation) -> str:
    return f"{operation.name}({operation.tensors})" if operation.tensors else operation.name


def place_of(frames: Sequence[Frame]) -> tuple[str | None, str | None, bool]:
    """Return where a thread is by its stack (its innermost line outside installed libraries, or of
    all), the library's function that it called there, and whether it waits for ranks in it."""
    if not frames:
        return None, None, False
    is_own = [not any(library in frame.file for library in _LIBRARIES) for frame in frames]
    number = is_own.index(True) if any(is_own) else 0
    place, within = frames[number], frames[: number if any(is_own) else None]
    waits = any(file in frame.file for frame in within for file in _WAITING)
    below = reversed(frames[:number])
    called = next((f for f in below if not f.file.endswith(_DECORATORS)), None)
    calls = f"{called.function} of {Path(called.file).name}" if called else None
    return f"{Path(place.file).name}:{place.line} ({place.function})", calls, waits
