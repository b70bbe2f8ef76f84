"""The meeting of a run's agents: its place, the proofs by which they know each other, and both
sides of the way in.

The meeting's file tells the others the place, and a secret that only the run's owner can read (the
scheduler tells them beforehand where the nodes have no run directory in common). It also tells node
0's version of hpcdist, which all must have, and the life of the job, that is, which of its starts
by the scheduler this is: where a scheduler starts a job elsewhere while the former agents still
live, the new agents find the old file, and must not join the old leader.

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
import ipaddress
import resource
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from hpcdist.agent.messages import TO_AGENT, Beat, Channel, Failed, ToAgent
from hpcdist.agent.node import DisagreementError
from hpcdist.base import files
from hpcdist.base.version import __version__
from hpcdist.machine.network import network_key
from hpcdist.machine.process import MORE_DESCRIPTORS
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Rendezvous

SECRET_BYTES = 32
CHALLENGE_BYTES = 32
PROOF_BYTES = 32
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


class MeetingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the meeting, as it stands in launch/meeting.json."""

    addresses: list[str]
    """By which the others may reach its host, best first."""
    network: str
    """Key of the host's network, for addresses that are loopback."""
    port: int
    secret: str
    """Both sides of a connection prove that they know it; in hexadecimal digits."""
    life: int = 0
    """The start of the job that node 0's agent belongs to (agent/outcome/lives.py)."""
    version: str = __version__
    """Version of node 0's hpcdist."""


_CLOSED = "it closed the connection before it had proved anything"
_NO_PROOF = "it does not know the secret of the run"
_TOO_SLOW = "it did not prove in time that it knows the secret"


class StrangerError(OSError):
    """The other side is no agent of this run; the message says why."""


def proof(secret: bytes, side: str, said: bytes, leader_at: tuple[str, int]) -> bytes:
    """Return the proof of a side (leader or follower), from all that both have said before it and
    the leader's end of the connection."""
    return hmac.digest(secret, f"{side} {leader_at[0]} {leader_at[1]} ".encode() + said, "sha256")


def prove_to_leader(connection: socket.socket, secret: bytes, node: int) -> float:
    """Exchange proofs with node 0's agent; return the seconds to add to this host's clock for node
    0's. Raises StrangerError where it gives no proof, or OSError."""
    leader_at, deadline = connection.getpeername()[:2], time.monotonic() + _PROOF_LIMIT_S
    said = _read(connection, CHALLENGE_BYTES, deadline)
    ours = secrets.token_bytes(CHALLENGE_BYTES) + _NODE.pack(node)
    sent_s = time.time()
    connection.sendall(ours + proof(secret, "follower", said + ours, leader_at))
    answer = _read(connection, PROOF_BYTES + _CLOCK.size, deadline)
    received_s, clock = time.time(), answer[PROOF_BYTES:]
    expected = proof(secret, "leader", said + ours + clock, leader_at)
    if not hmac.compare_digest(answer[:PROOF_BYTES], expected):
        raise StrangerError(_NO_PROOF)
    leader_s: float = _CLOCK.unpack(clock)[0]
    return leader_s - (sent_s + received_s) / 2


def _read(connection: socket.socket, number: int, deadline: float) -> bytes:
    read = b""
    while len(read) < number:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            chunk = connection.recv(number - len(read))
        except TimeoutError:
            raise StrangerError(_TOO_SLOW) from None
        if not chunk:
            raise StrangerError(_CLOSED)
        read += chunk
    return read


@dataclass(eq=False)
class _Stranger:
    """A connection that has proved nothing yet."""

    connection: socket.socket
    host: str
    said: bytes = b""
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(CHALLENGE_BYTES))
    deadline: float = field(default_factory=lambda: time.monotonic() + _PROOF_LIMIT_S)


class Entrance:
    """The port of a meeting, on node 0: lets in those who know the secret, and spends little on
    others (strangers). Nothing waits here for one of them."""

    def __init__(
        self, listener: socket.socket, secret: bytes, *, log: Callable[[str], None]
    ) -> None:
        self._listener = listener
        self._secret = secret
        self._log = log
        self._strangers: dict[_Stranger, None] = {}  # oldest first
        self._num_turned_away = 0
        self._selector = selectors.EpollSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `look` has something to do, for select."""
        return self._selector.fileno()

    def look(self) -> list[tuple[int, socket.socket] | Failed]:
        """Return the agents that have proved that they belong here, by their nodes; or Failed where
        this process has no descriptors left for them. Call it twice a second, too."""
        arrived: list[tuple[int, socket.socket] | Failed | None] = []
        for key, _ in self._selector.select(0):
            stranger = key.data
            try:
                if stranger is None:
                    arrived.append(self._accept())
                elif stranger in self._strangers:
                    arrived.append(self._hear(stranger))
            except OSError as error:
                self._turn_away(stranger, str(error))
        now_s = time.monotonic()
        for stranger in [one for one in self._strangers if one.deadline <= now_s]:
            self._turn_away(stranger, _TOO_SLOW)
        return [one for one in arrived if one is not None]

    def close(self) -> None:
        """Let in nobody any more."""
        for stranger in list(self._strangers):
            self._turn_away(stranger, "the meeting is over")
        self._selector.close()
        self._listener.close()

    def _accept(self) -> Failed | None:
        """Send the challenge to a stranger; turn the oldest away where there are too many."""
        connection, most = None, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            connection, (host, *_) = self._listener.accept()
        except OSError as error:
            if error.errno != errno.EMFILE:  # whoever called has gone already
                return None
        # The system gives out the lowest descriptors that are free.
        is_full = connection is None or connection.fileno() >= most - _RESERVED_DESCRIPTORS
        if is_full and not self._strangers:
            if connection is not None:
                connection.close()
            left = "its agent has no open file left for another connection: it may have"
            return Failed(sentence=f"{left} {most:,} ({MORE_DESCRIPTORS})")
        if is_full or len(self._strangers) >= _MOST_STRANGERS:
            self._turn_away(next(iter(self._strangers)), "too many others wait to be let in")
        if connection is not None:
            connection.setblocking(False)
            self._strangers[stranger := _Stranger(connection, host)] = None
            self._selector.register(connection, selectors.EVENT_READ, stranger)
            with contextlib.suppress(OSError):  # `_hear` will find it closed
                connection.send(stranger.challenge)
        return None

    def _hear(self, stranger: _Stranger) -> tuple[int, socket.socket] | None:
        """Read what has come from a stranger; return its node and connection once it has proved
        that it knows the secret. Raises OSError."""
        chunk = stranger.connection.recv(GREETING_BYTES - len(stranger.said))
        if not chunk:
            raise StrangerError(_CLOSED)
        stranger.said += chunk
        if len(stranger.said) < GREETING_BYTES:
            return None
        leader_at = stranger.connection.getsockname()[:2]
        said = stranger.challenge + stranger.said[:-PROOF_BYTES]
        theirs = proof(self._secret, "follower", said, leader_at)
        if not hmac.compare_digest(stranger.said[-PROOF_BYTES:], theirs):
            raise StrangerError(_NO_PROOF)
        clock = _CLOCK.pack(time.time())
        stranger.connection.send(proof(self._secret, "leader", said + clock, leader_at) + clock)
        del self._strangers[stranger]
        self._selector.unregister(stranger.connection)
        return _NODE.unpack_from(stranger.said, CHALLENGE_BYTES)[0], stranger.connection

    def _turn_away(self, stranger: _Stranger, why: str) -> None:
        """Close a stranger's connection; log some of them, since a disk is soon full of all."""
        del self._strangers[stranger]
        self._selector.unregister(stranger.connection)
        stranger.connection.close()
        self._num_turned_away += 1
        if self._num_turned_away <= _MOST_LOGGED:
            self._log(f"a connection from {stranger.host} was turned away: {why}")


class NotReachedError(Exception):
    """Node 0's agent could not be reached; the message says what was found instead."""


class OvertakenError(Exception):
    """A later life of the job has begun; the message says which."""


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
) -> Joined | None:
    """Connect to node 0's agent, so that the caller can send Join; return None where `give_up` says
    that the run is over.

    An old file, of an agent that is gone or of another life of the job, is read again until it
    names an agent that answers. Raises NotReachedError where none answers in time,
    DisagreementError where this node cannot take part with node 0, and OvertakenError where this
    node's agent is of a life that is over.
    """
    begin_s = time.monotonic()
    while not give_up():
        troubles = []
        try:
            place = _find_place(run, rendezvous, life)
            for address in usable_addresses(place):
                try:
                    return _join(place, address, node_rank, source=source)
                except OSError as error:
                    reason = getattr(error, "strerror", None) or error
                    troubles.append(f"at {address} port {place.port}: {reason}")
        except NotReachedError as error:
            troubles.append(str(error))
        waited_s = time.monotonic() - begin_s
        if waited_s >= timeout_s:
            raise NotReachedError(
                f"could not reach the agent of node 0 within {timeout_s:g} s; {'; '.join(troubles)}"
            )
        time.sleep(min(poll_s(waited_s, num_nodes), timeout_s - waited_s))
    return None


def poll_s(waited_s: float, num_nodes: int) -> float:
    """Return how long an agent that has waited so long for node 0 waits until it looks again: a
    twentieth of that, and not so short that all nodes together look 2,000 times a second."""
    return min(max(0.02, num_nodes / 2000, waited_s / 20), 1.0)


def _find_place(run: Run, rendezvous: Rendezvous | None, life: int) -> MeetingPlace:
    """Return the place of this life's meeting. Raises NotReachedError where it is not known."""
    if rendezvous is not None:  # whoever named it names no loopback
        return MeetingPlace(
            addresses=[rendezvous.address],
            network=network_key(),
            port=rendezvous.port,
            secret=rendezvous.secret,
        )
    try:
        files.refresh(run.launch_folder)
        with files.open_private(run.meeting_file) as file:
            place = msgspec.json.decode(file.read(), type=MeetingPlace)
    except FileNotFoundError:
        raise NotReachedError(f"there is no {run.meeting_file} yet") from None
    except OSError as error:  # it is not ours
        raise NotReachedError(str(error)) from None
    except ValueError as error:
        raise NotReachedError(f"{run.meeting_file} is damaged: {error}") from None
    this = f"this is start {life + 1}"
    if place.life > life:
        raise OvertakenError(f"start {place.life + 1} of the job has begun, and {this}")
    if place.life < life:
        former = f"its agent of start {place.life + 1} of the job"
        raise NotReachedError(f"{former} is still there, and {this}")
    if place.version != __version__:
        raise DisagreementError(
            f"this node has hpcdist {__version__}, node 0 has {place.version}: all nodes of a run "
            "must have the same"
        )
    return place


def usable_addresses(place: MeetingPlace) -> list[str]:
    """Return the addresses of node 0 that mean node 0 here too: not loopback, but on the same host.

    Raises DisagreementError where none is left.
    """
    if place.network == network_key():
        return place.addresses
    usable = [ip for ip in place.addresses if not ipaddress.ip_address(ip).is_loopback]
    if not usable:
        raise DisagreementError(
            f"node 0 offers {', '.join(place.addresses)}, which other nodes cannot reach: its name "
            "resolves to loopback, and it has no other interface"
        )
    return usable


def _join(place: MeetingPlace, address: str, node: int, *, source: str | None) -> Joined:
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
        return Joined(Channel(connection, TO_AGENT), offset_s, address, own_address)
    except BaseException:
        connection.close()
        raise
