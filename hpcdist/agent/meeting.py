"""How the agents of a run meet: node 0's listens, the others find it in the run directory.

The file holds a token that only the run's owner can read; a connection that does not begin with it
is closed, since any user of a host can connect to its ports.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcdist.agent.channel import Channel, ChannelClosedError, Message
from hpcdist.base import files
from hpcdist.machine.network import network_key
from hpcdist.machine.ports import listen
from hpcdist.runs.run import Run

_POLL_S = 0.02
_CONNECT_TIMEOUT_S = 3.0


class HostedMeeting:
    """Node 0's side: accepts the agents, and passes on what they say."""

    def __init__(
        self,
        run: Run,
        *,
        addresses: Sequence[str],
        bind_to: str,
        port_range: tuple[int, int] | None,
        selector: selectors.BaseSelector,
        on_message: Callable[[int, Message], None],
        on_lost: Callable[[int, str], None],
    ) -> None:
        """Listen on a free port and tell the others of it.

        `addresses` are those by which they may reach this host, best first; `bind_to` is empty for
        all of them. Raises NoFreePortError.
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
                "addresses": list(addresses),
                "network": network_key(),
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


class Joined(NamedTuple):
    """A connection to node 0's agent."""

    channel: Channel
    clock_offset_s: float
    """Takes this host's clock to node 0's."""
    address: str
    """The address of node 0 that answered."""
    source: str
    """This host's own address on the way there."""


class OnlyLoopbackError(Exception):
    """Node 0 offers addresses only that mean this host itself."""


def join_meeting(
    run: Run,
    *,
    node_rank: int,
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
) -> Joined | None:
    """Connect to node 0's agent; the caller's first message is `join`.

    None where `give_up` says that the run is over, or where nobody answered in time. An old file,
    of an agent that is gone, is read again until it names one that answers. Raises
    OnlyLoopbackError.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not give_up():
        place = files.read_json(run.meeting_file)
        if isinstance(place, dict):
            for address in usable_addresses(place):
                joined = _try_to_join(place, address, node_rank=node_rank, source=source)
                if joined is not None:
                    return joined
        time.sleep(_POLL_S)
    return None


def usable_addresses(place: dict[str, Any]) -> list[str]:
    """Addresses of node 0 that mean node 0 here too: not loopback, but on the same host.

    Raises OnlyLoopbackError where none is left.
    """
    addresses: list[str] = place["addresses"]
    if place["network"] == network_key():
        return addresses
    usable = [one for one in addresses if not ipaddress.ip_address(one).is_loopback]
    if not usable:
        raise OnlyLoopbackError(
            f"node 0 offers {', '.join(addresses)}, which other nodes cannot reach: its name "
            "resolves to loopback, and it has no other interface"
        )
    return usable


def _try_to_join(
    place: dict[str, Any], address: str, *, node_rank: int, source: str | None
) -> Joined | None:
    try:
        connection = socket.create_connection(
            (address, place["port"]),
            timeout=_CONNECT_TIMEOUT_S,
            source_address=(source, 0) if source else None,
        )
    except OSError:
        return None
    own_address = str(connection.getsockname()[0])
    channel = Channel(connection)
    sent_s = time.time()
    try:
        channel.send({"type": "hello", "node": node_rank, "token": place["token"]})
        welcome = channel.receive()[0]
        offset_s = welcome["time_s"] - (sent_s + time.time()) / 2
    except (ChannelClosedError, IndexError):
        channel.close()
        return None
    return Joined(channel, offset_s, address, own_address)


def _knows(hello: Message, token: str) -> bool:
    given = hello.get("token")
    return (
        isinstance(given, str)
        and hmac.compare_digest(given.encode(), token.encode())
        and isinstance(hello.get("node"), int)
    )
