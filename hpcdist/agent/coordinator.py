"""The coordinator: leads the agents of a run through its attempts, and decides the verdict.

It is pure state: `decide` takes one event and the time, and returns what follows from it. The
leader (agent/leader.py) carries that out; where it can fail, the outcome is another event. Node 0's
own agent is a member like the others.
"""

from __future__ import annotations

import enum
import math
import signal
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from hpcdist.agent import messages, preflight
from hpcdist.agent.messages import ToAgent, ToLeader
from hpcdist.agent.node import CannotLaunchError, NodeFacts, OwnNode, RankMeeting, agree
from hpcdist.agent.outcome import failure, words
from hpcdist.agent.outcome.hang import HangWatch, limits_of
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.base.text import listed
from hpcdist.job.spec import TrainJob, warning_before_s
from hpcdist.runs.verdict import Hang, Kind, RankEnd, Verdict
from hpcdist.schedulers.notes import Note

SETTLE_S = 0.1
"""After a rank has failed by itself, how long others that fail at the same moment have to be heard:
one that failed before it is heard of later, too, by the time of its end."""
CAUSE_S = 0.2
"""After a failure that was only the consequence of another, how long that has to be heard."""

_GONE_S = 5.0
"""Beyond the grace, how long an agent may take to end its ranks before it counts as lost."""

STOP_TOGETHER_S = 60.0
"""Once a rank has stopped in good order, how long the others have to do so."""

REJOIN_S = 15.0
"""Beyond the grace, how long the next leader waits for the others where one is lost."""

STANDSTILL_S = 10.0
"""Agents look twice a second: one that has not for so long was suspended, with its ranks."""

CANCEL_SIGNALS = {one.name: one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
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
    failed: Verdict | None
    """That verdict, of ClaimAttempt; None at the first attempt."""


class Legacy(NamedTuple):
    """The state that a leader takes over from the one that is lost."""

    failed: Verdict
    """The verdict on the attempt that has lost it."""
    meeting: RankMeeting
    """The ranks' meeting in that attempt."""
    rest: list[int]
    """Its other nodes."""
    num_losses: int
    """Attempts before it that lost a node."""


class Send(NamedTuple):
    """Action: send a message to the agents of these nodes."""

    nodes: list[int]
    message: ToAgent


class ClaimAttempt(NamedTuple):
    """Action: take the next attempt number; Claimed is the answer."""

    failed: Verdict | None = None
    """The verdict on the attempt before, to be noted first."""


Event = Heard | Lost | Note | Claimed | None
"""None: time has passed; due twice a second, and at `Coordinator.deadline`."""
Action = Send | ClaimAttempt | Hang | Verdict
"""A Hang is to be noted: an attempt seems to hang, or no longer does; a Verdict ends the run."""


@dataclass
class Attempt:
    """One attempt: what its agents have told of it, and what was decided on it."""

    node: OwnNode
    most_grace_s: float
    """Limit of `launch.grace_s` where the scheduler ends the job."""
    nodes: tuple[int, ...] = ()
    """The nodes that take part."""
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
            nodes=self.nodes,
            world_size=self.world_size,
            timeout_s=limits_of(self.node.job)[1],
            ends=self.ends,
        )

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.node.job.ranks_per_node

    def failures(self) -> list[RankEnd]:
        return [end for end in self.ends.values() if failure.is_failure(end)]

    def is_explained(self, lost: int) -> bool:
        """Return True where the ends so far explain the failure, so that the loss of this node's
        agent is a consequence. A SIGKILL of its ranks, other than for their memory, explains
        nothing: what killed them killed the agent, too."""
        if failures := self.failures():
            return not all(
                failure.is_victim(end)
                or (end.node == lost and end.signal == "SIGKILL" and not end.report.out_of_memory)
                for end in failures
            )
        return len(self.ends) == self.world_size

    def order_end(self, notice: failure.Notice | None) -> messages.End:
        """Return the order to end its ranks, and keep it."""
        number, grace_s, decided = signal.SIGTERM, self.node.job.launch.grace_s, self.decided
        is_cancel = decided is not None and decided.kind == "cancelled"
        if is_cancel or (notice and (notice.is_over or notice.signal == "SIGTERM")):
            grace_s = min(grace_s, self.most_grace_s)
        if decided is not None and is_cancel:
            number = CANCEL_SIGNALS.get(str(decided.signal), number)
        self.end_order = messages.End(attempt=self.number, signal=number, grace_s=grace_s)
        return self.end_order

    def numbered(self, verdict: Verdict, time_s: float) -> Verdict:
        return failure.numbered(verdict, attempt=self.number, restarts=self.restarts, time_s=time_s)

    def verdict(self, notice: failure.Notice | None, time_s: float) -> Verdict:
        """Return the verdict on the attempt, once nothing of it is left."""
        ends = [end for _, end in sorted(self.ends.items())]
        saves = "checkpoint" in self.node.job.__struct_fields__  # of scripts it is not known
        verdict = self.decided or failure.decide(
            ends, notice=notice, saves=saves, restarts=self.restarts
        )
        if self.end_order is not None and (killed := [end.rank for end in ends if end.outlasted]):
            after = (
                f"{self.end_order.grace_s:g} s after {signal.Signals(self.end_order.signal).name}"
            )
            sentence = f"{listed(killed)} had not ended {after}, and had to be killed"
            verdict = words.add(verdict, sentence)
        return self.numbered(verdict, time_s)


class Coordinator:
    """The state of a run, from which its next stage and its verdict are decided."""

    def __init__(
        self, node: OwnNode, most_grace_s: float, now: Now, legacy: Legacy | None = None
    ) -> None:
        job, plan, begin_s = node.job, node.plan, node.now_s - node.place.age_s
        enforced_min = job.resources.time_limit_min if plan.enforces_limits else None
        self._limit_min = enforced_min or plan.limit_min
        limit_at = begin_s + 60 * (self._limit_min or math.inf)
        self._warn_at = limit_at - warning_before_s(job.launch, self._limit_min)
        self._limit_at = limit_at if enforced_min else math.inf  # else the scheduler keeps it
        self.node = node
        self.stage = Stage.JOINING
        self.deadline: float | None = now.now + job.launch.join_timeout_s
        """When the stage ends by itself; None: only messages end it."""
        self._now = now
        self._actions: list[Action] = []
        self.members: dict[int, NodeFacts] = {}
        """By node; of those whose agents have joined, and are not lost."""
        self._meeting = RankMeeting()
        """The meeting of the ranks, once all nodes agree."""
        self._checked: dict[int, preflight.Figures] = {}
        """By node, what the preflight has measured."""
        self._is_fit = not job.launch.preflight
        self._notice: failure.Notice | None = None
        """The job will be ended soon."""
        self._cancelled: Verdict | None = None
        """The user cancelled while the ranks were being ended for another reason."""
        self._num_losses = 0
        """Attempts that ended because a node was lost, and that others followed."""
        self._smaller = self._next_smaller = ""
        """Number of nodes of this attempt and the next one, and since when, where some are lost."""
        self._regrow_at = math.inf
        """When the job is to be started again with all nodes."""
        self._is_elastic = isinstance(job, TrainJob)
        """The ranks can go on in another number: code of the user's own says so."""
        self.attempt = Attempt(node, most_grace_s, tuple(range(node.num_nodes)))
        self._expected = set(range(node.num_nodes))
        self._legacy = legacy
        if legacy is not None:
            before = legacy.meeting
            self._expected, self._num_losses = set(legacy.rest), legacy.num_losses
            self._is_elastic, self._meeting, self._is_fit = True, before, True
            restarts = before.restart_count
            self.attempt = Attempt(node, most_grace_s, before.nodes, before.attempt, restarts)
            self.deadline = now.now + job.launch.grace_s + REJOIN_S

    def decide(self, event: Event, now: Now) -> list[Action]:
        """Take an event; return what is to be done because of it, in this order."""
        if now.now - self._now.now > STANDSTILL_S:  # the others' ranks had to wait for node 0's
            self.attempt.hang_watch.forgive(now.now)
        self._now, self._actions = now, []
        match event:
            case Heard() if self._counts(event):
                self._on_message(event.node, event.message)
            case Lost():
                self._on_lost(event.node, event.reason)
            case Note() if self.stage is Stage.JOINING and event.node in self._missing:
                name, elsewhere = f"node {event.node} (host {event.host})", event.is_host_lost
                sentence = f"{name}: no agent could be started there: {event.said}"
                self._fail("launch", sentence, event.node, host=event.host, try_elsewhere=elsewhere)
            case Claimed() if self.stage is Stage.STARTING:
                self._on_claimed(event)
            case None:
                self._on_time()
        return self._actions

    @property
    def _missing(self) -> set[int]:
        """Nodes that have not joined, and whose launcher may say why."""
        return set() if self._legacy is not None else self._expected - self.members.keys()

    def _counts(self, event: Heard) -> bool:
        """Return False for what a node says that the run goes on without."""
        is_member = event.node in self.members or self.stage is Stage.JOINING
        return is_member or isinstance(event.message, messages.Join)

    def _on_message(self, node: int, message: ToLeader) -> None:
        match message:
            case messages.Join():
                self._on_join(node, message.facts)
            case messages.StoreOpened() if self.stage is Stage.STARTING:
                self._meeting = replace(self._meeting, master_port=message.port)
                self._start()
            case messages.Failed() if self.attempt.decided is None:
                is_early = self.stage in {Stage.JOINING, Stage.STARTING}
                name = self.members[node].name if node in self.members else f"node {node}"
                sentence = f"{name}: {message.sentence}"
                self._fail("launch" if is_early else "agent_lost", sentence, node)
            case messages.Signalled(name, is_cancel=False):
                self._on_warned(name)
            case messages.Signalled(name) if self.stage in _AFTER_RUNNING:
                self._cancelled = failure.cancelled(name, time_s=self._now.unix_now)
            case messages.Signalled(name):
                self._end_attempt(failure.cancelled(name))
            case messages.OfAttempt() if message.attempt == self.attempt.number:
                self._on_news(node, message)

    def _on_news(self, node: int, message: messages.AnyOfAttempt) -> None:
        """Take a message about the current attempt; others come too late."""
        attempt, now = self.attempt, self._now._asdict()
        match message:
            case messages.Ended() if self.stage is not Stage.FINISHED:
                self._on_ended(message.end)
            case messages.Gone() if self.stage is Stage.ENDING:
                attempt.gone.add(node)
                self._check_gone()
            case messages.Quiet() if self.stage is Stage.RUNNING:
                self._carry_out(attempt.hang_watch.on_quiet(node, message.quiet_s, **now))
            case messages.Stacks() if self.stage is Stage.RUNNING:
                self._carry_out(attempt.hang_watch.on_reports(node, message.reports, **now))
            case messages.Checked() if self.stage is Stage.STARTING:
                self._checked.setdefault(node, message.figures)
                if self._checked.keys() >= self.members.keys():
                    self._end_preflight()
            case messages.Reached():
                attempt.reached[node] = message.boundary
                if attempt.reached.keys() >= self.members.keys():
                    self._broadcast(messages.Pause(stop_at=max(attempt.reached.values()) + 1))

    def _on_join(self, node: int, facts: NodeFacts) -> None:
        if self.stage is not Stage.JOINING:  # the run was over before all were there
            self._actions.append(Send([node], messages.Close()))
            return
        self.members[node] = facts
        if self.members.keys() >= self._expected:
            self._meet(node)

    def _meet(self, last: int) -> None:
        """Have those that have joined begin, after the node that has joined last."""
        backend, own, legacy = self.node.plan.backend, self.node.place.node_rank, self._legacy
        num_lost = 0 if legacy is None else self.node.num_nodes - len(self.members)
        try:
            self._meeting = agree(self.members, backend, leader=own, num_lost=num_lost)
        except CannotLaunchError as error:
            self._fail("launch", str(error), last)
        else:
            if legacy is not None:
                self._take_over(legacy)
                return
            self.stage, self.deadline = Stage.STARTING, None
            self._actions.append(ClaimAttempt())

    def _take_over(self, legacy: Legacy) -> None:
        """Go on with those that have joined from the leader that is lost, where they are enough."""
        verdict, may_restart = self._judge(self.attempt.numbered(legacy.failed, self._now.unix_now))
        if may_restart:
            self.stage, self.deadline = Stage.STARTING, None
            self._actions.append(ClaimAttempt(verdict))
        else:
            self._finish(verdict)

    def _on_claimed(self, claimed: Claimed) -> None:
        """Begin the attempt with its store; or end the run where no other may begin."""
        failed, number, before = claimed.failed, claimed.attempt, self.attempt
        if number is not None:
            restarts = before.restarts + (failed is not None)
            nodes = tuple(sorted(self.members))
            self.attempt = Attempt(self.node, before.most_grace_s, nodes, number, restarts)
            meeting = {"attempt": number, "restart_count": restarts, "nodes": nodes}
            self._meeting = replace(self._meeting, **meeting)
            self._smaller = self._next_smaller
            if self._smaller and self._regrow_at == math.inf:
                after_min = self.node.job.launch.regrow_after or math.inf
                self._regrow_at = self._now.now + 60 * after_min
            if lost := sorted({*before.nodes} - self.members.keys()):
                self._actions.append(Send(lost, messages.Close()))  # one may live, and be slow
            port_range = self.node.job.launch.port_range
            self._broadcast(messages.Begin(meeting=self._meeting, port_range=port_range))
        elif failed is not None:
            message = failed.message.replace(f"; {words.GOES_ON_WITH}{self._next_smaller}", "", 1)
            self._finish(replace(failed, message=message, num_nodes_left=None))

    def _start(self) -> None:
        """Start the ranks; or, once in a life, the preflight before them."""
        self.stage, self._checked = Stage.RUNNING if self._is_fit else Stage.STARTING, {}
        self.deadline = None if self._is_fit else self._now.now + preflight.LIMIT_S
        self._broadcast(messages.Start(meeting=self._meeting, is_preflight=not self._is_fit))

    def _end_preflight(self) -> None:
        """Start the ranks; or end the attempt, and go on without the nodes that are not fit."""
        verdict, unfit = preflight.judge(self._checked, self.members)
        if verdict is None:
            self._is_fit = True
            self._start()
            return
        is_led = self.node.place.node_rank not in unfit
        if unfit and is_led and self._may_shrink_to(len(self.members) - len(unfit)):
            self._is_fit = True
            self._actions.append(Send(sorted(unfit), messages.Close()))
            for node in unfit:
                del self.members[node]
        self._end_attempt(verdict)

    def _may_shrink_to(self, num_nodes: int) -> bool:
        """Return whether the run may go on with so many nodes, of which the leader's is one."""
        least, is_led = self.node.job.launch.min_nodes, self.node.place.node_rank in self.members
        is_enough = least is not None and num_nodes >= least
        return is_led and is_enough and self._is_elastic and self._meeting.nodes != ()

    def _on_lost(self, node: int, reason: str) -> None:
        if self.stage is Stage.FINISHED or (facts := self.members.pop(node, None)) is None:
            return
        if self.stage is Stage.JOINING and self._legacy is not None:
            self._expected.discard(node)
            if self.members.keys() >= self._expected:
                self._meet(node)
            return
        if self.attempt.decided is None and not self.attempt.is_explained(node):
            sentence = f"the agent of {facts.name} was lost: {reason}"
            self._fail("agent_lost", sentence, node, host=facts.host)
        self._check_gone()

    def _on_time(self) -> None:
        now = self._now.now
        if now >= self._warn_at and self._notice is None:
            self._on_warned(None)
        if now >= self._regrow_at and self._notice is None and self.stage is Stage.RUNNING:
            self._notice = failure.Notice(regrows=True)
            self._broadcast(messages.Pause())
        if now >= self._limit_at and self.stage not in _AFTER_RUNNING:
            asked = "; the ranks had been asked to stop, and did not" if self._notice else ""
            sentence = f"the time limit of {self._limit_min:g} minutes was reached{asked}"
            self._fail("time_limit", sentence, self.node.place.node_rank)
        if self.stage is Stage.RUNNING:
            self._carry_out(self.attempt.hang_watch.on_time(now=now))
        if self.deadline is None or now < self.deadline:
            return
        self.deadline = None
        if self.stage is Stage.JOINING and self._legacy is not None:
            self._meet(self.node.place.node_rank)
        elif self.stage is Stage.JOINING:
            missing = sorted(set(range(self.node.num_nodes)) - self.members.keys())
            sentence = f"the agents of {listed(missing, 'node')} did not join within "
            sentence += f"{self.node.job.launch.join_timeout_s:g} s"
            self._fail("launch", sentence, missing[0])
        elif self.stage is Stage.STARTING:
            self._end_preflight()
        elif self.stage in {Stage.RUNNING, Stage.SETTLING}:
            self._end_attempt(None)
        elif self.stage is Stage.ENDING:
            for node in self.members.keys() - self.attempt.gone:
                self._on_lost(node, "it did not end its ranks in time")

    def _carry_out(self, found: list[messages.Dump | Hang | Verdict]) -> None:
        """Carry out what the hang watch returned."""
        for each in found:
            if isinstance(each, Verdict):
                self._end_attempt(each)
            elif isinstance(each, Hang):
                self._actions.append(each)
            else:
                self._broadcast(each)

    def _on_ended(self, end: RankEnd) -> None:
        self.attempt.ends[end.rank] = end
        if self.stage is Stage.ENDING and self.deadline is not None:
            # Its agent closes one rank's files after the other, on whatever file system.
            self.deadline = max(self.deadline, self._now.now + _GONE_S)
        if self.stage not in {Stage.RUNNING, Stage.SETTLING}:
            return
        if self.stage is Stage.RUNNING and _is_due_to(self._notice, end):
            self.deadline = self.deadline or self._now.now + STOP_TOGETHER_S
        elif failure.is_failure(end):
            due = self._now.now + (CAUSE_S if failure.is_victim(end) else SETTLE_S)
            if self.stage is Stage.SETTLING and self.deadline is not None:
                due = min(due, self.deadline)
            self.stage, self.deadline = Stage.SETTLING, due
        if len(self.attempt.ends) == self.attempt.world_size:
            self._end_attempt(None)

    def _on_warned(self, signal_name: str | None) -> None:
        """Stop the ranks at the next step, and start no more: the job will be ended soon, as a
        signal says, or our clock (None)."""
        before, failures = self._notice, self.attempt.failures()
        if before is None:
            notice = self._notice = failure.Notice(signal=signal_name)
            if self.stage in {Stage.JOINING, Stage.STARTING}:
                self._end_attempt(failure.stopped(notice, f"stopped {notice.before_what}"))
            elif self.stage is Stage.SETTLING and all(_is_due_to(notice, end) for end in failures):
                # The scheduler's signal reached those ranks before it reached this node.
                self.stage, self.deadline = Stage.RUNNING, self._now.now + STOP_TOGETHER_S
            if self.stage is Stage.RUNNING:
                self._broadcast(messages.Pause(signal=signal_name))
        elif before.is_over or signal_name is None:
            return
        elif before.signal is None or signal_name == "SIGINT":
            # A signal replaces the notice of our clock; SIGINT, with which LSF begins a kill,
            # replaces any: whoever kills a job that is about to be requeued wants it gone.
            self._notice = replace(before, signal=signal_name)
        elif signal_name == "SIGTERM" != before.signal:
            # The time until the scheduler's SIGKILL must do for the verdict.
            self._notice = replace(before, is_over=True)
            self._end_attempt(None)

    def _fail(self, kind: Kind, sentence: str, node: int, **fields: Any) -> None:
        if node in self.members:
            fields["host"] = self.members[node].host
        self._end_attempt(Verdict(kind=kind, message=sentence, node=node, **fields))

    def _end_attempt(self, verdict: Verdict | None) -> None:
        """End the ranks, for this verdict; None: it will follow from how they ended."""
        if verdict is not None:
            self.attempt.decided = self.attempt.numbered(verdict, self._now.unix_now)
        if self.stage in {Stage.ENDING, Stage.FINISHED}:
            return
        order = self.attempt.order_end(self._notice)
        self.stage, self.deadline = Stage.ENDING, self._now.now + order.grace_s + _GONE_S
        self._broadcast(order)
        self._check_gone()

    def _check_gone(self) -> None:
        """With the last agent's Gone, claim the next attempt or end the run."""
        attempt, notice = self.attempt, self._notice
        if self.stage is not Stage.ENDING or not self.members.keys() <= attempt.gone:
            return
        verdict = attempt.verdict(notice, self._now.unix_now)
        if verdict.kind == "agent_lost" and notice is not None and notice.kind == "preempted":
            # The kill of a job ends the agents of other hosts, too, some before node 0 hears of it.
            sentence = f"stopped {notice.before_what}; {verdict.message}"
            verdict = attempt.numbered(failure.stopped(notice, sentence), self._now.unix_now)
        verdict, may_restart = self._judge(verdict)
        # The signal of a cancellation may have reached the ranks before it reached this node.
        may_be_cancelled = verdict.first is not None and verdict.first.signal in CANCEL_SIGNALS
        would_go_on = may_restart or verdict.exit_code_of_run == EXIT_STOPPED
        if self._cancelled is not None and (would_go_on or may_be_cancelled):
            self._finish(self._cancelled)
        elif may_restart and notice is not None:
            sentence = f"stopped {notice.before_what}, after a failure: {verdict.message}"
            self._finish(failure.stopped(notice, sentence))
        elif may_restart:
            self.stage, self.deadline = Stage.STARTING, None
            self._actions.append(ClaimAttempt(verdict))
        else:
            self._finish(verdict)

    def _judge(self, verdict: Verdict) -> tuple[Verdict, bool]:
        """Return whether another attempt may follow this verdict, with the nodes that are left, and
        the verdict with their number where they are fewer."""
        launch, attempt, left = self.node.job.launch, self.attempt, len(self.members)
        has_lost = left < len(attempt.nodes)
        self._is_elastic = self._is_elastic or any(end.elastic for end in attempt.ends.values())
        is_of_node = verdict.kind == "agent_lost" or bool(verdict.left_out)
        is_loss = has_lost and is_of_node and verdict.node not in self.members
        num_failures = attempt.restarts - self._num_losses
        is_wanted = is_loss or (verdict.blames_ranks and num_failures < launch.max_restarts)
        can_begin = not has_lost or self._may_shrink_to(left)
        if verdict.state != "failed" or not is_wanted or not can_begin:
            return verdict, False
        self._num_losses += is_loss
        if has_lost:
            size = words.size(left, self.node.num_nodes, self._now.unix_now)
            verdict = replace(words.add(verdict, words.GOES_ON_WITH + size), num_nodes_left=left)
            self._next_smaller = size
        return verdict, True

    def _finish(self, verdict: Verdict) -> None:
        if self._smaller:
            verdict = words.add(verdict, f"it went on with {self._smaller}")
        if self._legacy is not None and self.attempt.number == self._legacy.meeting.attempt:
            self.attempt.number += 1  # which is claimed
        self.stage, self.deadline = Stage.FINISHED, None
        # The leader's own agent may not have joined yet.
        last = sorted({self.node.place.node_rank, *self.members})
        verdict = self.attempt.numbered(verdict, self._now.unix_now)
        self._actions += [verdict, Send(last, messages.Close())]

    def _broadcast(self, message: ToAgent) -> None:
        self._actions.append(Send(sorted(self.members), message))


def _is_due_to(notice: failure.Notice | None, end: RankEnd) -> bool:
    """Return True where a rank stopped after a notice, or lost a peer that did: the others will
    stop by themselves."""
    return notice is not None and (
        failure.is_stop(end, notice) or (failure.is_failure(end) and failure.is_victim(end))
    )
