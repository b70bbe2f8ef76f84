"""Messages between a run's agents, their forkservers and ranks, and the channel that they take.

A message is one line of JSON, with its kind as `type`. What may come from where is a union of
kinds, and nothing else is accepted: a channel closes where it receives another kind, a field of
another type, a line without an end, or what is no JSON at all. Agents that exchange messages have
proved before that they are of one run (agent/meeting.py).

A run without failures, in this order; node 0's own agent is a member like the others:

    to a member    between it and its forkserver    to the leader
                                                    Join
    Begin          Begin, StoreOpened               StoreOpened (on node 0 only)
    Start          Fork; Started, Exited            Ended, for each rank
    End            End, Gone                        Gone
    Close

After a failure, End comes as soon as the first ranks have failed; after the last Gone, Begin
follows where the ranks are started again.
"""

from __future__ import annotations

import socket
import threading
from typing import Generic, TypeVar

import msgspec

from hpcdist.agent.node import NodeFacts, RankMeeting
from hpcdist.agent.preflight import Figures
from hpcdist.rank.context import RankOrder
from hpcdist.runs.requests import Collectives, NodeReport, Request
from hpcdist.runs.verdict import RankEnd

_Received = TypeVar("_Received")

_SEND_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 1 << 24
"""Limit of one message: the largest bring a rank's traceback, or the environments of a node's
ranks."""
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A host that loses its power or its network says no goodbye: the kernel finds out in 20 s."""


class HangReport(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a run that hangs, as its agent sees it."""

    end: RankEnd
    silent_s: float
    """Since its last sign of work."""
    where: str | None = None
    """Innermost line of its main thread; None where it did not answer."""
    calls: str | None = None
    """Function of a library that this line has called."""
    is_waiting: bool = False
    """It waits for other ranks, in a collective or in the backward pass."""
    state: str = "?"
    """State letter of the process: T is stopped."""
    collectives: Collectives | None = None
    """None where it did not answer."""
    stack: str | None = None
    """A digest of its main thread's calls; None where it did not answer."""
    spins: bool = False
    """It uses CPU time, or its node's GPUs work or cannot be asked."""


class Message(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    """The base of all messages."""


class Beat(Message, tag="beat"):
    """Between agents, both ways: the sender lives, and its loops turn; nothing follows."""


# From a member to the leader, for its coordinator.


class Join(Message, tag="join"):
    """An agent has found its node fit; once all have, Begin and Start follow, or the verdict."""

    facts: NodeFacts


class OfAttempt(Message):
    """The base of messages about an attempt: ignored where another has begun."""

    attempt: int


class Ended(OfAttempt, tag="ended"):
    """An agent reaped a rank; a failure makes the coordinator end the attempt."""

    end: RankEnd


class Gone(OfAttempt, tag="gone"):
    """Nothing of an attempt is left on a node, as its forkserver says; with the last node's comes
    the next attempt, or Close."""


class Quiet(OfAttempt, tag="quiet"):
    """No rank of the node has shown a sign of work for some time; with the last node's comes Dump.
    It is sent again after as much more time."""

    quiet_s: float
    """Time without a sign; 0: a rank works again."""


class Stacks(OfAttempt, tag="stacks"):
    """An agent's answer to Dump: where its ranks are. With the last node's, the coordinator decides
    whether the run hangs."""

    reports: list[HangReport]


class Failed(Message, tag="failed"):
    """A node cannot go on, as its agent or its forkserver found out; the run ends."""

    sentence: str


class Signalled(Message, tag="signalled"):
    """An agent got a signal: the job will be ended soon. Pause follows, and no other attempt."""

    signal: str
    is_cancel: bool = False
    """The user ends the run; End follows at once."""


class Reached(OfAttempt, tag="reached"):
    """The last step boundary that a paused node's ranks had reached; with the last node's comes
    Pause with the boundary at which they stop."""

    boundary: int


class Checked(OfAttempt, tag="checked"):
    """A node's answer to Start with `is_preflight`, by the process that checked it. With the last
    node's comes Start, or End."""

    figures: Figures


# For commands that ask about running ranks; the coordinator has no part in it.


class Ask(Message, tag="ask"):
    """Node 0's agent passes on a request; Report is the answer, late where a rank hangs."""

    request: Request


class Report(Message, tag="report"):
    """An agent's answer to Ask: a report on its ranks."""

    request: str
    """The request's id."""
    report: NodeReport | str
    """A sentence: why there is none."""


# From the leader to a member.


class Begin(Message, tag="begin"):
    """An attempt has its number. Node 0's agent passes this on to its forkserver, which opens a
    store for it; StoreOpened is the answer, and then Start follows."""

    meeting: RankMeeting
    """Still without a port."""
    port_range: tuple[int, int] | None


class Start(Message, tag="start"):
    """The ranks of an attempt are to start; Ended follows for each."""

    meeting: RankMeeting
    is_preflight: bool = False
    """The nodes are to be checked first; Checked is the answer."""


class End(Message, tag="end"):
    """The rest of an attempt is to end; Gone is the answer. The forkserver sends the signal, and
    SIGKILL to ranks that have not ended in time."""

    attempt: int
    signal: int
    grace_s: float
    """Time for ranks that handle the signal; the others are ended at once."""


class Dump(Message, tag="dump"):
    """The ranks are to write their stacks; Stacks is the answer."""

    attempt: int


class Pause(Message, tag="pause"):
    """The ranks are to wait at their next step boundary; Reached is the answer. Ranks of the user's
    own code get a signal."""

    signal: str | None = None
    """Signal by which the scheduler gave notice."""
    stop_at: int | None = None
    """The step boundary at which the ranks are to end; None: it follows."""


class Close(Message, tag="close"):
    """The run is over; the agent leaves."""


# Between an agent and its forkserver. Ranks have pipes of their own to the agent (rank/pipe.py).


class Fork(Message, tag="fork"):
    """The agent wants these ranks; Started follows for each, or Failed."""

    orders: list[RankOrder]
    is_preflight: bool = False
    """It wants the node checked in their place."""


class Ready(Message, tag="ready"):
    """The forkserver has imported what the ranks need, and can fork."""


class StoreOpened(Message, tag="store_opened"):
    """The store of an attempt listens, so that the ranks can start."""

    port: int


class Started(Message, tag="started"):
    """The forkserver forked a rank."""

    local_rank: int
    pid: int


class Exited(Message, tag="exited"):
    """The forkserver reaped a rank; the agent puts together how it ended, and sends Ended."""

    local_rank: int
    status: int
    """As waitpid gives it, of the workload."""
    time_s: float
    """Unix time, by this host's clock."""
    max_rss_bytes: int | None = None
    outlasted: bool = False
    """It handled the signal that asked it to end, and was killed after the grace."""


AnyOfAttempt = Ended | Gone | Quiet | Stacks | Reached | Checked
ToLeader = Join | Failed | Signalled | StoreOpened | AnyOfAttempt | Report
ToRanks = Begin | End | Dump | Pause | Ask
ToAgent = Start | ToRanks | Close
ToForkserver = Begin | Fork | Pause | End
FromForkserver = Ready | StoreOpened | Started | Exited | Gone | Failed | Checked

TO_LEADER: msgspec.json.Decoder[ToLeader | Beat] = msgspec.json.Decoder(ToLeader | Beat)
TO_AGENT: msgspec.json.Decoder[ToAgent | Beat] = msgspec.json.Decoder(ToAgent | Beat)
TO_FORKSERVER: msgspec.json.Decoder[ToForkserver] = msgspec.json.Decoder(ToForkserver)
FROM_FORKSERVER: msgspec.json.Decoder[FromForkserver] = msgspec.json.Decoder(FromForkserver)


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message) + b"\n"


class ChannelClosedError(Exception):
    """The other side is gone."""

    def __init__(self, message: str, *, is_sure: bool = False) -> None:
        """`is_sure`: its host says so; else nothing is heard of it."""
        super().__init__(message)
        self.is_sure = is_sure


class Channel(Generic[_Received]):
    """One end of a connected stream socket."""

    def __init__(self, connection: socket.socket, decoder: msgspec.json.Decoder[_Received]) -> None:
        connection.settimeout(_SEND_TIMEOUT_S)
        if connection.family != socket.AF_UNIX:
            for option in _KEEP_ALIVE:
                connection.setsockopt(*option)
        self._connection = connection
        self._decoder = decoder
        self._buffer = b""
        self._sending = threading.Lock()  # questions to the ranks are answered by threads
        self._failure: str | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send one message; ChannelClosedError where the other side is gone or reads nothing."""
        with self._sending:
            try:
                if self._failure is None:
                    self._connection.sendall(encode(message))
            except OSError as error:
                self._failure = str(error)  # a part of the message may have gone out
            if self._failure is not None:
                raise ChannelClosedError(self._failure)

    def receive(self) -> list[_Received]:
        """Return the messages that have come; call it when select says that there is something.
        Raises ChannelClosedError at the end of the stream, and where something else comes."""
        try:
            chunk = self._connection.recv(_CHUNK_BYTES)
        except OSError as error:
            is_sure = isinstance(error, ConnectionError)
            raise ChannelClosedError(str(error), is_sure=is_sure) from None
        if not chunk:
            raise ChannelClosedError("the other side closed the connection", is_sure=True)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > _MOST_BYTES:
            raise ChannelClosedError(f"a message of more than {_MOST_BYTES} bytes")
        try:
            return [self._decoder.decode(line) for line in lines]
        except Exception as error:  # noqa: BLE001 - whatever it causes ends this channel alone
            raise ChannelClosedError(f"not a message: {error}") from None

    def close(self) -> None:
        with self._sending:
            self._connection.close()
