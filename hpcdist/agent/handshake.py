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

import errno
import hmac
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Literal

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


class _Stranger:
    """A connection to node 0's agent whose other side has proved nothing yet."""

    def __init__(self, connection: socket.socket, secret: bytes) -> None:
        """Send the challenge, which a new connection always takes. Raises OSError."""
        connection.setblocking(False)
        self.connection = connection
        self.deadline = time.monotonic() + _PROOF_LIMIT_S
        self._secret = secret
        self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._read = b""
        connection.send(self._challenge)

    def fileno(self) -> int:
        return self.connection.fileno()

    def has_proved(self) -> bool:
        """Read no more than a proof; answer it with ours. Raises StrangerError or OSError."""
        wanted = CHALLENGE_BYTES + PROOF_BYTES - len(self._read)
        chunk = self.connection.recv(wanted)
        if not chunk:
            raise StrangerError("it closed the connection before it had proved anything")
        self._read += chunk
        if len(chunk) < wanted:
            return False
        if not hmac.compare_digest(self._read[CHALLENGE_BYTES:], self._proof("follower")):
            raise StrangerError("it does not know the secret of the run")
        self.connection.send(self._proof("leader"))
        return True

    def _proof(self, side: Literal["leader", "follower"]) -> bytes:
        address, port = self.connection.getsockname()[:2]
        return proof(
            self._secret,
            side,
            leaders=self._challenge,
            followers=self._read[:CHALLENGE_BYTES],
            address=address,
            port=port,
        )


def _none_left() -> str:
    return (
        "its agent has no open file left for another connection: it may have "
        f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} ({MORE_DESCRIPTORS})"
    )


class Entrance:
    """The port of a meeting: lets in who knows the secret, and keeps few resources for who does
    not."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        *,
        selector: selectors.BaseSelector,
        let_in: Callable[[socket.socket], None],
        on_exhausted: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        """Accept connections until `close`; `on_time` must be called now and then.

        `on_exhausted` is told where those who belong here take all the descriptors that there are.
        """
        self._listener = listener
        self._secret = secret
        self._selector = selector
        self._let_in = let_in
        self._on_exhausted = on_exhausted
        self._log = log
        self._strangers: dict[_Stranger, str] = {}  # oldest first, with their hosts
        self._most_strangers = _MOST_STRANGERS
        self._num_turned_away = 0
        self._rests_until: float | None = None
        self._is_open = True
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def on_time(self) -> None:
        """Turn away who has not proved anything in time."""
        now = time.monotonic()
        while (oldest := next(iter(self._strangers), None)) and now >= oldest.deadline:
            self._turn_away(oldest, "it did not prove in time that it knows the secret")
        if self._is_open and self._rests_until is not None and now >= self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Let in nobody any more."""
        if not self._is_open:
            return
        self._is_open = False
        for stranger in list(self._strangers):
            self._turn_away(stranger, "the meeting is over")
        if self._rests_until is None:
            self._selector.unregister(self._listener)
        self._listener.close()
        if (num_more := self._num_turned_away - _MOST_LOGGED) > 0:
            self._log(f"{num_more} more connections were turned away")

    def _accept(self) -> None:
        if not self._is_open:
            return  # closed by an event of the same moment
        try:
            connection, address = self._listener.accept()
        except OSError as error:  # whoever called has gone already
            if error.errno in _NOTHING_LEFT:
                self._rest()
            if error.errno == errno.EMFILE and not self._strangers:
                self._on_exhausted(_none_left())
            return
        try:
            self._make_room(connection)
            stranger = _Stranger(connection, self._secret)
        except (OSError, StrangerError) as error:
            connection.close()
            self._note(address[0], str(error))
            return
        self._strangers[stranger] = address[0]
        self._selector.register(stranger, selectors.EVENT_READ, lambda: self._hear(stranger))

    def _make_room(self, newest: socket.socket) -> None:
        """Turn away the oldest stranger where there are too many. Raises StrangerError."""
        # The system gives out the lowest descriptors that are free.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if newest.fileno() >= most - _RESERVED_DESCRIPTORS:
            if not self._strangers:
                self._on_exhausted(_none_left())
                raise StrangerError("too few file descriptors are left (ulimit -n)")
            self._most_strangers = len(self._strangers)
        if len(self._strangers) >= self._most_strangers:
            self._turn_away(next(iter(self._strangers)), "too many others wait to be let in")

    def _rest(self) -> None:
        """Leave the listening socket alone: it stays ready, and would be asked without end."""
        self._selector.unregister(self._listener)
        self._rests_until = time.monotonic() + _REST_S

    def _hear(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers:
            return  # turned away by an event of the same moment
        try:
            has_proved = stranger.has_proved()
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - whatever a stranger causes ends with it
            self._turn_away(stranger, str(error))
            return
        if has_proved:
            del self._strangers[stranger]
            self._selector.unregister(stranger)
            self._let_in(stranger.connection)

    def _turn_away(self, stranger: _Stranger, why: str) -> None:
        self._note(self._strangers.pop(stranger), why)
        self._selector.unregister(stranger)
        stranger.connection.close()

    def _note(self, host: str, why: str) -> None:
        """Log a connection that was turned away: some of them, since a disk is soon full of all."""
        self._num_turned_away += 1
        if self._num_turned_away <= _MOST_LOGGED:
            self._log(f"a connection from {host} was turned away: {why}")
