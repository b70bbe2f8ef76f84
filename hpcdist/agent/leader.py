"""The leader of a run, a thread of node 0's agent.

It gives each event to the coordinator (agent/coordinator.py), and carries out what that returns. It
also passes commands' requests on to the agents, and writes their answers.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from hpcdist.agent import coordinator, messages
from hpcdist.agent.coordinator import Coordinator, Legacy, Now, Stage
from hpcdist.agent.meeting import Connections
from hpcdist.agent.node import OwnNode
from hpcdist.agent.outcome import lives, words
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.base import files
from hpcdist.notify import tell_hang
from hpcdist.runs.requests import Answer, Request
from hpcdist.runs.run import SIGN_EVERY_S, Run
from hpcdist.runs.verdict import Hang, Verdict
from hpcdist.schedulers.notes import Notes

_MOST_REQUEST_BYTES = 1 << 20
_TICK_S = 0.5
_TICKS_PER_LOOK = 2
"""Ticks between two looks at what others may have written into the run's directory."""
_TICKS_PER_SIGN = round(SIGN_EVERY_S / _TICK_S)


class Leader:
    """The thread that leads the run."""

    def __init__(
        self,
        node: OwnNode,
        attempts: Attempts,
        *,
        notes: Notes,
        log: Callable[[str], None],
        legacy: Legacy | None = None,
    ) -> None:
        """`legacy`: it takes over from a leader that is lost, and has claimed the next attempt."""
        self.verdict: Verdict | None = None
        """The verdict on the run, once it is over; None where another agent has written one."""
        self.member_turns = 0
        """Turns of the loop of node 0's own member: while there are none, this agent hangs."""
        self._run = attempts.run
        self._node = node
        self._attempts = attempts
        self._notes = notes
        self._log = log
        limit_s = node.job.launch.agent_timeout_s if node.num_nodes > 1 else 0.0
        self._own_node = node.place.node_rank
        self._connections = Connections(limit_s, log, own_node=self._own_node)
        now = Now(time.monotonic(), time.time())
        self._coordinator = Coordinator(node, attempts.most_grace_s, now, legacy)
        self._has_claimed = legacy is not None
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
                attempt=self._attempts.number if self._has_claimed else 0,
            )
        own, members = socket.socketpair()
        self._connections.take(self._own_node, own)
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
        connections, deadline = self._connections, self._coordinator.deadline
        due = [until_s for until_s, _ in self._answers.values()]
        due += [self._tick_s] if deadline is None else [self._tick_s, deadline]
        events = connections.wait(max(0.0, min(due) - time.monotonic()))
        if self._coordinator.stage is Stage.JOINING:  # later, connections tell of lost agents
            for note in self._notes.new():
                self._decide(note)
        for event in events:
            if isinstance(event, coordinator.Heard) and isinstance(event.message, messages.Report):
                self._take_report(event.node, event.message)
            else:
                self._decide(event)
        now_s = time.monotonic()
        if self.member_turns != self._turns_at_beat and connections.liveness.is_beat_due(now_s):
            self._turns_at_beat = self.member_turns
            connections.send(set(connections.channels) - {self._own_node}, messages.Beat())
        if now_s >= self._tick_s:
            self._tick_s = now_s + _TICK_S
            self._look()
        self._decide(None)
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
            # As if node 0's agent had got the signal, which a scheduler may have sent to nobody.
            cancel = messages.Signalled(signal="SIGTERM", is_cancel=True)
            self._decide(coordinator.Heard(self._own_node, cancel))
        if (request := take_request(self._run)) is not None:
            self._pass_on(request)

    def _decide(self, event: coordinator.Event) -> None:
        """Give an event to the coordinator, and carry out the actions that it returns."""
        if self._is_over:
            return
        for action in self._coordinator.decide(event, Now(time.monotonic(), time.time())):
            match action:
                case coordinator.Send():
                    self._connections.send(action.nodes, action.message)
                case coordinator.ClaimAttempt():  # its outcome is the next event
                    self._decide(self._claim(action.failed))
                case Hang():
                    self._note_hang(action)
                case Verdict():
                    self.verdict, self._is_over = action, True

    def _claim(self, failed: Verdict | None) -> coordinator.Claimed:
        """Carry out ClaimAttempt. All have joined then, and none of them comes again."""
        self._connections.close_entrance()
        if failed is not None:
            if self._attempts.is_overtaken():  # a claim would take the run from its new leader
                return coordinator.Claimed(None, failed)
            if failed.num_nodes_left is not None:
                if not self._has_claimed and not (
                    lives.is_ours(self._attempts, failed)
                    and self._attempts.claim_next(self._own_node)
                ):
                    return coordinator.Claimed(None, failed)
                self._has_claimed = False
                lives.note_node(self._attempts, failed)
            if (why_not := lives.note_restart(self._run, failed)) is not None:
                why_not = f"it is not started again: {why_not}"
                return coordinator.Claimed(None, words.add(failed, why_not))
            if failed.num_nodes_left is not None:
                return coordinator.Claimed(self._attempts.number, failed)
        return coordinator.Claimed(self._attempts.claim(self._own_node), failed)

    def _note_hang(self, hang: Hang) -> None:
        try:
            self._run.write_hang(hang)
        except OSError as error:
            self._log(f"hang.json could not be written: {files.reason(error)}")
        if hang.recovered_s is None:
            self._log(f"the run seems to hang: {hang.message}")
            tell_hang(self._run, self._node.job.name, hang, self._node.notify)

    def _pass_on(self, request: Request) -> None:
        """Ask all agents for their reports; or have the answer say why none will come."""
        stage, refusal = self._coordinator.stage, None
        if stage not in {Stage.RUNNING, Stage.SETTLING}:
            refusal = f"its ranks do not run, it is {stage.value}"
        answer = Answer(
            attempt=self._coordinator.attempt.number,
            time_s=time.time(),
            world_size=self._coordinator.attempt.world_size,
            refusal=refusal,
        )
        limit_s = 0.0 if refusal else request.limit_s
        self._answers[request.id] = (time.monotonic() + limit_s, answer)
        if refusal is None:
            members = sorted(self._coordinator.members)
            self._connections.send(members, messages.Ask(request=request))

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
                content = msgspec.json.encode(replace(answer, time_s=time.time()))
                files.write_whole(self._run.answer_file(request), content)
            except OSError as error:
                self._log(f"a request was not answered: {files.reason(error)}")


def take_request(run: Run) -> Request | None:
    """Return the request that has come, and remove it."""
    if not files.is_there(run.request_file):
        return None
    try:
        with files.open_private(run.request_file) as file:
            return msgspec.json.decode(file.read(_MOST_REQUEST_BYTES), type=Request)
    except (OSError, msgspec.MsgspecError, UnicodeError):  # none of ours
        return None
    finally:
        run.request_file.unlink(missing_ok=True)
