"""The leader of a run, a thread of node 0's agent.

It gives each event to the coordinator (agent/coordinator.py), and carries out what that returns. It
also passes commands' requests on to the agents, and writes their answers.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from hpcdist.agent import messages
from hpcdist.agent.coordinator import (
    ClaimAttempt,
    Claimed,
    Coordinator,
    Event,
    Finish,
    Heard,
    Now,
    Send,
    Stage,
    Terms,
    Tick,
)
from hpcdist.agent.meeting import Connections
from hpcdist.agent.node import OwnNode
from hpcdist.agent.outcome.hang import limits_of
from hpcdist.agent.outcome.lives import Attempts, note_restart
from hpcdist.base import files
from hpcdist.job.spec import warning_before_s
from hpcdist.notify import tell_hang
from hpcdist.runs.requests import Answer, Request, leave_answer, take_request
from hpcdist.runs.run import SIGN_EVERY_S
from hpcdist.runs.verdict import Hang, Verdict
from hpcdist.schedulers.notes import Notes

_TICK_S = 0.5
_TICKS_PER_LOOK = 2
"""Ticks between two looks at what others may have written into the run's directory."""
_TICKS_PER_SIGN = round(SIGN_EVERY_S / _TICK_S)
_WHY_NO_ANSWER = {
    Stage.JOINING: "its ranks have not started yet: the agents of its nodes are still connecting",
    Stage.STARTING: "its ranks are being started",
    Stage.ENDING: "its ranks are being ended",
}


class Leader:
    """The thread that leads the run."""

    def __init__(
        self, node: OwnNode, attempts: Attempts, *, notes: Notes, log: Callable[[str], None]
    ) -> None:
        self.verdict: Verdict | None = None
        """The verdict on the run, once it is over; None where another agent has written one."""
        self.member_turns = 0
        """Turns of the loop of node 0's own member: while there are none, this agent hangs."""
        self._run = attempts.run
        self._node = node
        self._attempts = attempts
        self._notes = notes
        self._log = log
        launch, plan = node.job.launch, node.plan
        enforced_min = node.job.resources.time_limit_min if plan.enforces_limits else None
        limit_min = enforced_min or plan.limit_min
        begin_s = node.now_s - node.place.age_s
        limit_at = math.inf if limit_min is None else begin_s + limit_min * 60
        self._connections = Connections(launch.agent_timeout_s if node.num_nodes > 1 else 0.0, log)
        terms = Terms(
            launch=launch,
            num_nodes=node.num_nodes,
            ranks_per_node=node.job.ranks_per_node,
            most_grace_s=attempts.most_grace_s,
            backend=plan.backend,
            warn_at=limit_at - warning_before_s(launch, limit_min),
            limit_at=math.inf if enforced_min is None else limit_at,
            limit_min=limit_min,
            hang_timeout_s=limits_of(node.job)[1],
            saves="checkpoint" in node.job.__struct_fields__,
        )
        self._coordinator = Coordinator(terms, Now(time.monotonic(), time.time()))
        self._answers: dict[str, tuple[float, Answer]] = {}
        """By request: when the answer is due, by the monotonic clock, and its reports so far."""
        self._is_over = False
        self._error: Exception | None = None
        self._tick_s = time.monotonic()
        self._num_ticks = self._turns_at_beat = 0
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
        self._connections.take(0, own)
        self._thread.start()
        return members

    def end(self) -> None:
        """Wait until the thread has sent Close to all agents. Raises what made it fail."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _lead(self) -> None:
        try:
            while not self._is_over:
                self._turn()
            self._connections.close_entrance()
        except Exception as error:  # noqa: BLE001 - the member raises it
            self._error = error
            self._connections.close()

    def _turn(self) -> None:
        connections, coordinator = self._connections, self._coordinator
        due = [until_s for until_s, _ in self._answers.values()]
        if coordinator.deadline is not None:
            due.append(coordinator.deadline)
        events = connections.wait(max(0.0, min([self._tick_s, *due]) - time.monotonic()))
        if coordinator.stage is Stage.JOINING:  # later, connections tell of lost agents
            for note in self._notes.new():
                self._decide(note)
        for event in events:
            if isinstance(event, Heard) and isinstance(event.message, messages.Report):
                self._take_report(event.node, event.message)
            else:
                self._decide(event)
        now_s = time.monotonic()
        if self.member_turns != self._turns_at_beat and connections.liveness.is_beat_due(now_s):
            self._turns_at_beat = self.member_turns
            connections.send(set(connections.channels) - {0}, messages.Beat())
        if now_s >= self._tick_s:
            self._tick_s = now_s + _TICK_S
            self._look()
        self._decide(Tick())
        self._leave_answers()

    def _look(self) -> None:
        """Look into the run's directory for a verdict (of an agent that could not join), for a
        cancellation, and for commands' requests; show there that this agent lives."""
        self._num_ticks += 1
        if self._num_ticks % _TICKS_PER_SIGN == 0:
            self._run.show_life()
        if self._num_ticks % _TICKS_PER_LOOK != 0:
            return
        if self._run.verdict_file.exists():
            self._connections.send(list(self._connections.channels), messages.Close())
            self._is_over = True
            return
        if self._run.cancel_file.exists():
            self._decide(Heard(0, messages.Signalled(signal="SIGTERM", is_cancel=True)))
        if (request := take_request(self._run)) is not None:
            self._pass_on(request)

    def _decide(self, event: Event) -> None:
        """Give an event to the coordinator, and carry out the actions that it returns."""
        if self._is_over:
            return
        for action in self._coordinator.decide(event, Now(time.monotonic(), time.time())):
            match action:
                case Send():
                    self._connections.send(action.nodes, action.message)
                case ClaimAttempt():  # its outcome is the next event
                    self._decide(self._claim(action.failed))
                case Hang():
                    self._note_hang(action)
                case Finish():
                    self.verdict, self._is_over = action.verdict, True

    def _claim(self, failed: Verdict | None) -> Claimed:
        """Carry out ClaimAttempt. All have joined then, and none of them comes again."""
        self._connections.close_entrance()
        if failed is not None:
            if self._attempts.is_overtaken():  # a claim would take the run from its new leader
                return Claimed(None, failed)
            if (why_not := note_restart(self._run, failed)) is not None:
                return Claimed(None, failed, why_not)
        return Claimed(self._attempts.claim(), failed)

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

    def _pass_on(self, request: Request) -> None:
        """Ask all agents for their reports; or have the answer say why none will come."""
        coordinator, refusal = self._coordinator, _WHY_NO_ANSWER.get(self._coordinator.stage)
        answer = Answer(
            attempt=coordinator.attempt.number,
            time_s=time.time(),
            world_size=coordinator.terms.world_size,
            refusal=refusal,
        )
        limit_s = 0.0 if refusal else request.limit_s
        self._answers[request.id] = (time.monotonic() + limit_s, answer)
        if refusal is None:
            self._connections.send(sorted(coordinator.members), messages.Ask(request=request))

    def _take_report(self, node: int, message: messages.Report) -> None:
        if message.request in self._answers:
            answer = self._answers[message.request][1]
            if isinstance(message.report, str):
                answer.troubles[node] = message.report
            else:
                answer.reports[node] = message.report

    def _leave_answers(self) -> None:
        """Write the answers that are due, or have the reports of all agents."""
        for request, (until_s, answer) in list(self._answers.items()):
            missing = self._coordinator.members.keys() - answer.reports.keys()
            missing -= answer.troubles.keys()
            if missing and time.monotonic() < until_s:
                continue
            del self._answers[request]
            answer.troubles.update(dict.fromkeys(missing, "its agent did not answer in time"))
            try:
                leave_answer(self._run, request, replace(answer, time_s=time.time()))
            except OSError as error:
                self._log(f"a request was not answered: {files.reason(error)}")
