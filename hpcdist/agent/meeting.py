"""The meeting of a run's agents: node 0's listens, the others find it in the run directory.

Node 0's agent is the leader, which holds the coordinator; the others follow it over TCP.

The file holds a token that only the run's owner can read; a connection that does not begin with it
is closed, since any user of a host can connect to its ports.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import ipaddress
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from hpcdist.agent.coordinator import Coordinator
from hpcdist.agent.messages import (
    ANSWER,
    HELLO,
    TO_AGENT,
    TO_COORDINATOR,
    Channel,
    ChannelClosedError,
    Hello,
    Refusal,
    ToAgent,
    ToCoordinator,
    Welcome,
)
from hpcdist.agent.node import DisagreementError, OwnNode
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.base import files
from hpcdist.base.version import __version__
from hpcdist.machine.network import network_key
from hpcdist.machine.ports import listen
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

_POLL_S = 0.02
_CONNECT_TIMEOUT_S = 3.0


class MeetingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the meeting, as it stands in launch/meeting.json."""

    addresses: list[str]
    """By which the others may reach its host, best first."""
    network: str
    """Key of the host's network, for addresses that are loopback."""
    port: int
    token: str


class HostedMeeting:
    """The connections of node 0's agent with the others: accepts them, and passes on messages."""

    def __init__(
        self,
        run: Run,
        *,
        addresses: Sequence[str],
        bind_to: str,
        port_range: tuple[int, int] | None,
        selector: selectors.BaseSelector,
        on_message: Callable[[int, ToCoordinator], None],
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
        self._channels: dict[int, Channel[ToCoordinator]] = {}
        self._listener = listen(bind_to, port_range)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        place = MeetingPlace(
            addresses=list(addresses),
            network=network_key(),
            port=self._listener.getsockname()[1],
            token=self._token,
        )
        files.write_json(run.meeting_file, msgspec.to_builtins(place))

    def send(self, node: int, message: ToAgent) -> None:
        """Send to a node's agent; where it is gone, `on_lost` is told."""
        try:
            if (channel := self._channels.get(node)) is not None:
                channel.send(message)
        except ChannelClosedError as error:
            self._lose(node, str(error))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # whoever called has gone already
            channel = Channel(self._listener.accept()[0], HELLO)
            self._selector.register(channel, selectors.EVENT_READ, lambda: self._welcome(channel))

    def _welcome(self, stranger: Channel[Hello]) -> None:
        self._selector.unregister(stranger)
        node = None
        with contextlib.suppress(ChannelClosedError, UnicodeEncodeError):
            hello = next(iter(stranger.receive()), None)
            if hello is None or not hmac.compare_digest(hello.token.encode(), self._token.encode()):
                pass  # no agent of this run
            elif hello.version != __version__:
                stranger.send(Refusal(version=__version__))
            else:
                stranger.send(Welcome(time_s=time.time()))
                node = hello.node
        if node is None:
            stranger.close()
            return
        channel = stranger.expect(TO_COORDINATOR)
        self._close(node)  # it would not come again if its former connection were of use
        self._channels[node] = channel
        receive = functools.partial(self._receive, node, channel)
        self._selector.register(channel, selectors.EVENT_READ, receive)

    def _receive(self, node: int, channel: Channel[ToCoordinator]) -> None:
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


class Leader:
    """The coordinator in the agent of node 0, with its ways to that agent and to the others."""

    def __init__(
        self,
        run: Run,
        node: OwnNode,
        attempts: Attempts,
        *,
        orders: deque[ToAgent],
        open_store: Callable[[], None],
        finish: Callable[[Verdict], None],
    ) -> None:
        """`orders` takes what the coordinator wants of node 0's own agent."""
        self.messages: deque[ToCoordinator] = deque()
        """From node 0's own agent, delivered one by one: handlers must not nest."""
        self._run = run
        self._node = node
        self._orders = orders
        self._meeting: HostedMeeting | None = None
        launch = node.job.launch
        self.coordinator = Coordinator(
            num_nodes=node.num_nodes,
            ranks_per_node=node.job.ranks_per_node,
            max_restarts=launch.max_restarts,
            grace_s=launch.grace_s,
            join_timeout_s=launch.join_timeout_s,
            backend=node.plan.backend,
            send=self._send,
            open_store=open_store,
            claim_attempt=attempts.claim,
            is_overtaken=attempts.is_overtaken,
            note_restart=run.write_attempt_verdict,
            finish=finish,
            now=time.monotonic,
            unix_now=time.time,
            saves="checkpoint" in node.job.__struct_fields__,
        )

    def host_meeting(self, addresses: Sequence[str], selector: selectors.BaseSelector) -> None:
        """Let the others join. Raises NoFreePortError."""
        self._meeting = HostedMeeting(
            self._run,
            addresses=addresses,
            bind_to=self._node.plan_of_node.address or "",
            port_range=self._node.job.launch.port_range,
            selector=selector,
            on_message=self.coordinator.on_message,
            on_lost=self.coordinator.on_lost,
        )

    def _send(self, node: int, message: ToAgent) -> None:
        if node == 0:
            self._orders.append(message)
        elif self._meeting is not None:
            self._meeting.send(node, message)


class Joined(NamedTuple):
    """A connection to node 0's agent."""

    channel: Channel[ToAgent]
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
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
) -> Joined | None:
    """Connect to node 0's agent; the caller's first message is Join.

    None where `give_up` says that the run is over, or where nobody answered in time. An old file,
    of an agent that is gone, is read again until it names one that answers. Raises
    DisagreementError where node 0 is there, and this one cannot take part with it.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not give_up():
        with contextlib.suppress(msgspec.ValidationError):  # it is not there yet, or is damaged
            place = files.convert(files.read_json(run.meeting_file), MeetingPlace)
            for address in usable_addresses(place):
                joined = _try_to_join(place, address, node_rank=node_rank, source=source)
                if joined is not None:
                    return joined
        time.sleep(_POLL_S)
    return None


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


def _try_to_join(
    place: MeetingPlace, address: str, *, node_rank: int, source: str | None
) -> Joined | None:
    try:
        connection = socket.create_connection(
            (address, place.port),
            timeout=_CONNECT_TIMEOUT_S,
            source_address=(source, 0) if source else None,
        )
    except OSError:
        return None
    own_address = str(connection.getsockname()[0])
    channel = Channel(connection, ANSWER)
    sent_s = time.time()
    try:
        channel.send(Hello(node=node_rank, token=place.token, version=__version__))
        answer = channel.receive()[0]
    except (ChannelClosedError, IndexError):
        channel.close()
        return None
    if isinstance(answer, Refusal):
        raise DisagreementError(
            f"this node has hpcdist {__version__}, node 0 has {answer.version}: all nodes of a run "
            "must have the same"
        )
    offset_s = answer.time_s - (sent_s + time.time()) / 2
    return Joined(channel.expect(TO_AGENT), offset_s, address, own_address)
