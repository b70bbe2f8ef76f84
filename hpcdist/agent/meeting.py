"""The meeting of a run's agents: node 0's listens, the others find it in the run directory.

Node 0's agent is the leader, which holds the coordinator; the others follow it over TCP.

Where the nodes have no run directory in common, their scheduler tells them the place beforehand.

The file holds a secret that only the run's owner can read. Both sides of a connection prove that
they know it (agent/handshake.py) before they say anything else. It also tells the life of the job
that it is of: where a scheduler starts a job elsewhere while the former agents still live, as when
its daemons have died, the new agents find the old file, and must not join the old leader.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.answers import Answers
from hpcdist.agent.coordinator import Coordinator, Stage
from hpcdist.agent.handshake import SECRET_BYTES, Entrance
from hpcdist.agent.liveness import Liveness
from hpcdist.agent.messages import (
    HELLO,
    TO_LEADER,
    Beat,
    Channel,
    ChannelClosedError,
    Failed,
    Hello,
    Join,
    Refusal,
    ToAgent,
    ToLeader,
    Welcome,
)
from hpcdist.agent.node import OwnNode
from hpcdist.agent.outcome.hang import limits_of
from hpcdist.agent.outcome.lives import Attempts, note_restart
from hpcdist.agent.requests import Answer, RequestFile, is_wanted, leave_answer
from hpcdist.agent.watch import STANDSTILL_S
from hpcdist.base import files
from hpcdist.base.version import __version__
from hpcdist.machine.network import interface_of, network_key
from hpcdist.machine.ports import listen
from hpcdist.notify import tell_hang
from hpcdist.runs.run import SIGN_EVERY_S, Run
from hpcdist.runs.verdict import Hang, Verdict
from hpcdist.schedulers.base import Rendezvous
from hpcdist.schedulers.notes import Notes

_LOOK_AT_REQUESTS_S = 0.9
"""Between two looks of node 0's agent at what commands want; its loop turns twice a second."""


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
    """The life of the job that node 0's agent is of; None: it does not say."""


class Era(NamedTuple):
    """An agent's place in the history of its run."""

    life: int
    """The life of the job that it is of."""
    attempt: int
    """The newest attempt that it knows; -1 before the first."""


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
        on_message: Callable[[int, ToLeader], None],
        on_lost: Callable[[int, str], None],
        log: Callable[[str], None],
        rendezvous: Rendezvous | None = None,
        era: Era | None = None,
        is_overtaken: Callable[[], bool] = lambda: False,
        agent_timeout_s: float = 0.0,
    ) -> None:
        """Listen on a free port, until all have joined, and tell the others of it.

        `addresses` are those by which they may reach this host, best first; `rendezvous` is the
        place where they will come. Agents of another `era` are refused. Raises NoFreePortError.
        """
        self._missing = set(range(1, num_nodes))
        self._log = log
        self._selector = selector
        self._on_message = on_message
        self._on_lost = on_lost
        self._channels: dict[int, Channel[ToLeader | Beat]] = {}
        self._liveness = Liveness(agent_timeout_s, now_s=time.monotonic())
        self._era = era
        self._is_overtaken = is_overtaken
        is_own = rendezvous is None or interface_of(rendezvous.address) is not None
        listener = listen(addresses[0] if len(addresses) == 1 and is_own else "", port_range)
        secret = secrets.token_bytes(SECRET_BYTES)
        if rendezvous is not None:
            secret = bytes.fromhex(rendezvous.secret)
        self._entrance = Entrance(
            listener,
            secret,
            selector=selector,
            let_in=self._let_in,
            on_exhausted=lambda why: on_message(0, Failed(sentence=why)),
            log=log,
        )
        place = MeetingPlace(
            addresses=list(addresses),
            network=network_key(),
            port=listener.getsockname()[1],
            secret=secret.hex(),
            life=era.life if era else None,
        )
        files.write_json(run.meeting_file, msgspec.to_builtins(place))

    def on_time(self) -> None:
        """Turn away strangers that say nothing, and lose agents that do not any more; call it now
        and then, when all that has come was read."""
        self._entrance.on_time()
        for node, reason in self._liveness.look(time.monotonic()).items():
            self._lose(node, reason)

    def send(self, node: int, message: ToAgent) -> None:
        """Send to a node's agent; where it is gone, `on_lost` is told."""
        try:
            if (channel := self._channels.get(node)) is not None:
                channel.send(message)
        except ChannelClosedError as error:
            self._lose(node, f"{error}{self._liveness.last_seen(node)}")

    def beat(self, beat: Beat) -> None:
        """Send a beat to all members. Thread-safe. A lost member is noticed by its connection."""
        for channel in list(self._channels.values()):
            with contextlib.suppress(ChannelClosedError):
                channel.send(beat)

    def _let_in(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, HELLO)
        except OSError as error:
            connection.close()
            self._log(f"an agent left before it had joined: {error}")
            return
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._welcome(channel))

    def _welcome(self, newcomer: Channel[Hello]) -> None:
        hello = None
        try:
            hellos = newcomer.receive()
            if not hellos:
                return  # the rest of it is still to come
            if (refusal := refuse(hellos[0], self._era, self._is_overtaken)) is not None:
                newcomer.send(refusal)
                self._log(f"node {hellos[0].node} was refused: {hellos[0]}")
            else:
                hello = hellos[0]
                newcomer.send(Welcome(time_s=time.time()))
        except ChannelClosedError as error:
            hello = None
            self._log(f"an agent left before it had joined: {error}")
        self._selector.unregister(newcomer)
        if hello is None:
            newcomer.close()
            return
        self._take_in(hello, newcomer.expect(TO_LEADER))

    def _take_in(self, hello: Hello, channel: Channel[ToLeader | Beat]) -> None:
        node = hello.node
        self._close(node)  # it would not come again if its former connection were of use
        self._channels[node] = channel
        self._liveness.begin(node)
        receive = functools.partial(self._receive, node, channel)
        self._selector.register(channel, selectors.EVENT_READ, receive)

    def _receive(self, node: int, channel: Channel[ToLeader | Beat]) -> None:
        if self._channels.get(node) is not channel:
            return  # closed by an event of the same moment
        try:
            for message in channel.receive():
                if isinstance(message, Beat):
                    self._liveness.hear(node, message)
                    continue
                self._on_message(node, message)
                if isinstance(message, Join):
                    self._missing.discard(node)
                    if not self._missing:
                        self._entrance.close()  # none of them comes again
        except ChannelClosedError as error:
            self._lose(node, f"{error}{self._liveness.last_seen(node)}")

    def _lose(self, node: int, reason: str) -> None:
        if self._close(node):
            self._on_lost(node, reason)

    def _close(self, node: int) -> bool:
        self._liveness.end(node)
        channel = self._channels.pop(node, None)
        if channel is None:
            return False
        self._selector.unregister(channel)
        channel.close()
        return True


def refuse(hello: Hello, era: Era | None, is_overtaken: Callable[[], bool]) -> Refusal | None:
    """Return why an agent cannot take part with node 0's, which is of this era; None where it can,
    as where one of them does not tell its own.

    A shared file system may show an attempt to one node sooner than to another: `is_overtaken` says
    that node 0's sees it, too.
    """
    if hello.version != __version__:
        return Refusal(version=__version__)
    if era is None or hello.life is None or hello.attempt is None:
        return None
    if hello.life != era.life or (hello.attempt > era.attempt and is_overtaken()):
        return Refusal(version=__version__, life=era.life, attempt=era.attempt)
    return None


class Leader:
    """The coordinator in the agent of node 0, with its ways to that agent and to the others."""

    def __init__(
        self,
        run: Run,
        node: OwnNode,
        attempts: Attempts,
        *,
        orders: deque[ToAgent],
        notes: Notes,
        open_store: Callable[[messages.OpenStore], None],
        finish: Callable[[Verdict], None],
        log: Callable[[str], None],
    ) -> None:
        """`orders` takes what the coordinator wants of node 0's own agent."""
        self.messages: deque[ToLeader] = deque()
        """From node 0's own agent, delivered one by one: handlers must not nest."""
        self._run = run
        self._node = node
        self._attempts = attempts
        self._orders = orders
        self._notes = notes
        self._open_store = open_store
        self._log = log
        self._turned_s = time.monotonic()
        self._meeting: HostedMeeting | None = None
        launch = node.job.launch
        self.coordinator = Coordinator(
            num_nodes=node.num_nodes,
            ranks_per_node=node.job.ranks_per_node,
            max_restarts=launch.max_restarts,
            grace_s=launch.grace_s,
            most_grace_s=attempts.most_grace_s,
            join_timeout_s=launch.join_timeout_s,
            backend=node.plan.backend,
            send=self._send,
            open_store=self._ask_for_store,
            claim_attempt=attempts.claim,
            is_overtaken=attempts.is_overtaken,
            note_restart=lambda verdict: note_restart(run, verdict),
            note_hang=self._note_hang,
            hang_timeout_s=limits_of(node.job)[1],
            finish=finish,
            now=time.monotonic,
            unix_now=time.time,
            saves="checkpoint" in node.job.__struct_fields__,
        )
        self.answers = Answers(self.coordinator, send=self._send, finish=self._leave_answer)
        self._requests = RequestFile(run.requests_file, log)
        self._looks_at_s = self._lives_at_s = 0.0

    def host_meeting(self, addresses: Sequence[str], selector: selectors.BaseSelector) -> None:
        """Let the others join. Raises NoFreePortError."""
        place = self._node.place.rendezvous
        self._meeting = HostedMeeting(
            self._run,
            num_nodes=self._node.num_nodes,
            addresses=addresses,
            port_range=(place.port, place.port) if place else self._node.job.launch.port_range,
            rendezvous=place,
            era=own_era(self._attempts, place),
            is_overtaken=self._attempts.is_overtaken,
            agent_timeout_s=self._node.job.launch.agent_timeout_s,
            selector=selector,
            on_message=self.hear,
            on_lost=self.coordinator.on_lost,
            log=self._log,
        )

    def tell(self, message: ToLeader) -> None:
        """Take what node 0's own agent tells the coordinator."""
        self.messages.append(message)

    def hear(self, node: int, message: ToLeader) -> None:
        """Pass a message on to whom it is for."""
        if isinstance(message, messages.Report):
            self.answers.on_report(node, message)
        else:
            self.coordinator.on_message(node, message)

    def look(self) -> None:
        """Take what commands want of the agents, and show them that this one lives; call it now and
        then."""
        now_s = time.monotonic()
        if now_s >= self._lives_at_s:
            self._lives_at_s = now_s + SIGN_EVERY_S
            self._run.show_life()
        if now_s >= self._looks_at_s:
            self._looks_at_s = now_s + _LOOK_AT_REQUESTS_S
            for request in self._requests.new():
                if is_wanted(self._run, request.id):
                    self.answers.take(request)

    @property
    def deadline(self) -> float:
        """When `on_time` must be called next, by the monotonic clock."""
        return min(self.answers.deadline, self.coordinator.next_deadline())

    def on_turn(self) -> None:
        """Note what counts before what others said meanwhile is heard."""
        now_s = time.monotonic()
        if now_s - self._turned_s > STANDSTILL_S:
            self.coordinator.on_standstill()
        self._turned_s = now_s
        if self.coordinator.stage is not Stage.JOINING:
            return  # the connection tells of the loss of an agent that has joined
        for note in self._notes.new():
            sentence = f"no agent could be started there: {note.said}"
            self.coordinator.on_unreachable(
                note.node, note.host, sentence, is_host_lost=note.is_host_lost
            )

    def on_time(self) -> None:
        self.coordinator.on_time()
        self.answers.on_time()
        if self._meeting is not None:
            self._meeting.on_time()

    def beat(self, beat: Beat) -> None:
        """Tell the others that this node's agent lives; another thread calls this."""
        if self._meeting is not None:
            self._meeting.beat(beat)

    def _leave_answer(self, request: str, answer: Answer) -> None:
        try:
            leave_answer(self._run, request, answer)
        except OSError as error:
            self._log(f"a request was not answered: {files.reason(error)}")

    def _note_hang(self, hang: Hang) -> None:
        if hang.recovered_s is None:
            self._log(f"the run seems to hang: {hang.message}")
        else:
            self._log("a rank works again: the run did not hang, or does no more")
        try:
            self._run.write_hang(hang)
        except OSError as error:
            self._log(f"hang.json could not be written: {files.reason(error)}")
        if hang.recovered_s is None:
            tell_hang(self._run, self._node.job.name, hang, self._node.notify)

    def _ask_for_store(self, address: str, bind_to: str) -> None:
        port_range = self._node.job.launch.port_range
        self._open_store(
            messages.OpenStore(bind_to=bind_to, address=address, port_range=port_range)
        )

    def _send(self, node: int, message: ToAgent) -> None:
        if node == 0:
            self._orders.append(message)
        elif self._meeting is not None:
            self._meeting.send(node, message)


def own_era(attempts: Attempts, rendezvous: Rendezvous | None) -> Era | None:
    """Return an agent's own era; None where the nodes have no run directory in common: each counts
    what it has got there, which may differ."""
    return None if rendezvous is not None else Era(attempts.life, attempts.newest)
