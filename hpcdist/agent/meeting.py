"""The meeting of a run's agents: its place, the proofs by which they know each other, and both
sides of the way in.

The meeting's file tells the others the place, and a secret that only the run's owner can read (the
scheduler tells them beforehand where the nodes have no run directory in common). It also tells the
life of the job, that is, which of its starts by the scheduler this is: where a scheduler starts a
job elsewhere while the former agents still live, the new agents find the old file, and must not
join the old leader.

Any user of a host can connect to its ports, and any user can listen on a port that an agent has
left. So both ends of a connection prove that they know the secret, which itself never crosses the
network, before a word of the other is read:

    leader -> follower    a challenge: random bytes, made for this connection
    follower -> leader    a challenge of its own, and its proof
    leader -> follower    its proof; Hello and Welcome (agent/messages.py) follow

A proof is an HMAC with the secret over all that could be used again elsewhere: the side that gives
it, so that none can be sent back to its maker; both challenges, so that none can be replayed; and
the leader's end of the connection, so that nobody who listens on another address can pass the
proofs of the two on between them.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import resource
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hpcdist.agent.messages import (
    HELLO,
    TO_AGENT,
    WELCOME,
    Beat,
    Channel,
    ChannelClosedError,
    Failed,
    Hello,
    ToAgent,
)
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

_PROOF_LIMIT_S = 5.0
"""Time that either side has to prove that it knows the secret."""
_MOST_STRANGERS = 128
"""Connections that have proved nothing yet; the oldest is closed for a newer one. An agent of the
run needs a millisecond, so it is crowded out only where so many come within that time."""
_RESERVED_DESCRIPTORS = 32
"""Kept free for the files of the agent itself, above all the verdict."""
_REST_S = 0.5
"""Pause in accepting connections where the system has nothing left for them."""
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MOST_LOGGED = 20
_SHORTEST_POLL_S = 0.02
_LONGEST_POLL_S = 1.0
_POLL_SHARE = 0.05
"""Share of the time that an agent has waited: it hears of node 0 so much later at most."""
_MOST_POLLS_PER_S = 2000
"""Limit for all nodes together: their file server has other things to do."""
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
    life: int | None = None
    """The start of the job that node 0's agent belongs to (agent/outcome/lives.py), counted from 0;
    None: any."""


class StrangerError(Exception):
    """The other side is no agent of this run; the message says why."""


def proofs(
    secret: bytes, leaders: bytes, followers: bytes, leader_at: tuple[str, int]
) -> tuple[bytes, bytes]:
    """Return the follower's proof and the leader's, from both challenges and the leader's end of
    the connection."""
    end = b"%b%b%b %d" % (leaders, followers, leader_at[0].encode(), leader_at[1])
    follower, leader = (
        hmac.digest(secret, side + b"\0" + end, "sha256") for side in (b"follower", b"leader")
    )
    return follower, leader


def prove_to_leader(connection: socket.socket, secret: bytes) -> None:
    """Exchange proofs with node 0's agent. Raises StrangerError where it gives none, or OSError."""
    deadline = time.monotonic() + _PROOF_LIMIT_S
    leaders = _read(connection, CHALLENGE_BYTES, deadline)
    followers = secrets.token_bytes(CHALLENGE_BYTES)
    ours, theirs = proofs(secret, leaders, followers, connection.getpeername()[:2])
    connection.sendall(followers + ours)
    if not hmac.compare_digest(_read(connection, PROOF_BYTES, deadline), theirs):
        raise StrangerError("it does not know the secret of the run")


def prove_to_follower(connection: socket.socket, secret: bytes) -> None:
    """Exchange proofs with whoever has connected to node 0's agent; no more than a proof is read.
    Raises StrangerError where it gives none, or OSError."""
    deadline = time.monotonic() + _PROOF_LIMIT_S
    leaders = secrets.token_bytes(CHALLENGE_BYTES)
    connection.sendall(leaders)
    said = _read(connection, CHALLENGE_BYTES + PROOF_BYTES, deadline)
    followers, proof = said[:CHALLENGE_BYTES], said[CHALLENGE_BYTES:]
    theirs, ours = proofs(secret, leaders, followers, connection.getsockname()[:2])
    if not hmac.compare_digest(proof, theirs):
        raise StrangerError("it does not know the secret of the run")
    connection.sendall(ours)


def _read(connection: socket.socket, number: int, deadline: float) -> bytes:
    read = b""
    while len(read) < number:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            chunk = connection.recv(number - len(read))
        except TimeoutError:
            raise StrangerError("it did not prove in time that it knows the secret") from None
        if not chunk:
            raise StrangerError("it closed the connection before it had proved anything")
        read += chunk
    return read


def _none_left() -> str:
    return (
        "its agent has no open file left for another connection: it may have "
        f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} ({MORE_DESCRIPTORS})"
    )


class Entrance:
    """The port of a meeting, on node 0: lets in those who know the secret, and spends little on
    others (strangers). One thread accepts; one per connection waits for its proof and its Hello."""

    def __init__(
        self, listener: socket.socket, secret: bytes, *, log: Callable[[str], None]
    ) -> None:
        """Accept connections until `close`."""
        self._listener = listener
        self._secret = secret
        self._log = log
        self._strangers: dict[socket.socket, tuple[str, threading.Thread]] = {}  # oldest first
        self._most_strangers = _MOST_STRANGERS
        self._num_turned_away = 0
        self._arrived: deque[tuple[Hello, Channel[Hello]] | Failed] = deque()
        self._bell, self._rung = socket.socketpair()
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `take` has something, for select."""
        return self._rung.fileno()

    def take(self) -> list[tuple[Hello, Channel[Hello]] | Failed]:
        """Return the agents that have proved that they belong here; or Failed where this process
        has no descriptors left for them."""
        self._rung.recv(4096)
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self) -> None:
        """Let in nobody any more."""
        self._is_closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._thread.join()
        self._listener.close()
        for stranger in list(self._strangers):
            self._turn_away(stranger, "the meeting is over")
        with self._lock:
            self._bell.close()
            self._rung.close()
        if (num_more := self._num_turned_away - _MOST_LOGGED) > 0:
            self._log(f"{num_more} more connections were turned away")

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError as error:  # whoever called has gone already
                if error.errno == errno.EMFILE and not self._strangers:
                    self._arrive(Failed(sentence=_none_left()))
                if error.errno in _NOTHING_LEFT:
                    self._is_closed.wait(_REST_S)
                continue
            thread = threading.Thread(target=self._meet, args=(connection, address[0]), daemon=True)
            try:
                self._make_room(connection)
                self._strangers[connection] = (address[0], thread)
                thread.start()
            except (StrangerError, RuntimeError) as error:  # no thread may start any more
                self._forget(connection)
                connection.close()
                self._note(address[0], str(error))

    def _make_room(self, newest: socket.socket) -> None:
        """Turn away the oldest stranger where there are too many. Raises StrangerError."""
        with self._lock:
            oldest, number = next(iter(self._strangers), None), len(self._strangers)
        # The system gives out the lowest descriptors that are free.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if newest.fileno() >= most - _RESERVED_DESCRIPTORS:
            if oldest is None:
                self._arrive(Failed(sentence=_none_left()))
                raise StrangerError("too few file descriptors are left (ulimit -n)")
            self._most_strangers = number
        if oldest is not None and number >= self._most_strangers:
            self._turn_away(oldest, "too many others wait to be let in")

    def _meet(self, connection: socket.socket, host: str) -> None:
        """Wait for a stranger's proof, and then for its Hello."""
        try:
            prove_to_follower(connection, self._secret)
            channel = Channel(connection, HELLO)
            while not (hellos := channel.receive()):
                pass
        except Exception as error:  # noqa: BLE001 - whatever a stranger causes ends with it
            connection.close()
            if self._forget(connection):
                self._note(host, str(error))
            return
        if self._forget(connection):
            self._arrive((hellos[0], channel))
        else:
            connection.close()

    def _turn_away(self, stranger: socket.socket, why: str) -> None:
        if (known := self._forget(stranger)) is not None:
            host, thread = known
            self._note(host, why)
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_RDWR)  # its thread closes it
            thread.join(_PROOF_LIMIT_S)

    def _forget(self, stranger: socket.socket) -> tuple[str, threading.Thread] | None:
        """Take a connection out of the strangers; return its host and thread, None where it was
        out already."""
        with self._lock:
            return self._strangers.pop(stranger, None)

    def _arrive(self, newcomer: tuple[Hello, Channel[Hello]] | Failed) -> None:
        with self._lock:
            self._arrived.append(newcomer)
            if not self._is_closed.is_set():
                self._bell.send(b"!")

    def _note(self, host: str, why: str) -> None:
        """Log a connection that was turned away: some of them, since a disk is soon full of all."""
        with self._lock:
            self._num_turned_away += 1
            if self._num_turned_away <= _MOST_LOGGED:
                self._log(f"a connection from {host} was turned away: {why}")


class NotReachedError(Exception):
    """Node 0's agent could not be reached in time; the message says what was found instead."""


class Joined(NamedTuple):
    """A connection to node 0's agent."""

    channel: Channel[ToAgent | Beat]
    clock_offset_s: float
    """Seconds to add to this host's clock for node 0's."""
    address: str
    """The address of node 0 that answered."""
    source: str
    """This host's own address on the way there."""


class OvertakenError(Exception):
    """A later life of the job has begun; the message says which."""


def join_meeting(
    run: Run,
    *,
    node_rank: int,
    num_nodes: int,
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
    rendezvous: Rendezvous | None = None,
    life: int | None = None,
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
            place = _find_place(run, rendezvous)
            addresses = []
            if life is None or place.life is None or place.life == life:
                addresses = usable_addresses(place)
            elif place.life > life:
                raise OvertakenError(
                    f"start {place.life + 1} of the job has begun, and this is start {life + 1}"
                )
            else:
                troubles.append(
                    f"its agent of start {place.life + 1} of the job is still there, and this is "
                    f"start {life + 1}"
                )
            for address in addresses:
                try:
                    return _join(place, address, node_rank, source=source)
                except (OSError, StrangerError, ChannelClosedError) as error:
                    reason = getattr(error, "strerror", None) or error
                    troubles.append(f"at {address} port {place.port}: {reason}")
        except FileNotFoundError:
            troubles.append(f"there is no {run.meeting_file} yet")
        except OSError as error:  # it is not ours
            troubles.append(str(error))
        except ValueError as error:
            troubles.append(f"{run.meeting_file} is damaged: {error}")
        waited_s = time.monotonic() - begin_s
        if waited_s >= timeout_s:
            raise NotReachedError(
                f"could not reach the agent of node 0 within {timeout_s:g} s; {'; '.join(troubles)}"
            )
        time.sleep(min(poll_s(waited_s, num_nodes), timeout_s - waited_s))
    return None


def poll_s(waited_s: float, num_nodes: int) -> float:
    """Return how long an agent that has waited so long for node 0 waits until it looks again."""
    shortest_s = min(max(_SHORTEST_POLL_S, num_nodes / _MOST_POLLS_PER_S), _LONGEST_POLL_S)
    return min(max(shortest_s, waited_s * _POLL_SHARE), _LONGEST_POLL_S)


def _find_place(run: Run, rendezvous: Rendezvous | None) -> MeetingPlace:
    if rendezvous is not None:
        return MeetingPlace(
            addresses=[rendezvous.address],
            network=network_key(),  # whoever named it names no loopback
            port=rendezvous.port,
            secret=rendezvous.secret,
        )
    files.refresh(run.launch_folder)
    with files.open_private(run.meeting_file) as file:
        return msgspec.json.decode(file.read(), type=MeetingPlace)


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
    """Connect to one address, exchange proofs, Hello and Welcome.

    Raises OSError, StrangerError or ChannelClosedError where it is not node 0's agent that answers,
    and DisagreementError where it is of another version.
    """
    with contextlib.ExitStack() as on_failure:
        connection = on_failure.enter_context(
            socket.create_connection(
                (address, place.port),
                timeout=_CONNECT_TIMEOUT_S,
                source_address=(source, 0) if source else None,
            )
        )
        prove_to_leader(connection, bytes.fromhex(place.secret))
        channel = Channel(connection, WELCOME)
        sent_s = time.time()
        channel.send(Hello(node=node, version=__version__))
        while not (answers := channel.receive()):
            pass
        (answer, *_) = answers
        if answer.version != __version__:
            raise DisagreementError(
                f"this node has hpcdist {__version__}, node 0 has {answer.version}: all nodes of a "
                "run must have the same"
            )
        offset_s = answer.time_s - (sent_s + time.time()) / 2
        own_address = str(connection.getsockname()[0])
        on_failure.pop_all()
    return Joined(channel.expect(TO_AGENT), offset_s, address, own_address)
