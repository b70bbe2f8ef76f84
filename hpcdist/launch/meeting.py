"""How the agents of a run meet: node 0's listens, the others find it in the run directory.

The file holds a token that only the run's owner can read; a connection that does not begin with it
is closed, since any user of a host can connect to its ports.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from hpcdist import files
from hpcdist.launch.channel import Channel, ChannelClosedError, Message
from hpcdist.launch.ports import listen
from hpcdist.run import Run

_POLL_S = 0.02
_CONNECT_TIMEOUT_S = 5.0


class HostedMeeting:
    """Node 0's side: accepts the agents, and passes on what they say."""

    def __init__(
        self,
        run: Run,
        *,
        address: str,
        bind_to: str,
        port_range: tuple[int, int] | None,
        selector: selectors.BaseSelector,
        on_message: Callable[[int, Message], None],
        on_lost: Callable[[int, str], None],
    ) -> None:
        """Listen on a free port and tell the others of it.

        Raises NoFreePortError.
        """
        self._token = secrets.token_hex(16)
        self._selector = selector
        self._on_message = on_message
        self._on_lost = on_lost
        self._channels: dict[int, Channel] = {}
        self._listener = listen(bind_to, port_range)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        files.write_json(
            run.meeting_file,
            {
                "address": address,
                "port": self._listener.getsockname()[1],
                "token": self._token,
            },
        )

    def send(self, node: int, message: Message) -> None:
        """Send to a node's agent; where it is gone, `on_lost` is told."""
        channel = self._channels.get(node)
        if channel is None:
            return
        try:
            channel.send(message)
        except ChannelClosedError as error:
            self._lose(node, str(error))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # whoever called has gone already
            channel = Channel(self._listener.accept()[0])
            self._selector.register(channel, selectors.EVENT_READ, lambda: self._welcome(channel))

    def _welcome(self, channel: Channel) -> None:
        self._selector.unregister(channel)
        try:
            hello = next(iter(channel.receive()), {})
            if not _knows(hello, self._token):
                channel.close()
                return
            channel.send({"type": "welcome", "time_s": time.time()})
        except ChannelClosedError:
            channel.close()
            return
        node = int(hello["node"])
        self._close(node)  # it would not come again if its former connection were of use
        self._channels[node] = channel
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._receive(node, channel))

    def _receive(self, node: int, channel: Channel) -> None:
        if self._channels.get(node) is not channel:
            return  # closed by an event of the same moment
        try:
            for message in channel.receive():
                self._on_message(node, message)
        except ChannelClosedError as error:
            self._lose(node, str(error))

    def _lose(self, node: int, reason: str) -> None:
        if self._close(node):
            self._on_lost(node, reason)

    def _close(self, node: int) -> bool:
        channel = self._channels.pop(node, None)
        if channel is None:
            return False
        self._selector.unregister(channel)
        channel.close()
        return True


def join_meeting(
    run: Run,
    *,
    node_rank: int,
    host: str,
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
) -> tuple[Channel, float] | None:
    """Connect to node 0's agent; returns the channel and what takes this clock to node 0's (s).

    None where `give_up` says that the run is over, or where nobody answered in time. An old file,
    of an agent that is gone, is read again until it names one that answers.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not give_up():
        place = files.read_json(run.meeting_file)
        if isinstance(place, dict):
            joined = _try_to_join(place, node_rank=node_rank, host=host, source=source)
            if joined is not None:
                return joined
        time.sleep(_POLL_S)
    return None


def _try_to_join(
    place: dict[str, Any], *, node_rank: int, host: str, source: str | None
) -> tuple[Channel, float] | None:
    try:
        connection = socket.create_connection(
            (place["address"], place["port"]),
            timeout=_CONNECT_TIMEOUT_S,
            source_address=(source, 0) if source else None,
        )
    except OSError:
        return None
    channel = Channel(connection)
    sent_s = time.time()
    try:
        channel.send({"type": "hello", "node": node_rank, "token": place["token"]})
        welcome = channel.receive()[0]
        offset_s = welcome["time_s"] - (sent_s + time.time()) / 2
        # Only now: node 0 must not count on an agent that has given up this connection.
        channel.send({"type": "join", "host": host})
    except (ChannelClosedError, IndexError):
        channel.close()
        return None
    return channel, offset_s


def _knows(hello: Message, token: str) -> bool:
    given = hello.get("token")
    return (
        isinstance(given, str)
        and hmac.compare_digest(given.encode(), token.encode())
        and isinstance(hello.get("node"), int)
    )
