"""The proof by which agents of a run know each other, before a word of the other is read.

Any user of a host can connect to its ports, and any user can listen on a port that an agent has
left. So both ends of a connection prove that they know the secret of the meeting's file, which
itself never crosses the network:

    leader -> follower    a challenge: random bytes, made for this connection
    follower -> leader    a challenge of its own, and its proof
    leader -> follower    its proof; messages (agent/messages.py) follow

A proof is an HMAC with the secret over all that could be used again elsewhere: the side that gives
it, so that none can be sent back to its maker; both challenges, so that none can be replayed; and
the leader's end of the connection, so that nobody who listens on another address can pass the
proofs of the two on between them.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import resource
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from hpcdist.agent.messages import HELLO, Channel, Failed, Hello
from hpcdist.machine.process import MORE_DESCRIPTORS

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


class StrangerError(Exception):
    """The other side is no agent of this run; the message says why."""


def proof(
    secret: bytes,
    side: Literal["leader", "follower"],
    *,
    leaders: bytes,
    followers: bytes,
    address: str,
    port: int,
) -> bytes:
    """Return the proof of one side, from both challenges and the leader's end of the connection."""
    text = b"%b\0%b%b%b %d" % (side.encode(), leaders, followers, address.encode(), port)
    return hmac.digest(secret, text, "sha256")


def prove_to_leader(connection: socket.socket, secret: bytes) -> None:
    """Exchange proofs with node 0's agent. Raises StrangerError where it gives none, or OSError."""
    deadline = time.monotonic() + _PROOF_LIMIT_S
    address, port = connection.getpeername()[:2]
    leaders = _read(connection, CHALLENGE_BYTES, deadline)
    followers = secrets.token_bytes(CHALLENGE_BYTES)

    def of(side: Literal["leader", "follower"]) -> bytes:
        return proof(secret, side, leaders=leaders, followers=followers, address=address, port=port)

    connection.sendall(followers + of("follower"))
    if not hmac.compare_digest(_read(connection, PROOF_BYTES, deadline), of("leader")):
        raise StrangerError("it does not know the secret of the run")


def prove_to_follower(connection: socket.socket, secret: bytes) -> None:
    """Exchange proofs with whoever has connected to node 0's agent; no more than a proof is read.
    Raises StrangerError where it gives none, or OSError."""
    deadline = time.monotonic() + _PROOF_LIMIT_S
    address, port = connection.getsockname()[:2]
    leaders = secrets.token_bytes(CHALLENGE_BYTES)
    connection.sendall(leaders)
    said = _read(connection, CHALLENGE_BYTES + PROOF_BYTES, deadline)
    followers, proved = said[:CHALLENGE_BYTES], said[CHALLENGE_BYTES:]

    def of(side: Literal["leader", "follower"]) -> bytes:
        return proof(secret, side, leaders=leaders, followers=followers, address=address, port=port)

    if not hmac.compare_digest(proved, of("follower")):
        raise StrangerError("it does not know the secret of the run")
    connection.sendall(of("leader"))


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
    """The port of a meeting: lets in who knows the secret, and keeps few resources for who does
    not. A thread accepts, and one per connection waits for its proof and its Hello."""

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
        """Return those that have proved that they belong here; Failed where they take all the
        descriptors that there are."""
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
        """Count a connection no more as a stranger's; None where it was not one."""
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
