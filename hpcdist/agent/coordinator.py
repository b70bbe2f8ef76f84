"""The coordinator: leads the agents of a run through its attempts, and decides the verdict.

It is pure state: `decide` takes one event and the time, and returns what follows from it. The
leader (agent/leader.py) carries that out; where it can fail, the outcome is another event. Node 0's
own agent is a member like the others.
"""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.messages import ToAgent, ToLeader
from hpcdist.agent.node import (
    Agreement,
    DisagreementError,
    NodeFacts,
    RankMeeting,
    agree,
    store_listens_on,
)
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.hang import HangWatch
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.base.text import listed
from hpcdist.runs.verdict import Hang, Kind, RankEnd, Verdict
from hpcdist.schedulers.notes import Note

SETTLE_S = 0.2
"""After a first failure, how long others that failed at the same moment have to be heard."""

_GONE_S = 5.0
"""Beyond the grace, how long an agent may take to end its ranks before it counts as lost."""

STOP_TOGETHER_S = 60.0
"""Once a rank has stopped in good order, how long the others have to do so."""

CANCEL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a user, a terminal or a scheduler sends to end a run."""


class Stage(enum.Enum):
    """The stages of a run; each attempt goes from STARTING to ENDING."""

    JOINING = "joining"
    """Agents are missing."""
    STARTING = "starting"
    """An attempt is being claimed, or its store opened."""
    RUNNING = "running"
    SETTLING = "settling"
    """A rank failed; others that failed at the same moment are to be heard."""
    ENDING = "ending"
    """All agents were ordered to end what is left of the attempt."""
    FINISHED = "finished"


_AFTER_RUNNING = frozenset((Stage.SETTLING, Stage.ENDING, Stage.FINISHED))


class Now(NamedTuple):
    """The time of an event."""

    now: float
    """By the monotonic clock."""
    unix_now: float


class Heard(NamedTuple):
    """Event: a node's agent has sent a message."""

    node: int
    message: ToLeader


class Lost(NamedTuple):
    """Event: a node's agent is gone; one that has not joined may come again."""

    node: int
    reason: str


class Claimed(NamedTuple):
    """Event: the answer to ClaimAttempt."""

    attempt: int | None
    """None: there is no next attempt, and the run ends with the verdict on the last one."""
    why_not: str | None = None
    """Why there is none; None: a newer attempt has begun elsewhere."""


class Resumed(NamedTuple):
    """Event: node 0 was suspended, and the others' ranks had to wait for its own."""


class Concluded(NamedTuple):
    """Event: an agent that could not take part has given the run its verdict."""


class Tick(NamedTuple):
    """Event: time has passed; due at `Coordinator.next_deadline`."""


class Send(NamedTuple):
    """Action: send a message to the agents of these nodes."""

    nodes: list[int]
    message: ToAgent


class ClaimAttempt(NamedTuple):
    """Action: take the next attempt number; Claimed is the answer."""

    failed: Verdict | None = None
    """The verdict on the attempt before, to be noted first."""


class Finish(NamedTuple):
    """Action: end the run with this verdict; None: the run has one already."""

    verdict: Verdict | None


Event = Heard | Lost | Note | Claimed | Resumed | Concluded | Tick
Action = Send | ClaimAttempt | Hang | Finish
"""A Hang is to be noted: an attempt seems to hang, or no longer does."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes, limits and times of a run by which its coordinator decides."""

    num_nodes: int
    ranks_per_node: int
    max_restarts: int
    grace_s: float
    """Time to end for ranks that handle the signal which asks them to."""
    most_grace_s: float
    """Limit of `grace_s` where the scheduler ends the job."""
    join_timeout_s: float
    backend: str
    """gloo, nccl, or auto: as the nodes' device wants it."""
    warn_at: float = math.inf
    """When the time limit comes close; times are of the monotonic clock."""
    limit_at: float = math.inf
    """When the time limit has passed; inf: there is none, or the scheduler keeps it."""
    limit_min: float | None = None
    hang_timeout_s: float = math.inf
    """Time without a sign of work after which the run is ended; inf: never."""
    port_range: tuple[int, int] | None = None
    """Ports for the ranks' store."""
    saves: bool = False
    """Ranks that stop have saved a checkpoint; False for scripts, of which it is not known."""

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node


@dataclass
class Attempt:
    """One attempt: what its agents have told of it, and what was decided on it."""

    terms: Terms
    number: int = 0
    restarts: int = 0
    """Attempts before that failed."""
    ends: dict[int, RankEnd] = field(default_factory=dict)
    """By rank."""
    gone: set[int] = field(default_factory=set)
    """Nodes on which nothing of it is left."""
    reached: dict[int, int] = field(default_factory=dict)
    """Last boundary between steps that a rank of each node has reached."""
    decided: Verdict | None = None
    """The verdict, where it does not follow from the ends of the ranks."""
    end: messages.End | None = None
    """The order to end its ranks, once it was given."""

    def __post_init__(self) -> None:
        self.hang_watch = HangWatch(
            attempt=self.number,
            num_nodes=self.terms.num_nodes,
            world_size=self.terms.world_size,
            timeout_s=self.terms.hang_timeout_s,
            ends=self.ends,
        )

    def failures(self) -> list[RankEnd]:
        return [end for end in self.ends.values() if failure.is_failure(end)]

    def is_explained(self) -> bool:
        """Return True where the ends so far say how the attempt ended."""
        if failures := self.failures():
            return not all(failure.is_victim(end) for end in failures)
        return len(self.ends) == self.terms.world_size

    def may_restart(self, verdict: Verdict) -> bool:
        return (
            verdict.state == "failed"
            and verdict.kind not in {"launch", "agent_lost", "time_limit"}
            and self.restarts < self.terms.max_restarts
        )

    def order_begin(self, agreement: Agreement, facts: Mapping[int, NodeFacts]) -> messages.Begin:
        """Return the order to open its store where all nodes reach it."""
        address = agreement.master_addr
        return messages.Begin(
            attempt=self.number,
            bind_to=store_listens_on(facts, address),
            address=address,
            port_range=self.terms.port_range,
        )

    def order_start(self, agreement: Agreement, port: int) -> messages.Start:
        """Return the order to start its ranks, which meet at its store's port."""
        meeting = RankMeeting(
            **msgspec.structs.asdict(agreement),
            attempt=self.number,
            restart_count=self.restarts,
            master_port=port,
        )
        return messages.Start(meeting=meeting)

    def order_end(self, notice: failure.Notice | None) -> messages.End:
        """Return the order to end its ranks, and keep it."""
        number, grace_s = signal.SIGTERM, self.terms.grace_s
        is_cancelled = self.decided is not None and self.decided.kind == "cancelled"
        if is_cancelled or (notice and (notice.is_over or notice.signal == "SIGTERM")):
            grace_s = min(grace_s, self.terms.most_grace_s)
        if self.decided is not None and is_cancelled:
            name = self.decided.signal
            number = next((one for one in CANCEL_SIGNALS if one.name == name), number)
        self.end = messages.End(attempt=self.number, signal=number, grace_s=grace_s)
        return self.end

    def numbered(self, verdict: Verdict, time_s: float) -> Verdict:
        return failure.numbered(verdict, attempt=self.number, restarts=self.restarts, time_s=time_s)

    def verdict(self, notice: failure.Notice | None, time_s: float) -> Verdict:
        """Return the verdict on the attempt, once nothing of it is left."""
        ends = [end for _, end in sorted(self.ends.items())]
        verdict = self.decided or failure.decide(
            ends, notice=notice, saves=self.terms.saves, restarts=self.restarts
        )
        return self.with_killed(self.numbered(verdict, time_s))

    def with_killed(self, verdict: Verdict) -> Verdict:
        """Return a verdict that names the ranks that had time to end, and did not."""
        killed = sorted(end.rank for end in self.ends.values() if end.outlasted)
        if not killed or self.end is None:
            return verdict
        sentence = (
            f"{listed(killed)} had not ended {self.end.grace_s:g} s after "
            f"{signal.Signals(self.end.signal).name}, and had to be killed"
        )
        return msgspec.structs.replace(verdict, message=f"{verdict.message}; {sentence}")


class Coordinator:
    """The state of a run, from which its next stage and its verdict are decided."""

    def __init__(self, terms: Terms, now: Now) -> None:
        """Start to wait for the agents."""
        self.terms = terms
        self.stage = Stage.JOINING
        self.deadline: float | None = now.now + terms.join_timeout_s
        """When the stage ends by itself; None: only messages end it."""
        self._now = now
        self._actions: list[Action] = []
        self.facts: dict[int, NodeFacts] = {}
        """By node; of those whose agents have joined."""
        self._lost: set[int] = set()
        self._agreement: Agreement | None = None
        self._notice: failure.Notice | None = None
        """The job will be ended soon."""
        self._cancelled: Verdict | None = None
        """The user cancelled while the ranks were being ended for another reason."""
        self._failed: Verdict | None = None
        """The verdict on the attempt after which another is being claimed."""
        self.attempt = Attempt(terms)

    def members(self) -> set[int]:
        """Return the nodes whose agents have joined, and are not lost."""
        return self.facts.keys() - self._lost

    def next_deadline(self) -> float:
        """Return the time, by the monotonic clock, at which Tick is due."""
        deadlines = [math.inf if self.deadline is None else self.deadline]
        if self._notice is None:
            deadlines.append(self.terms.warn_at)
        if self.stage not in _AFTER_RUNNING:
            deadlines.append(self.terms.limit_at)
        if self.stage is Stage.RUNNING:
            deadlines.append(self.attempt.hang_watch.deadline)
        return min(deadlines)

    def decide(self, event: Event, now: Now) -> list[Action]:
        """Take an event; return what is to be done because of it, in this order."""
        self._now, self._actions = now, []
        match event:
            case Heard():
                self._on_message(event.node, event.message)
            case Lost():
                self._on_lost(event.node, event.reason)
            case Note() if self.stage is Stage.JOINING and event.node not in self.facts:
                name, elsewhere = f"node {event.node} (host {event.host})", event.is_host_lost
                sentence = f"{name}: no agent could be started there: {event.said}"
                self._fail("launch", sentence, event.node, host=event.host, try_elsewhere=elsewhere)
            case Claimed() if self.stage is Stage.STARTING:
                self._on_claimed(event.attempt, event.why_not)
            case Resumed():
                self.attempt.hang_watch.forgive(now.now)
            case Concluded():
                self._finish(None)
            case Tick():
                self._on_time()
        return self._actions

    def _on_message(self, node: int, message: ToLeader) -> None:
        match message:
            case messages.Join():
                self._on_join(node, message.facts)
            case messages.StoreOpened() if self.stage is Stage.STARTING:
                assert self._agreement is not None
                self.stage = Stage.RUNNING
                self._broadcast(self.attempt.order_start(self._agreement, message.port))
            case messages.Failed() if self.attempt.decided is None:
                is_early = self.stage in {Stage.JOINING, Stage.STARTING}
                sentence = f"{_name_of(node, self.facts)}: {message.sentence}"
                self._fail("launch" if is_early else "agent_lost", sentence, node)
            case messages.Signalled(name, is_cancel=False):
                self._on_warned(name)
            case messages.Signalled(name) if self.stage in _AFTER_RUNNING:
                self._cancelled = self.attempt.numbered(failure.cancelled(name), self._now.unix_now)
            case messages.Signalled(name):
                self._end_attempt(failure.cancelled(name))
            case messages.OfAttempt() if message.attempt == self.attempt.number:
                self._on_news(node, message)

    def _on_join(self, node: int, facts: NodeFacts) -> None:
        if self.stage is not Stage.JOINING:  # the run was over before all were there
            self._actions.append(Send([node], messages.Close()))
            return
        self.facts[node] = facts
        if len(self.facts) < self.terms.num_nodes:
            return
        try:
            self._agreement = agree(self.facts, self.terms.backend)
        except DisagreementError as error:
            self._fail("launch", str(error), node)
        else:
            self._claim(failed=None)

    def _on_lost(self, node: int, reason: str) -> None:
        if self.stage is Stage.FINISHED or node not in self.members():
            return
        self._lost.add(node)
        if self.attempt.decided is None and not self.attempt.is_explained():
            sentence = f"the agent of {_name_of(node, self.facts)} was lost: {reason}"
            if self._notice is not None and self._notice.signal == "SIGINT":
                # LSF's kill reaches the agents of other hosts too, in an order of its own.
                self._end_attempt(failure.stopped(self._notice, f"stopped by SIGINT; {sentence}"))
            else:
                self._fail("agent_lost", sentence, node)
        self._check_gone()

    def _on_time(self) -> None:
        if self._now.now >= self.terms.warn_at and self._notice is None:
            self._on_warned(None)
        if self._now.now >= self.terms.limit_at and self.stage not in _AFTER_RUNNING:
            asked = "; the ranks had been asked to stop, and did not" if self._notice else ""
            sentence = f"the time limit of {self.terms.limit_min:g} minutes was reached{asked}"
            self._fail("time_limit", sentence, 0)
        if self.stage is Stage.RUNNING:
            self._act(self.attempt.hang_watch.on_time(now=self._now.now))
        if self.deadline is None or self._now.now < self.deadline:
            return
        self.deadline = None
        if self.stage is Stage.JOINING:
            missing = sorted(set(range(self.terms.num_nodes)) - self.facts.keys())
            limit_s = self.terms.join_timeout_s
            sentence = f"the agents of {listed(missing, 'node')} did not join within {limit_s:g} s"
            self._fail("launch", sentence, missing[0])
        elif self.stage in {Stage.RUNNING, Stage.SETTLING}:
            self._end_attempt(None)
        elif self.stage is Stage.ENDING:
            for node in self.members() - self.attempt.gone:
                self._on_lost(node, "it did not end its ranks in time")

    def _on_news(self, node: int, message: messages.AnyOfAttempt) -> None:
        """Take a message about the current attempt; others come too late."""
        attempt, now = self.attempt, self._now._asdict()
        match message:
            case messages.Ended() if self.stage is not Stage.FINISHED:
                self._on_ended(message.end)
            case messages.Gone() if self.stage is Stage.ENDING:
                attempt.gone.add(node)
                self._check_gone()
            case messages.Quiet(_, quiet_s) if self.stage is Stage.RUNNING:
                self._act(attempt.hang_watch.on_quiet(node, quiet_s, **now))
            case messages.Stacks(_, reports) if self.stage is Stage.RUNNING:
                self._act(attempt.hang_watch.on_reports(node, reports, **now))
            case messages.Reached():
                attempt.reached[node] = message.boundary
                if attempt.reached.keys() >= self.members():
                    self._broadcast(messages.Pause(stop_at=max(attempt.reached.values()) + 1))

    def _on_ended(self, end: RankEnd) -> None:
        self.attempt.ends[end.rank] = end
        if self.stage is Stage.ENDING and self.deadline is not None:
            # Its agent closes one rank's files after the other, on whatever file system.
            self.deadline = max(self.deadline, self._now.now + _GONE_S)
        if self.stage is not Stage.RUNNING:
            return
        if _is_due_to(self._notice, end):
            self.deadline = self.deadline or self._now.now + STOP_TOGETHER_S
        elif failure.is_failure(end):
            self.stage, self.deadline = Stage.SETTLING, self._now.now + SETTLE_S
        if len(self.attempt.ends) == self.terms.world_size:
            self._end_attempt(None)

    def _on_warned(self, signal_name: str | None) -> None:
        """Stop the ranks at the next step, and start no more: the job will be ended soon."""
        if self._notice is not None:
            before, self._notice = self._notice, _heed_again(self._notice, signal_name)
            if self._notice.is_over and not before.is_over:
                self._end_attempt(None)
            return
        self._notice = failure.Notice(signal=signal_name)
        if self.stage in {Stage.JOINING, Stage.STARTING}:
            self._end_attempt(failure.stopped(self._notice, f"stopped {self._notice.before_what}"))
        failures = self.attempt.failures()
        if self.stage is Stage.SETTLING and all(_is_due_to(self._notice, end) for end in failures):
            # The scheduler's signal reached those ranks before it reached this node.
            self.stage = Stage.RUNNING
            self.deadline = self._now.now + STOP_TOGETHER_S
        if self.stage is Stage.RUNNING:
            self._broadcast(messages.Pause(signal=self._notice.signal))

    def _act(self, found: list[messages.Dump | Hang | Verdict]) -> None:
        """Carry out what the hang watch returned."""
        for each in found:
            if isinstance(each, Verdict):
                self._end_attempt(each)
            elif isinstance(each, Hang):
                self._actions.append(each)
            else:
                self._broadcast(each)

    def _claim(self, failed: Verdict | None) -> None:
        self.stage, self.deadline = Stage.STARTING, None
        self._failed = failed
        self._actions.append(ClaimAttempt(failed))

    def _on_claimed(self, number: int | None, why_not: str | None) -> None:
        """Begin the attempt with its store; or end the run where no other may begin."""
        failed = self._failed
        if number is not None and self._agreement is not None:
            self.attempt = Attempt(self.terms, number, self.attempt.restarts + (failed is not None))
            self._broadcast(self.attempt.order_begin(self._agreement, self.facts))
        elif failed is not None:
            if why_not is not None:
                sentence = f"{failed.message}; it is not started again: {why_not}"
                failed = msgspec.structs.replace(failed, message=sentence)
            self._finish(failed)

    def _fail(self, kind: Kind, sentence: str, node: int, **fields: Any) -> None:
        if node in self.facts:
            fields["host"] = self.facts[node].host
        self._end_attempt(Verdict(kind=kind, message=sentence, node=node, **fields))

    def _end_attempt(self, verdict: Verdict | None) -> None:
        """End the ranks, for this verdict; None: it will follow from how they ended."""
        if verdict is not None:
            self.attempt.decided = self.attempt.numbered(verdict, self._now.unix_now)
        if self.stage in {Stage.ENDING, Stage.FINISHED}:
            return
        self.stage = Stage.ENDING
        order = self.attempt.order_end(self._notice)
        self.deadline = self._now.now + order.grace_s + _GONE_S
        self._broadcast(order)
        self._check_gone()

    def _check_gone(self) -> None:
        """With the last agent's Gone, claim the next attempt or end the run."""
        attempt, notice = self.attempt, self._notice
        if self.stage is not Stage.ENDING or not self.members() <= attempt.gone:
            return
        verdict = attempt.verdict(notice, self._now.unix_now)
        may_restart = not self._lost and attempt.may_restart(verdict)
        if self._cancelled is not None and (may_restart or _may_be_of_cancel(verdict)):
            self._finish(attempt.with_killed(self._cancelled))
        elif may_restart and notice is not None:
            sentence = f"stopped {notice.before_what}, after a failure: {verdict.message}"
            self._finish(attempt.numbered(failure.stopped(notice, sentence), self._now.unix_now))
        elif may_restart:
            self._claim(failed=verdict)
        else:
            self._finish(verdict)

    def _finish(self, verdict: Verdict | None) -> None:
        self.stage, self.deadline = Stage.FINISHED, None
        last = sorted(self.members() | {0})  # node 0's own agent may not have joined yet
        self._actions += [Finish(verdict), Send(last, messages.Close())]

    def _broadcast(self, message: ToAgent) -> None:
        if members := sorted(self.members()):
            self._actions.append(Send(members, message))


def _name_of(node: int, facts: Mapping[int, NodeFacts]) -> str:
    host = facts[node].host if node in facts else "unknown host"
    return f"node {node} (host {host})"


def _is_due_to(notice: failure.Notice | None, end: RankEnd) -> bool:
    """Return True where a rank stopped after a notice, or lost a peer that did: the others will
    stop by themselves."""
    return notice is not None and (
        failure.is_stop(end, notice) or (failure.is_failure(end) and failure.is_victim(end))
    )


def _may_be_of_cancel(verdict: Verdict) -> bool:
    """Return True where a cancellation that came later outweighs this verdict: the run has only
    stopped to go on later, or its first rank ended by the signal of the cancellation, or by the
    exit code that a shell makes of it."""
    first = verdict.first
    return verdict.exit_code_of_run == EXIT_STOPPED or (
        first is not None
        and (
            first.signal in {number.name for number in CANCEL_SIGNALS}
            or first.exit_code in {128 + number for number in CANCEL_SIGNALS}
        )
    )


def _heed_again(notice: failure.Notice, signal_name: str | None) -> failure.Notice:
    """Return the notice that holds after another warning, by a signal, or by our clock (None).

    SIGTERM after a different signal means that the notice is over, and the ranks are ended at once:
    the time until the scheduler's SIGKILL must do for the verdict. A signal replaces the notice of
    our clock. SIGINT, with which LSF begins a kill, replaces any: whoever kills a job that is about
    to be requeued wants it gone.
    """
    if notice.is_over or signal_name is None:
        return notice
    if notice.signal is None or signal_name == "SIGINT":
        return msgspec.structs.replace(notice, signal=signal_name)
    is_over = signal_name == "SIGTERM" != notice.signal
    return msgspec.structs.replace(notice, is_over=is_over)
