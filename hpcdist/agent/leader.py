"""The leader of a run, a thread of node 0's agent.

It holds the connections of all agents, gives each event to the coordinator
(agent/coordinator.py), and carries out what that returns. It also passes commands' requests on to
the agents, and writes their answers.
"""

from __future__ import annotations

import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.coordinator import (
    ClaimAttempt,
    Claimed,
    Concluded,
    Coordinator,
    Event,
    Finish,
    Heard,
    Lost,
    Now,
    Resumed,
    Send,
    Stage,
    Terms,
    Tick,
)
from hpcdist.agent.liveness import Heart, Liveness
from hpcdist.agent.meeting import SECRET_BYTES, Entrance, MeetingPlace
from hpcdist.agent.messages import TO_LEADER, Beat, Channel, ChannelClosedError, ToAgent, ToLeader
from hpcdist.agent.node import OwnNode
from hpcdist.agent.outcome.hang import limits_of
from hpcdist.agent.outcome.lives import Attempts, note_restart
from hpcdist.agent.watch import STANDSTILL_S
from hpcdist.base import files
from hpcdist.job.spec import warning_before_s
from hpcdist.machine.network import interface_of, network_key
from hpcdist.machine.ports import listen
from hpcdist.notify import tell_hang
from hpcdist.runs.requests import Answer, Request, leave_answer, take_request
from hpcdist.runs.run import SIGN_EVERY_S, Run
from hpcdist.runs.verdict import Hang, Verdict
from hpcdist.schedulers.base import Rendezvous
from hpcdist.schedulers.notes import Notes

_TICK_S = 0.5
_TICKS_PER_LOOK = 2
"""Ticks between two looks at what others may have written into the run's directory."""
_TICKS_PER_SIGN = round(SIGN_EVERY_S / _TICK_S)
_WHY_NO_ANSWER = {
    Stage.JOINING: "its ranks have not started yet: the agents of its nodes are still connecting",
    Stage.STARTING: "its ranks are being started",
    Stage.ENDING: "its ranks are being ended",
    Stage.FINISHED: "it has ended",
}


class Connections:
    """The leader's connections with the agents of all nodes, its own included."""

    def __init__(self, limit_s: float, log: Callable[[str], None]) -> None:
        """Count an agent as lost after `limit_s` without a sign of life; never where that is 0."""
        self._log = log
        self._selector = selectors.DefaultSelector()
        self.channels: dict[int, Channel[ToLeader | Beat]] = {}
        self._liveness = Liveness(limit_s, now_s=time.monotonic())
        self._events: list[Heard | Lost] = []
        self._entrance: Entrance | None = None

    def listen(
        self,
        run: Run,
        *,
        addresses: Sequence[str],
        port_range: tuple[int, int] | None,
        rendezvous: Rendezvous | None = None,
        life: int = 0,
    ) -> None:
        """Listen on a free port, and write the place into the meeting's file.

        `addresses` are those by which the others may reach this host, best first; `rendezvous` is
        the place where they will come, if the scheduler has named one. Raises NoFreePortError.
        """
        secret, is_own = secrets.token_bytes(SECRET_BYTES), True
        if rendezvous is not None:
            port_range, secret = (rendezvous.port,) * 2, bytes.fromhex(rendezvous.secret)
            is_own = interface_of(rendezvous.address) is not None
        listener = listen(addresses[0] if len(addresses) == 1 and is_own else "", port_range)
        place = MeetingPlace(
            addresses=list(addresses),
            network=network_key(),
            port=listener.getsockname()[1],
            secret=secret.hex(),
            life=life,
        )
        self._entrance = Entrance(listener, secret, log=self._log)
        self._selector.register(self._entrance, selectors.EVENT_READ, None)
        files.write_json(run.meeting_file, msgspec.to_builtins(place))

    def take(self, node: int, channel: Channel[ToLeader | Beat]) -> None:
        """Take a channel as that of a node's agent from now on."""
        self._close(node)  # an agent that connects again has given up its former connection
        self.channels[node] = channel
        if node:
            self._liveness.hear(node)
        self._selector.register(channel, selectors.EVENT_READ, node)

    def wait(self, timeout_s: float) -> list[Heard | Lost]:
        """Return the events that have come, after so long at most."""
        for key, _ in self._selector.select(0.0 if self._events else timeout_s):
            if self.channels.get(key.data) is key.fileobj:  # else the entrance, lost or replaced
                self._receive(key.data, self.channels[key.data])
        for newcomer in self._entrance.look() if self._entrance is not None else ():
            if isinstance(newcomer, messages.Failed):  # node 0 itself can take no more connections
                self._events.append(Heard(0, newcomer))
            else:
                node, connection = newcomer
                self.take(node, Channel(connection, TO_LEADER))
        for node, reason in self._liveness.look(time.monotonic()).items():
            self._lose(node, reason)
        events, self._events = self._events, []
        return events

    def send(self, nodes: Iterable[int], message: ToAgent) -> None:
        """Send a message to nodes' agents; for one that is gone, `wait` returns Lost."""
        for node in nodes:
            if (channel := self.channels.get(node)) is not None:
                try:
                    channel.send(message)
                except ChannelClosedError as error:
                    self._lose(node, str(error))

    def close_entrance(self) -> None:
        """Let in nobody any more."""
        if self._entrance is not None:
            self._selector.unregister(self._entrance)
            self._entrance.close()
            self._entrance = None

    def close(self) -> None:
        self.close_entrance()
        for node in list(self.channels):
            self._close(node)

    def _receive(self, node: int, channel: Channel[ToLeader | Beat]) -> None:
        try:
            for message in channel.receive():
                if isinstance(message, Beat):
                    self._liveness.hear(node)
                    continue
                self._events.append(Heard(node, message))
        except ChannelClosedError as error:
            self._lose(node, str(error))

    def _lose(self, node: int, reason: str) -> None:
        if self._close(node):
            self._events.append(Lost(node, reason))

    def _close(self, node: int) -> bool:
        self._liveness.end(node)
        channel = self.channels.pop(node, None)
        if channel is not None:
            self._selector.unregister(channel)
            channel.close()
        return channel is not None


class Answers:
    """Collects the answers to commands' requests: reports of all agents, until each has come or is
    late."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[float, Answer]] = {}
        """By request: when the answer is due, by the monotonic clock, and its reports so far."""

    @property
    def deadline(self) -> float:
        """Return when `finished` must be called next, by the monotonic clock."""
        return min((until_s for until_s, _ in self._open.values()), default=math.inf)

    def begin(self, request: Request, coordinator: Coordinator, now: Now) -> bool:
        """Wait for reports from now on; return False where the answer says why none will come."""
        refusal = _WHY_NO_ANSWER.get(coordinator.stage)
        answer = Answer(
            attempt=coordinator.attempt.number,
            time_s=now.unix_now,
            world_size=coordinator.terms.world_size,
            refusal=refusal,
        )
        until_s = now.now if refusal else now.now + request.limit_s
        self._open.setdefault(request.id, (until_s, answer))
        return refusal is None

    def on_report(self, node: int, message: messages.Report) -> None:
        if message.request in self._open:
            answer = self._open[message.request][1]
            if isinstance(message.report, str):
                answer.troubles[node] = message.report
            else:
                answer.reports[node] = message.report

    def finished(self, members: Collection[int], now: Now) -> dict[str, Answer]:
        """Return, by request, the answers that are due, or have the reports of all `members`; each
        once."""
        finished = {}
        for name, (until_s, answer) in list(self._open.items()):
            missing = set(members) - answer.reports.keys() - answer.troubles.keys()
            if not missing or now.now >= until_s:
                del self._open[name]
                late = dict.fromkeys(sorted(missing), "its agent did not answer in time")
                answer.troubles.update(late)
                finished[name] = msgspec.structs.replace(answer, time_s=now.unix_now)
        return finished


def _now() -> Now:
    return Now(time.monotonic(), time.time())


class Leader:
    """The thread that leads the run."""

    def __init__(
        self,
        node: OwnNode,
        attempts: Attempts,
        *,
        notes: Notes,
        heart: Heart,
        log: Callable[[str], None],
    ) -> None:
        self.verdict: Verdict | None = None
        """The verdict on the run, once it is over; None where another agent has written one."""
        self._run = attempts.run
        self._node = node
        self._attempts = attempts
        self._heart = heart
        self._log = log
        launch, plan = node.job.launch, node.plan
        enforced_min = node.job.resources.time_limit_min if plan.enforces_limits else None
        limit_min = enforced_min or plan.limit_min
        limit_at = math.inf if limit_min is None else node.begin_s + limit_min * 60
        self._connections = Connections(launch.agent_timeout_s if node.num_nodes > 1 else 0.0, log)
        terms = Terms(
            num_nodes=node.num_nodes,
            ranks_per_node=node.job.ranks_per_node,
            max_restarts=launch.max_restarts,
            grace_s=launch.grace_s,
            most_grace_s=attempts.most_grace_s,
            join_timeout_s=launch.join_timeout_s,
            backend=plan.backend,
            warn_at=limit_at - warning_before_s(launch, limit_min),
            limit_at=math.inf if enforced_min is None else limit_at,
            limit_min=limit_min,
            hang_timeout_s=limits_of(node.job)[1],
            port_range=launch.port_range,
            saves="checkpoint" in node.job.__struct_fields__,
        )
        self._coordinator = Coordinator(terms, _now())
        self._answers = Answers()
        self._notes = notes
        self._error: Exception | None = None
        self._turned_s = self._tick_s = time.monotonic()
        self._num_ticks = 0
        self._thread = threading.Thread(target=self._lead, daemon=True)

    def begin(self, addresses: Sequence[str]) -> socket.socket:
        """Lead from now on, and let the others join at these addresses of this host; return the
        connection for node 0's own member. Raises NoFreePortError."""
        if self._node.num_nodes > 1:
            self._connections.listen(
                self._run,
                addresses=addresses,
                port_range=self._node.job.launch.port_range,
                rendezvous=self._node.place.rendezvous,
                life=self._attempts.life,
            )
        own, members = socket.socketpair()
        self._connections.take(0, Channel(own, TO_LEADER))
        self._heart.channels.append(self._connections.channels.values())
        self._thread.start()
        return members

    def end(self) -> None:
        """Wait until the thread has sent Close to all agents. Raises what made it fail."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _lead(self) -> None:
        try:
            while self._coordinator.stage is not Stage.FINISHED:
                self._turn()
            self._connections.close_entrance()
        except Exception as error:  # noqa: BLE001 - the member raises it
            self._error = error
            self._connections.close()
        finally:
            self._heart.leave()

    def _turn(self) -> None:
        deadline = min(self._tick_s, self._answers.deadline, self._coordinator.next_deadline())
        events = self._connections.wait(max(0.0, deadline - time.monotonic()))
        self._heart.turn()
        now = _now()
        if now.now - self._turned_s > STANDSTILL_S:  # before what the others said meanwhile
            self._decide(Resumed())
        self._turned_s = now.now
        if self._coordinator.stage is Stage.JOINING:  # later, connections tell of lost agents
            for note in self._notes.new():
                self._decide(note)
        for event in events:
            if isinstance(event, Heard) and isinstance(event.message, messages.Report):
                self._answers.on_report(event.node, event.message)
            else:
                self._decide(event)
        if now.now >= self._tick_s:
            self._tick_s = now.now + _TICK_S
            self._look(now)
        self._decide(Tick())
        for request, answer in self._answers.finished(self._coordinator.members(), now).items():
            try:
                leave_answer(self._run, request, answer)
            except OSError as error:
                self._log(f"a request was not answered: {files.reason(error)}")

    def _look(self, now: Now) -> None:
        """Look into the run's directory for a verdict (of an agent that could not join), for a
        cancellation, and for commands' requests; show there that this agent lives."""
        self._num_ticks += 1
        if self._num_ticks % _TICKS_PER_SIGN == 0:
            self._run.show_life()
        if self._num_ticks % _TICKS_PER_LOOK != 0:
            return
        if self._run.verdict_file.exists():
            self._decide(Concluded())
            return
        if self._run.cancel_file.exists():
            self._decide(Heard(0, messages.Signalled(signal="SIGTERM", is_cancel=True)))
        request = take_request(self._run)
        if request is not None and self._answers.begin(request, self._coordinator, now):
            members = self._coordinator.members()
            self._connections.send(sorted(members), messages.Ask(request=request))

    def _decide(self, event: Event) -> None:
        """Give an event to the coordinator, and carry out the actions that it returns."""
        for action in self._coordinator.decide(event, _now()):
            match action:
                case Send():
                    self._connections.send(action.nodes, action.message)
                case ClaimAttempt():  # its outcome is the next event
                    self._decide(self._claim(action.failed))
                case Hang():
                    self._note_hang(action)
                case Finish():
                    self.verdict = action.verdict

    def _claim(self, failed: Verdict | None) -> Claimed:
        """Carry out ClaimAttempt. All have joined then, and none of them comes again."""
        self._connections.close_entrance()
        if failed is not None:
            if self._attempts.is_overtaken():  # a claim would take the run from its new leader
                return Claimed(None)
            if (why_not := note_restart(self._run, failed)) is not None:
                return Claimed(None, why_not)
        return Claimed(self._attempts.claim())

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
