"""Requests of commands to the agents of a living run, and the answers, as files of its directory.

A command writes a request, which node 0's agent takes about once a second. That agent asks the
others over the connections that it has, and leaves their reports in one file, whole, which the
command removes. So there is no port to find, and nothing to be polled per node or rank.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Annotated

import msgspec

from hpcdist.base import files
from hpcdist.base.polling import poll
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import UnixTime

_MOST_REQUEST_BYTES = 1 << 20
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
    sizes: list[list[int]] = []
    dtypes: list[str] = []
    begun_s: UnixTime = 0.0
    """Unix time, by its host's clock."""
    is_done: bool = False


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's newest operations in one process group, oldest first."""

    name: str
    ranks: list[int] | None = None
    """Global ranks of its members; None for all."""
    operations: list[Operation] = []

    @property
    def last_number(self) -> int:
        return max((operation.number for operation in self.operations), default=0)


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


_REQUEST = msgspec.json.Decoder(Request)
_ANSWER = msgspec.json.Decoder(Answer)


# The command's side.


def send(run: Run, request: Request) -> None:
    """Tell the agents of a request, which must be withdrawn in the end. Raises OSError."""
    poll(
        lambda: None if files.is_there(run.request_file) else True,
        interval_s=0.1,
        limit_s=_TAKEN_S,
    )
    files.write_whole(run.request_file, msgspec.json.encode(request))


def withdraw(run: Run, request: Request) -> None:
    """Remove the answer, which nobody waits for any more."""
    with contextlib.suppress(OSError):
        run.answer_file(request.id).unlink()


def take_answer(run: Run, request: Request) -> Answer | None:
    """Return the answer to a request; None until it is there. Raises OSError, and
    msgspec.MsgspecError where the file is not what an agent writes."""
    path = run.answer_file(request.id)
    if not files.is_there(path):
        return None
    return _ANSWER.decode(files.read_bytes(path, most_bytes=_MOST_ANSWER_BYTES))


# The agents' side.


def take_request(run: Run) -> Request | None:
    """Return the request that has come, and remove it."""
    if not files.is_there(run.request_file):
        return None
    try:
        with files.open_private(run.request_file) as file:
            return _REQUEST.decode(file.read(_MOST_REQUEST_BYTES))
    except (OSError, msgspec.MsgspecError, UnicodeError):  # none of ours
        return None
    finally:
        run.request_file.unlink(missing_ok=True)


def leave_answer(run: Run, request: str, answer: Answer) -> None:
    """Write the answer to a request. Raises OSError."""
    files.write_whole(run.answer_file(request), msgspec.json.encode(answer))
