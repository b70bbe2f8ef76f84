"""The meeting of a run's agents: how they find node 0's and prove that they belong to the run, the
leader's connections with all of them, and who of them does nothing any more.

The meeting's file tells the others the place, and a secret that only the run's owner can read (the
scheduler tells them beforehand where the nodes have no run directory in common). It also tells the
life of the job, that is, which of its starts by the scheduler this is: where a job is started
elsewhere while the former agents still live, the new ones must not join the old leader.

Any user of a host can connect to its ports, and any user can listen on a port that an agent has
left. So both ends of a connection prove that they know the secret, which itself never crosses the
network, before a word of the other is read:

    leader -> follower    a challenge: random bytes, made for this connection
    follower -> leader    a challenge of its own, its node, and its proof
    leader -> follower    its proof and its clock; messages (agent/messages.py) follow

A proof is an HMAC with the secret over all that could be used again elsewhere: the side that gives
it, so that none can be sent back to its maker; all that was said before, so that none can be
replayed; and the leader's end of the connection, so that nobody who listens on another address can
pass the proofs of the two on between them.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import resource
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.coordinator import Heard, Lost
from hpcdist.agent.messages import Beat, Channel, ChannelClosedError, ToAgent, ToLeader
from hpcdist.agent.node import CannotLaunchError
from hpcdist.base import files
from hpcdist.machine.network import interface_of
from hpcdist.machine.ports import listen
from hpcdist.machine.process import MORE_DESCRIPTORS
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Rendezvous

CHALLENGE_BYTES = PROOF_BYTES = _SECRET_BYTES = 32
_NODE, _CLOCK = struct.Struct("!I"), struct.Struct("!d")
GREETING_BYTES = CHALLENGE_BYTES + _NODE.size + PROOF_BYTES
"""Length of what a follower sends; no more is read of a stranger."""

_PROOF_LIMIT_S = 5.0
"""Time that either side has to prove that it knows the secret."""
_MOST_STRANGERS = 128
"""Connections that have proved nothing yet; the oldest is closed for a newer one. An agent of the
run needs a millisecond, so it is crowded out only where so many come within that time."""
_RESERVED_DESCRIPTORS = 32
"""Kept free for the files of the agent itself, above all the verdict."""
_MOST_LOGGED = 20
_CONNECT_TIMEOUT_S = 3.0

_CLOSED = "it closed the connection before it had proved anything"
_NO_PROOF = "it does not know the secret of the run"
_TOO_SLOW = "it did not prove in time that it knows the secret"

_MOST_BETWEEN_BEATS_S = 10.0
_BEATS_PER_LIMIT = 5
"""So many may be late, or lost with a busy host, before anybody is missed."""
_LOOK_S = 0.5
_MOST_COUNTED_S = 2.0
"""Time between two looks that counts: in more the looking agent was suspended, or waited itself."""


class MeetingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the meeting, as it stands in launch/meeting.json."""

    addresses: list[str]
    """By which the others may reach its host, best first."""
    port: int
    secret: str
    """Both sides of a connection prove that they know it; in hexadecimal digits."""
    life: int = 0
    """The start of the job that node 0's agent belongs to (agent/outcome/lives.py)."""
    attempt: int = 0
    """The attempt that it is for, where another node has taken over from node 0; 0: the first."""


class StrangerError(OSError):
    """The other side is no agent of this run; the message says why."""


class Liveness:
    """The heartbeats of the agents at the other ends of connections, and who of them does nothing.

    Loops send beats: of an agent that is stopped, whose host has frozen, or that waits for a file
    system which does not answer, nothing comes. Only time in which a process runs itself counts:
    after a suspension, or a file server that kept all of them waiting, the others have as much time
    to show that they live as they ever had.
    """

    def __init__(self, limit_s: float, *, now_s: float) -> None:
        """Miss an agent after `limit_s`; never where that is 0. `now_s`, here and below, is the
        monotonic clock's time."""
        self._limit_s = limit_s
        self.beat_every_s = min(_MOST_BETWEEN_BEATS_S, limit_s / _BEATS_PER_LIMIT)
        self._beat_s = self._looked_s = now_s
        self._own_s = 0.0
        """The time for which this agent has looked."""
        self._heard_s: dict[int, float] = {}

    def hear(self, node: int) -> None:
        """Take a beat of a node's agent, and expect more from now on."""
        self._heard_s[node] = self._own_s

    def end(self, node: int) -> None:
        """Expect nothing more of it."""
        self._heard_s.pop(node, None)

    def look(self, now_s: float) -> dict[int, str]:
        """Return the nodes whose agents count as lost, with the reason; they are named once. Call
        it when all that has come was heard."""
        passed_s = now_s - self._looked_s
        if not self._limit_s or passed_s < min(_LOOK_S, self._limit_s / 4):
            return {}
        self._looked_s = now_s
        self._own_s += min(passed_s, _MOST_COUNTED_S, self._limit_s / 4)
        lost = {}
        for node, heard_s in list(self._heard_s.items()):
            if (silent_s := self._own_s - heard_s) >= self._limit_s:
                self.end(node)
                lost[node] = (
                    f"nothing was heard of it for {silent_s:.0f} s (is the process stopped, its "
                    "host frozen, the network between cut, or does a file system not answer it?)"
                )
        return lost

    def is_beat_due(self, now_s: float) -> bool:
        """Return True where the others are to get a beat now, and count it as sent."""
        is_due = self._limit_s > 0 and now_s - self._beat_s >= self.beat_every_s
        if is_due:
            self._beat_s = now_s
        return is_due


# The leader's side.


@dataclass(eq=False)
class _Stranger:
    """A connection that has proved nothing yet."""

    connection: socket.socket
    host: str
    said: bytes = b""
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(CHALLENGE_BYTES))
    deadline: float = field(default_factory=lambda: time.monotonic() + _PROOF_LIMIT_S)


class Connections:
    """The leader's connections with the agents of all nodes, its own included, and the port where
    they come in: it spends little on strangers, and waits for none of them."""

    def __init__(self, limit_s: float, log: Callable[[str], None], *, own_node: int = 0) -> None:
        """Count an agent as lost after `limit_s` without a sign of life; never where that is 0."""
        self._own_node = own_node
        self.channels: dict[int, Channel[ToLeader | Beat]] = {}
        self.strangers: dict[_Stranger, None] = {}  # oldest first
        self.liveness = Liveness(limit_s, now_s=time.monotonic())
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._events: list[Heard | Lost] = []
        self._listener: socket.socket | None = None
        self._secret = b""
        self._num_turned_away = 0

    def listen(
        self,
        run: Run,
        *,
        addresses: Sequence[str],
        port_range: tuple[int, int] | None,
        rendezvous: Rendezvous | None = None,
        life: int = 0,
        attempt: int = 0,
    ) -> None:
        """Listen on a free port, and write the place into the meeting's file.

        `addresses` are those by which the others may reach this host, best first; `rendezvous` is
        the place where they will come, if the scheduler has named one. Raises NoFreePortError.
        """
        self._secret, bind_to = secrets.token_bytes(_SECRET_BYTES), ""
        if rendezvous is not None:
            port_range, self._secret = (rendezvous.port,) * 2, bytes.fromhex(rendezvous.secret)
        if len(addresses) == 1 and (rendezvous is None or interface_of(addresses[0])):
            (bind_to,) = addresses
        self._listener = listen(bind_to, port_range)
        self._selector.register(self._listener, selectors.EVENT_READ)
        place = MeetingPlace(
            addresses=list(addresses),
            port=self._listener.getsockname()[1],
            secret=self._secret.hex(),
            life=life,
            attempt=attempt,
        )
        files.write_json(run.meeting_file, msgspec.to_builtins(place))

    def take(self, node: int, connection: socket.socket) -> None:
        """Take a connection as that of a node's agent from now on."""
        self._close(node)  # an agent that connects again has given up its former connection
        self.channels[node] = Channel(connection, messages.TO_LEADER)
        if node != self._own_node:
            self.liveness.hear(node)
        self._selector.register(self.channels[node], selectors.EVENT_READ, node)

    def wait(self, timeout_s: float) -> list[Heard | Lost]:
        """Return the events that have come, after so long at most. Call it twice a second."""
        for key, _ in self._selector.select(0.0 if self._events else timeout_s):
            if key.fileobj is self._listener:
                self._accept(self._listener)
            elif isinstance(key.data, _Stranger):
                self._hear_stranger(key.data)
            elif self.channels.get(key.data) is key.fileobj:  # else lost, or replaced
                self._receive(key.data)
        now_s = time.monotonic()
        for stranger in [one for one in self.strangers if one.deadline <= now_s]:
            self._turn_away(stranger, _TOO_SLOW)
        for node, reason in self.liveness.look(now_s).items():
            self._lose(node, reason)
        events, self._events = self._events, []
        return events

    def send(self, nodes: Iterable[int], message: ToAgent | Beat) -> None:
        """Send a message to nodes' agents; for one that is gone, `wait` returns Lost."""
        for node in nodes:
            if (channel := self.channels.get(node)) is not None:
                try:
                    channel.send(message)
                except ChannelClosedError as error:
                    self._lose(node, str(error))

    def close_entrance(self) -> None:
        """Let in nobody any more."""
        for stranger in list(self.strangers):
            self._turn_away(stranger, "the meeting is over")
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        self.close_entrance()
        for node in list(self.channels):
            self._close(node)

    def _receive(self, node: int) -> None:
        try:
            for message in self.channels[node].receive():
                if isinstance(message, Beat):
                    self.liveness.hear(node)
                else:
                    self._events.append(Heard(node, message))
        except ChannelClosedError as error:
            self._lose(node, str(error))

    def _lose(self, node: int, reason: str) -> None:
        if self._close(node):
            self._events.append(Lost(node, reason))

    def _close(self, node: int) -> bool:
        self.liveness.end(node)
        channel = self.channels.pop(node, None)
        if channel is not None:
            self._selector.unregister(channel)
            channel.close()
        return channel is not None

    def _accept(self, listener: socket.socket) -> None:
        """Send the challenge to a stranger; turn the oldest away where there are too many, and fail
        where this process has no descriptors left for the agents."""
        connection, most = None, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            connection, (host, *_) = listener.accept()
        except OSError as error:
            if error.errno != errno.EMFILE:  # whoever called has gone already
                return
        # The system gives out the lowest descriptors that are free.
        is_full = connection is None or connection.fileno() >= most - _RESERVED_DESCRIPTORS
        if is_full and not self.strangers:
            if connection is not None:
                connection.close()
            left = "its agent has no open file left for another connection: it may have"
            failed = messages.Failed(f"{left} {most:,} ({MORE_DESCRIPTORS})")
            self._events.append(Heard(self._own_node, failed))
            return
        if is_full or len(self.strangers) >= _MOST_STRANGERS:
            self._turn_away(next(iter(self.strangers)), "too many others wait to be let in")
        if connection is not None:
            connection.setblocking(False)
            self.strangers[stranger := _Stranger(connection, host)] = None
            self._selector.register(connection, selectors.EVENT_READ, stranger)
            with contextlib.suppress(OSError):  # `_hear_stranger` will find it closed
                connection.send(stranger.challenge)

    def _hear_stranger(self, stranger: _Stranger) -> None:
        """Read what has come from a stranger; take it for its node's agent once it has proved that
        it knows the secret."""
        if stranger not in self.strangers:  # turned away in the same moment
            return
        connection = stranger.connection
        try:
            chunk = connection.recv(GREETING_BYTES - len(stranger.said))
            stranger.said += chunk
            if not chunk:
                raise StrangerError(_CLOSED)
            if len(stranger.said) < GREETING_BYTES:
                return
            leader_at = connection.getsockname()[:2]
            said = stranger.challenge + stranger.said[:-PROOF_BYTES]
            theirs = proof(self._secret, "follower", said, leader_at)
            if not hmac.compare_digest(stranger.said[-PROOF_BYTES:], theirs):
                raise StrangerError(_NO_PROOF)
            clock = _CLOCK.pack(time.time())
            connection.send(proof(self._secret, "leader", said + clock, leader_at) + clock)
        except OSError as error:
            self._turn_away(stranger, str(error))
            return
        del self.strangers[stranger]
        self._selector.unregister(connection)
        self.take(_NODE.unpack_from(stranger.said, CHALLENGE_BYTES)[0], connection)

    def _turn_away(self, stranger: _Stranger, why: str) -> None:
        """Close a stranger's connection; log some of them, since a disk is soon full of all."""
        del self.strangers[stranger]
        self._selector.unregister(stranger.connection)
        stranger.connection.close()
        self._num_turned_away += 1
        if self._num_turned_away <= _MOST_LOGGED:
            self._log(f"a connection from {stranger.host} was turned away: {why}")


# The others' side.


class Joined(NamedTuple):
    """A connection to node 0's agent."""

    channel: Channel[ToAgent | Beat]
    clock_offset_s: float
    """Seconds to add to this host's clock for node 0's."""
    address: str
    """The address of node 0 that answered."""
    source: str
    """This host's own address on the way there."""


def join_meeting(
    run: Run,
    *,
    node_rank: int,
    num_nodes: int,
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
    rendezvous: Rendezvous | None = None,
    life: int = 0,
    attempt: int = 0,
) -> Joined | None:
    """Connect to node 0's agent, or to the one that leads from `attempt` on, so that the caller can
    send Join; return None where `give_up` says that the run is over, or where a later life of the
    job has begun.

    An old file, of an agent that is gone or of a former life, is read again until it names an agent
    that answers. Raises CannotLaunchError where none does in time.
    """
    begin_s, known = time.monotonic(), None
    if rendezvous is not None:  # each start has another node 0 there: none answers for a former one
        addresses, port, secret = [rendezvous.address], rendezvous.port, rendezvous.secret
        known = MeetingPlace(addresses=addresses, port=port, secret=secret, life=life)
    while not give_up():
        troubles = []
        place = known or _find_place(run)
        if isinstance(place, str):
            troubles.append(place)
        elif place.life > life:
            return None
        elif place.life < life:
            former = f"its agent of start {place.life + 1} of the job is still there"
            troubles.append(f"{former}, and this is start {life + 1}")
        elif place.attempt < attempt:
            troubles.append(f"no agent leads attempt {attempt} yet")
        else:
            for address in place.addresses:
                try:
                    return _connect(place, address, node_rank, source=source)
                except OSError as error:
                    reason = getattr(error, "strerror", None) or error
                    troubles.append(f"at {address} port {place.port}: {reason}")
        waited_s = time.monotonic() - begin_s
        if waited_s >= timeout_s:
            limit = f"within {timeout_s:g} s; {'; '.join(troubles)}"
            raise CannotLaunchError(f"could not reach the agent of node 0 {limit}")
        # All nodes together look 2,000 times a second at most.
        poll_s = min(max(0.02, num_nodes / 2000, waited_s / 20), 1.0)
        time.sleep(min(poll_s, timeout_s - waited_s))
    return None


def _find_place(run: Run) -> MeetingPlace | str:
    """Return the place of the meeting, or why it is not known yet."""
    try:
        files.refresh(run.launch_folder)
        with files.open_private(run.meeting_file) as file:
            return msgspec.json.decode(file.read(), type=MeetingPlace)
    except FileNotFoundError:
        return f"there is no {run.meeting_file} yet"
    except (OSError, ValueError) as error:  # it is not ours, or damaged
        return f"its place cannot be read in {run.meeting_file}: {error}"


def _connect(place: MeetingPlace, address: str, node: int, *, source: str | None) -> Joined:
    """Connect to one address and exchange proofs. Raises OSError or StrangerError where it is not
    node 0's agent that answers."""
    connection = socket.create_connection(
        (address, place.port),
        timeout=_CONNECT_TIMEOUT_S,
        source_address=(source, 0) if source else None,
    )
    try:
        offset_s = prove_to_leader(connection, bytes.fromhex(place.secret), node)
        own_address = str(connection.getsockname()[0])
        return Joined(Channel(connection, messages.TO_AGENT), offset_s, address, own_address)
    except BaseException:
        connection.close()
        raise


def prove_to_leader(connection: socket.socket, secret: bytes, node: int) -> float:
    """Exchange proofs with node 0's agent; return the seconds to add to this host's clock for node
    0's. Raises StrangerError where it gives no proof, or OSError."""
    leader_at, deadline = connection.getpeername()[:2], time.monotonic() + _PROOF_LIMIT_S

    def read(number: int) -> bytes:
        said = b""
        while len(said) < number:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                chunk = connection.recv(number - len(said))
            except TimeoutError:
                raise StrangerError(_TOO_SLOW) from None
            if not chunk:
                raise StrangerError(_CLOSED)
            said += chunk
        return said

    said = read(CHALLENGE_BYTES)
    ours = secrets.token_bytes(CHALLENGE_BYTES) + _NODE.pack(node)
    sent_s = time.time()
    connection.sendall(ours + proof(secret, "follower", said + ours, leader_at))
    answer = read(PROOF_BYTES + _CLOCK.size)
    received_s, clock = time.time(), answer[PROOF_BYTES:]
    expected = proof(secret, "leader", said + ours + clock, leader_at)
    if not hmac.compare_digest(answer[:PROOF_BYTES], expected):
        raise StrangerError(_NO_PROOF)
    leader_s: float = _CLOCK.unpack(clock)[0]
    return leader_s - (sent_s + received_s) / 2


def proof(secret: bytes, side: str, said: bytes, leader_at: tuple[str, int]) -> bytes:
    """Return the proof of a side (leader or follower), from all that both have said before it and
    the leader's end of the connection."""
    return hmac.digest(secret, f"{side} {leader_at[0]} {leader_at[1]} ".encode() + said, "sha256")
