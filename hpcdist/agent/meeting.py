"""The meeting of a run's agents: node 0's listens, the others find it in the run directory.

Node 0's agent is the leader, which holds the coordinator; the others follow it over TCP.

Where the nodes have no run directory in common, their scheduler tells them the place beforehand.

The file holds a secret that only the run's owner can read. Both sides of a connection prove that
they know it (agent/handshake.py) before they say anything else.
"""

from __future__ import annotations

import contextlib
import functools
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
from hpcdist.agent.handshake import SECRET_BYTES, Entrance, StrangerError, prove_to_leader
from hpcdist.agent.messages import (
    ANSWER,
    HELLO,
    TO_AGENT,
    TO_COORDINATOR,
    Channel,
    ChannelClosedError,
    Hello,
    Join,
    Refusal,
    ToAgent,
    ToCoordinator,
    Welcome,
)
from hpcdist.agent.node import DisagreementError, OwnNode
from hpcdist.agent.outcome.lives import Attempts, note_restart
from hpcdist.base import files
from hpcdist.base.version import __version__
from hpcdist.machine.network import interface_of, network_key
from hpcdist.machine.ports import listen
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Rendezvous

_SHORTEST_POLL_S = 0.02
_LONGEST_POLL_S = 1.0
_POLL_SHARE = 0.05
"""Of the time that an agent has waited: it hears of node 0 so much later at most."""
_MOST_POLLS_PER_S = 2000
"""Of all nodes together: their file server has other things to do."""
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


class HostedMeeting:
    """The connections of node 0's agent with the others: accepts them, and passes on messages."""

    def __init__(
        self,
        run: Run,
        *,
        num_nodes: int,
        addresses: Sequence[str],
        port_range: tuple[int, int] | None,
        selector: selectors.BaseSelector,
        on_message: Callable[[int, ToCoordinator], None],
        on_lost: Callable[[int, str], None],
        log: Callable[[str], None],
        rendezvous: Rendezvous | None = None,
    ) -> None:
        """Listen on a free port, until all have joined, and tell the others of it.

        `addresses` are those by which they may reach this host, best first; `rendezvous` is the
        place where they will come. Raises NoFreePortError.
        """
        self._missing = set(range(1, num_nodes))
        self._log = log
        self._selector = selector
        self._on_message = on_message
        self._on_lost = on_lost
        self._channels: dict[int, Channel[ToCoordinator]] = {}
        is_own = rendezvous is None or interface_of(rendezvous.address) is not None
        listener = listen(addresses[0] if len(addresses) == 1 and is_own else "", port_range)
        secret = secrets.token_bytes(SECRET_BYTES)
        if rendezvous is not None:
            secret = bytes.fromhex(rendezvous.secret)
        self._entrance = Entrance(listener, secret, selector=selector, let_in=self._let_in, log=log)
        place = MeetingPlace(
            addresses=list(addresses),
            network=network_key(),
            port=listener.getsockname()[1],
            secret=secret.hex(),
        )
        files.write_json(run.meeting_file, msgspec.to_builtins(place))

    def on_time(self) -> None:
        """Turn away strangers that say nothing; call it now and then."""
        self._entrance.on_time()

    def send(self, node: int, message: ToAgent) -> None:
        """Send to a node's agent; where it is gone, `on_lost` is told."""
        try:
            if (channel := self._channels.get(node)) is not None:
                channel.send(message)
        except ChannelClosedError as error:
            self._lose(node, str(error))

    def _let_in(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, HELLO)
        except OSError as error:
            connection.close()
            self._log(f"an agent left before it had joined: {error}")
            return
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._welcome(channel))

    def _welcome(self, newcomer: Channel[Hello]) -> None:
        node = None
        try:
            hellos = newcomer.receive()
            if not hellos:
                return  # the rest of it is still to come
            if hellos[0].version == __version__:
                newcomer.send(Welcome(time_s=time.time()))
                node = hellos[0].node
            else:
                newcomer.send(Refusal(version=__version__))
        except ChannelClosedError as error:
            self._log(f"an agent left before it had joined: {error}")
        self._selector.unregister(newcomer)
        if node is None:
            newcomer.close()
            return
        channel = newcomer.expect(TO_COORDINATOR)
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
                if isinstance(message, Join):
                    self._missing.discard(node)
                    if not self._missing:
                        self._entrance.close()  # none of them comes again
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
        open_store: Callable[[str, str], None],
        finish: Callable[[Verdict], None],
        log: Callable[[str], None],
    ) -> None:
        """`orders` takes what the coordinator wants of node 0's own agent."""
        self.messages: deque[ToCoordinator] = deque()
        """From node 0's own agent, delivered one by one: handlers must not nest."""
        self._run = run
        self._node = node
        self._orders = orders
        self._log = log
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
            note_restart=lambda verdict: note_restart(run, verdict),
            finish=finish,
            now=time.monotonic,
            unix_now=time.time,
            saves="checkpoint" in node.job.__struct_fields__,
        )

    def host_meeting(self, addresses: Sequence[str], selector: selectors.BaseSelector) -> None:
        """Let the others join. Raises NoFreePortError."""
        place = self._node.place.rendezvous
        self._meeting = HostedMeeting(
            self._run,
            num_nodes=self._node.num_nodes,
            addresses=addresses,
            port_range=(place.port, place.port) if place else self._node.job.launch.port_range,
            rendezvous=place,
            selector=selector,
            on_message=self.coordinator.on_message,
            on_lost=self.coordinator.on_lost,
            log=self._log,
        )

    def on_time(self) -> None:
        self.coordinator.on_time()
        if self._meeting is not None:
            self._meeting.on_time()

    def _send(self, node: int, message: ToAgent) -> None:
        if node == 0:
            self._orders.append(message)
        elif self._meeting is not None:
            self._meeting.send(node, message)


class NotReachedError(Exception):
    """Node 0's agent could not be reached in time; the message says what was found instead."""


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
    num_nodes: int,
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
    rendezvous: Rendezvous | None = None,
) -> Joined | None:
    """Connect to node 0's agent; the caller's first message is Join.

    None where `give_up` says that the run is over. An old file, of an agent that is gone, is read
    again until it names one that answers. Raises NotReachedError where none does in time, and
    DisagreementError where node 0 is there, and this one cannot take part with it.
    """
    begin_s = time.monotonic()
    while not give_up():
        troubles = []
        try:
            place = _read_place(run) if rendezvous is None else _place_of(rendezvous)
            for address in usable_addresses(place):
                try:
                    return _join(place, address, node_rank=node_rank, source=source)
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


def _place_of(rendezvous: Rendezvous) -> MeetingPlace:
    return MeetingPlace(
        addresses=[rendezvous.address],
        network=network_key(),  # whoever named it names no loopback
        port=rendezvous.port,
        secret=rendezvous.secret,
    )


def _read_place(run: Run) -> MeetingPlace:
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


def _join(place: MeetingPlace, address: str, *, node_rank: int, source: str | None) -> Joined:
    """Raise OSError, StrangerError or ChannelClosedError where it is not node 0's agent that
    answers, and DisagreementError where it refuses."""
    with contextlib.ExitStack() as on_failure:
        connection = on_failure.enter_context(
            socket.create_connection(
                (address, place.port),
                timeout=_CONNECT_TIMEOUT_S,
                source_address=(source, 0) if source else None,
            )
        )
        prove_to_leader(connection, bytes.fromhex(place.secret))
        channel = Channel(connection, ANSWER)
        sent_s = time.time()
        channel.send(Hello(node=node_rank, version=__version__))
        while not (answers := channel.receive()):
            pass
        match answers[0]:
            case Refusal(version):
                raise DisagreementError(
                    f"this node has hpcdist {__version__}, node 0 has {version}: all nodes of a "
                    "run must have the same"
                )
            case Welcome(time_s):
                offset_s = time_s - (sent_s + time.time()) / 2
        own_address = str(connection.getsockname()[0])
        on_failure.pop_all()
    return Joined(channel.expect(TO_AGENT), offset_s, address, own_address)
