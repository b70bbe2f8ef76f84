"""The coordinator: leads the agents of a run through its attempts, and decides the verdict.

It lives in the agent of node 0 and is pure state: messages (agent/messages.py) and the passing of
time go in, messages to the agents come out through `send`, the verdict through `finish`. Node 0's
own agent is a member like the others.
"""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.agreement import (
    NodeFacts,
    RankChecks,
    agree,
    store_listens_on,
)
from hpcdist.agent.messages import HangReport, ToAgent, ToCoordinator
from hpcdist.agent.node import Agreement, DisagreementError, Meeting
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.hang import hang_verdict
from hpcdist.agent.outcome.quiet import QuietRun
from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.base.text import listed
from hpcdist.runs.verdict import Hang, Kind, RankEnd, Verdict

SETTLE_S = 0.2
"""After a first failure, how long others that failed at the same moment have to be heard."""

_GONE_S = 5.0
"""Beyond the grace, how long an agent may take to end its ranks before it counts as lost."""

_RESUME_S = 5.0
"""After a suspension, how long the others may take to hear that nobody is to blame for it."""

_DUMP_S = 5.0
"""Time that agents have to collect stacks from ranks that hang."""

STOP_TOGETHER_S = 60.0
"""Once a rank has stopped in good order, how long the others have to do so."""

CANCEL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a user, a terminal or a scheduler sends to end a run."""


class Stage(enum.Enum):
    """The stages of an attempt."""

    JOINING = "joining"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"
    DUMPING = "dumping"
    ENDING = "ending"
    FINISHED = "finished"


_AFTER_RUNNING = frozenset((Stage.SETTLING, Stage.ENDING, Stage.FINISHED))


@dataclass
class _Attempt:
    """The agents' messages about one attempt, gathered."""

    world_size: int
    checks: RankChecks
    ends: dict[int, RankEnd] = field(default_factory=dict)
    """By rank."""
    gone: set[int] = field(default_factory=set)
    """Nodes on which nothing of it is left."""
    hang_reports: dict[int, HangReport] = field(default_factory=dict)
    """By rank."""
    dumped: set[int] = field(default_factory=set)
    """Nodes that have sent their reports."""
    decided: Verdict | None = None
    """Made before the last rank has ended."""

    def failures(self) -> list[RankEnd]:
        return [end for end in self.ends.values() if failure.is_failure(end)]

    def is_explained(self) -> bool:
        if failures := self.failures():
            return not all(failure.is_victim(end) for end in failures)
        return len(self.ends) == self.world_size


@dataclass
class Coordinator:
    """The state of a run, from which its next stage and its verdict are decided."""

    num_nodes: int
    ranks_per_node: int
    max_restarts: int
    grace_s: float
    """Time that ranks have to end which handle the signal that asks them to."""
    most_grace_s: float
    """The same where the scheduler ends the job."""
    join_timeout_s: float
    backend: str
    """gloo, nccl, or auto: as the nodes' device wants it."""
    send: Callable[[int, ToAgent], None]
    """(node, message); must not fail: a lost agent is told by `on_lost`."""
    open_store: Callable[[str, str], None]
    """Ask for a fresh store that the ranks find at the first address, and that listens on the
    second, or on all of node 0's where that is empty; `on_store` is the answer."""
    claim_attempt: Callable[[], int]
    is_overtaken: Callable[[], bool]
    """Return True where a newer attempt has begun elsewhere."""
    note_restart: Callable[[Verdict], str | None]
    """Take why an attempt failed, before the next one starts; return why that cannot be noted: then
    none starts."""
    finish: Callable[[Verdict], None]
    now: Callable[[], float]
    """Return monotonic seconds."""
    unix_now: Callable[[], float]
    saves: bool = False
    """Ranks that stop have saved a checkpoint; of a script that is not known."""

    stage: Stage = Stage.JOINING
    attempt: int = 0
    restarts: int = 0
    deadline: float | None = None
    """When a stage ends of itself; None: only messages matter."""
    _told: _Attempt = field(init=False)
    _facts: dict[int, NodeFacts] = field(default_factory=dict)
    _agreement: Agreement | None = None
    _lost: set[int] = field(default_factory=set)
    _cancelled: Verdict | None = None
    """Came when the ranks were being ended for another reason."""
    _notice: failure.Notice | None = None
    _resumed_s: float = -math.inf
    note_hang: Callable[[Hang], None] = lambda _: None
    """Take what is said of an attempt that seems to hang, or that it does no more."""
    _end: messages.End | None = None
    """The last order to end ranks."""
    _quiet: QuietRun = field(init=False)
    _reached: dict[int, int] = field(default_factory=dict)
    """Last boundary between steps that a rank of each node has reached."""

    def __post_init__(self) -> None:
        """Start to wait for the agents."""
        self.deadline = self.now() + self.join_timeout_s
        self._forget_attempt()

    def members(self) -> set[int]:
        """Return the nodes whose agents have joined, and are not lost."""
        return set(self._facts) - self._lost

    def on_message(self, node: int, message: ToCoordinator) -> None:  # noqa: C901 - a table
        match message:
            case messages.Join():
                self._on_join(node, message.facts)
            case messages.Failed():
                if self._told.decided is None:
                    is_early = self.stage in {Stage.JOINING, Stage.STARTING}
                    sentence = f"node {node} (host {self._host(node)}): {message.sentence}"
                    self._fail("launch" if is_early else "agent_lost", sentence, node)
            case messages.LimitReached():
                if self.stage not in _AFTER_RUNNING:
                    sentence = f"the time limit of {message.limit_min:g} minutes was reached"
                    if self._notice is not None:
                        sentence += "; the ranks had been asked to stop, and did not"
                    self._fail("time_limit", sentence, node)
            case messages.Warned():
                self._on_warned(message.signal)
            case messages.Cancelled():
                verdict = self._numbered(failure.cancelled(message.signal))
                if self.stage in _AFTER_RUNNING:
                    self._cancelled = verdict
                else:
                    self._decide(verdict)
            case _ if message.attempt == self.attempt:  # not of one that is over
                self._on_news(node, message)

    def on_store(self, port: int | None, error: str | None) -> None:
        """Start the ranks at the store of the attempt, which listens; or end the run for the
        error."""
        if self.stage is not Stage.STARTING:
            return
        assert self._agreement is not None
        if port is None:
            self._fail("launch", f"no store: {error}", 0)
            return
        meeting = Meeting(
            **msgspec.structs.asdict(self._agreement),
            attempt=self.attempt,
            restart_count=self.restarts,
            master_port=port,
        )
        self.stage = Stage.RUNNING
        self.deadline = None
        self._broadcast(messages.Start(meeting=meeting))

    def on_lost(self, node: int, reason: str) -> None:
        """Note that a node's agent is gone; one that has not joined may come again."""
        if self.stage is Stage.FINISHED or node in self._lost or node not in self._facts:
            return
        self._lost.add(node)
        if self._told.decided is None and not self._told.is_explained():
            sentence = f"the agent of node {node} (host {self._host(node)}) was lost: {reason}"
            if self._notice is not None and self._notice.signal == "SIGINT":
                # LSF's kill reaches the agents of other hosts too, in an order of its own.
                self._decide(failure.stopped(self._notice, f"stopped by SIGINT; {sentence}"))
            else:
                self._fail("agent_lost", sentence, node)
        self._check_gone()

    def on_unreachable(
        self, node: int, host: str, sentence: str, *, is_host_lost: bool = False
    ) -> None:
        """End the run for a node on which no agent will start; another start may do without the
        host where that is lost. Of an agent that was there, its connection tells."""
        if self.stage is Stage.JOINING and node not in self._facts:
            sentence = f"node {node} (host {host}): {sentence}"
            verdict = failure.without_rank("launch", sentence, node=node, host=host)
            self._decide(msgspec.structs.replace(verdict, try_elsewhere=is_host_lost))

    def on_concluded(self) -> None:
        """Let all go: somebody who could not take part has given the run its verdict."""
        self.stage = Stage.FINISHED
        self.deadline = None
        self._broadcast(messages.Close())

    def on_standstill(self) -> None:
        """Forgive silence: node 0 was suspended, and the others' ranks had to wait for its own."""
        self._resumed_s = self.now()
        self._broadcast(messages.Forgive())

    def next_deadline(self) -> float:
        """Return the time, by the monotonic clock, at which `on_time` must be called next."""
        own = math.inf if self.deadline is None else self.deadline
        return min(own, self._quiet.deadline) if self.stage is Stage.RUNNING else own

    def on_time(self) -> None:
        if self.stage is Stage.RUNNING:
            self._quiet.on_time()
        if self.deadline is None or self.now() < self.deadline:
            return
        self.deadline = None
        if self.stage is Stage.JOINING:
            missing = [node for node in range(self.num_nodes) if node not in self._facts]
            who = f"the agents of {listed(missing, 'node')}"
            sentence = f"{who} did not join within {self.join_timeout_s:g} s"
            self._fail("launch", sentence, missing[0])
        elif self.stage in {Stage.RUNNING, Stage.SETTLING}:
            self._end_ranks()
        elif self.stage is Stage.DUMPING:
            self._decide_hang()
        elif self.stage is Stage.ENDING:
            for node in self.members() - self._told.gone:
                self.on_lost(node, "it did not end its ranks in time")

    # Messages.

    def _on_join(self, node: int, facts: NodeFacts) -> None:
        if self.stage is not Stage.JOINING:  # the run was over before all were there
            self.send(node, messages.Close())
            return
        self._facts[node] = facts
        if len(self._facts) < self.num_nodes:
            return
        try:
            self._agreement = agree(self._facts, self.backend)
        except DisagreementError as error:
            self._fail("launch", str(error), node)
        else:
            self._start_attempt()

    def _on_news(self, node: int, message: messages.OfAttempt) -> None:  # noqa: C901 - a table
        """Take a message about the attempt that there is; what comes too late says nothing."""
        told = self._told
        match message:
            case messages.Checked() if self.stage is Stage.RUNNING:
                if (sentence := told.checks.add(message.check)) is not None:
                    self._fail("launch", sentence, node)
            case messages.Ended() if self.stage is not Stage.FINISHED:
                self._on_ended(message.end)
            case messages.Gone() if self.stage is Stage.ENDING:
                told.gone.add(node)
                self._check_gone()
            case messages.Silent() if self.stage is Stage.RUNNING:
                if self.now() - self._resumed_s < _RESUME_S:
                    return  # said before, or before the word of it had come
                self.stage = Stage.DUMPING
                self.deadline = self.now() + _DUMP_S
                self._broadcast(messages.Dump(attempt=self.attempt))
            case messages.Quiet() | messages.Stacks() if self.stage is Stage.RUNNING:
                self._quiet.on_message(node, message, self.members(), told.ends)
            case messages.Stacks() if self.stage is Stage.DUMPING:
                told.hang_reports |= {report.end.rank: report for report in message.reports}
                told.dumped.add(node)
                if told.dumped >= self.members():
                    self._decide_hang()
            case messages.Reached():
                self._reached[node] = message.boundary
                if self._reached.keys() >= self.members():
                    self._broadcast(messages.StopAt(boundary=max(self._reached.values()) + 1))

    def _on_ended(self, end: RankEnd) -> None:
        self._told.ends[end.rank] = end
        if self.stage is Stage.ENDING and self.deadline is not None:
            # Its agent closes one rank's files after the other, on whatever file system.
            self.deadline = max(self.deadline, self.now() + _GONE_S)
        if self.stage is not Stage.RUNNING:
            return
        if self._is_awaited(end):
            self.deadline = self.deadline or self.now() + STOP_TOGETHER_S
        elif failure.is_failure(end):
            self.stage = Stage.SETTLING
            self.deadline = self.now() + SETTLE_S
        if len(self._told.ends) == self._told.world_size:
            self._end_ranks()

    def _on_warned(self, signal_name: str | None) -> None:
        """Stop the ranks at the next step, and start none any more: the job will be ended soon."""
        if self._notice is not None:
            self._heed_again(self._notice, signal_name)
            return
        self._notice = failure.Notice(signal=signal_name)
        if self.stage in {Stage.JOINING, Stage.STARTING}:
            sentence = f"stopped {self._notice.before_what}"
            self._decide(failure.stopped(self._notice, sentence))
        elif self.stage is Stage.RUNNING:
            self._broadcast(messages.Pause(signal=self._notice.signal))
        elif self.stage is Stage.SETTLING and all(map(self._is_awaited, self._told.failures())):
            # Their agent's notice came sooner than this one.
            self.stage = Stage.RUNNING
            self.deadline = self.now() + STOP_TOGETHER_S
            self._broadcast(messages.Pause(signal=self._notice.signal))

    def _heed_again(self, notice: failure.Notice, signal_name: str | None) -> None:
        """SIGTERM after another warning leaves only the time until the scheduler's SIGKILL, which
        must do for the verdict: the ranks are ended at once.

        The scheduler's word counts more than our clock; and SIGINT, with which LSF begins a kill,
        more than the time limit: who kills a job that is about to be requeued wants it gone.
        """
        if notice.is_over or signal_name is None:
            return
        if notice.signal is None or signal_name == "SIGINT":
            self._notice = msgspec.structs.replace(notice, signal=signal_name)
        elif signal_name == "SIGTERM" and notice.signal != "SIGTERM":
            self._notice = msgspec.structs.replace(notice, is_over=True)
            self._end_ranks()

    # Stages.

    def _forget_attempt(self) -> None:
        world_size = self.num_nodes * self.ranks_per_node
        self._told = _Attempt(world_size, RankChecks(world_size))
        self._quiet = QuietRun(
            attempt=self.attempt,
            world_size=world_size,
            now=self.now,
            unix_now=self.unix_now,
            ask=lambda: self._broadcast(messages.Dump(attempt=self.attempt)),
            note=self.note_hang,
        )

    def _start_attempt(self) -> None:
        assert self._agreement is not None
        self.stage = Stage.STARTING
        self.deadline = None
        self.attempt = self.claim_attempt()
        self._forget_attempt()
        self._broadcast(messages.Begin(attempt=self.attempt))
        address = self._agreement.master_addr
        self.open_store(address, store_listens_on(self._facts, address))

    def _end_ranks(self) -> None:
        if self.stage in {Stage.ENDING, Stage.FINISHED}:
            return
        self.stage = Stage.ENDING
        number, grace_s = signal.SIGTERM, self.grace_s
        decided, notice = self._told.decided, self._notice
        is_cancelled = decided is not None and decided.kind == "cancelled"
        if is_cancelled or (notice and (notice.is_over or notice.signal == "SIGTERM")):
            grace_s = min(grace_s, self.most_grace_s)
        if decided is not None and is_cancelled:
            number = next((one for one in CANCEL_SIGNALS if one.name == decided.signal), number)
        self._end = messages.End(attempt=self.attempt, signal=number, grace_s=grace_s)
        self.deadline = self.now() + grace_s + _GONE_S
        self._broadcast(self._end)
        self._check_gone()

    def _decide(self, verdict: Verdict) -> None:
        self._told.decided = self._numbered(verdict)
        self._end_ranks()

    def _fail(self, kind: Kind, sentence: str, node: int) -> None:
        host = self._facts[node].host if node in self._facts else None
        self._decide(failure.without_rank(kind, sentence, node=node, host=host))

    def _decide_hang(self) -> None:
        told = self._told
        reports = [r for r in told.hang_reports.values() if r.end.rank not in told.ends]
        if told.is_explained():
            self._end_ranks()
        elif reports:
            self._decide(hang_verdict(reports, told.world_size, told.ends))
        else:
            mute = sorted(self.members() - told.dumped or self.members())
            nodes = listed(mute, "node")
            sentence = f"the run hangs, and the agents of {nodes} did not say where"
            self._fail("hang", sentence, mute[0])

    def _check_gone(self) -> None:
        """With the last agent's Gone, start the next attempt or end the run."""
        if self.stage is not Stage.ENDING or not self.members() <= self._told.gone:
            return
        verdict = self._told.decided or self._numbered(
            failure.decide(
                [end for _, end in sorted(self._told.ends.items())],
                notice=self._notice,
                saves=self.saves,
                restarts=self.restarts,
            )
        )
        verdict = self._with_killed(verdict)
        if self._cancelled is not None and (
            self._may_restart(verdict)
            or verdict.exit_code_of_run == EXIT_STOPPED
            or verdict.signal in {number.name for number in CANCEL_SIGNALS}
            or verdict.exit_code in {128 + number for number in CANCEL_SIGNALS}
        ):
            # The user wants no other attempt, be it of a run that has just stopped to go on later,
            # or the signal that ended a rank was for all; a shell makes an exit code of it.
            verdict = self._with_killed(self._cancelled)
        elif self._may_restart(verdict):
            if self._notice is not None:
                sentence = f"stopped {self._notice.before_what}, after a failure: {verdict.message}"
                verdict = self._numbered(failure.stopped(self._notice, sentence))
            elif (reason := self.note_restart(verdict)) is None:
                self.restarts += 1
                self._start_attempt()
                return
            else:
                sentence = f"{verdict.message}; it is not started again: {reason}"
                verdict = msgspec.structs.replace(verdict, message=sentence)
        self.stage = Stage.FINISHED
        self.deadline = None
        self._broadcast(messages.Close())
        self.finish(verdict)

    def _with_killed(self, verdict: Verdict) -> Verdict:
        """Return a verdict that names the ranks that had time to end, and did not."""
        assert self._end is not None
        killed = sorted(end.rank for end in self._told.ends.values() if end.outlasted)
        if not killed:
            return verdict
        sentence = (
            f"{listed(killed)} had not ended {self._end.grace_s:g} s after "
            f"{signal.Signals(self._end.signal).name}, and had to be killed"
        )
        return msgspec.structs.replace(verdict, message=f"{verdict.message}; {sentence}")

    def _numbered(self, verdict: Verdict) -> Verdict:
        return failure.numbered(
            verdict, attempt=self.attempt, restarts=self.restarts, time_s=self.unix_now()
        )

    def _is_awaited(self, end: RankEnd) -> bool:
        """Return True where, after a notice, the rank stopped, or lost one that did: the others
        need not be ended."""
        return self._notice is not None and (
            failure.is_stop(end, self._notice)
            or (failure.is_failure(end) and failure.is_victim(end))
        )

    def _may_restart(self, verdict: Verdict) -> bool:
        return (
            verdict.state == "failed"
            and verdict.kind not in {"launch", "agent_lost", "time_limit"}
            and not self._lost
            and self.restarts < self.max_restarts
            and not self.is_overtaken()  # a newer claim would take the run from its leader
        )

    def _host(self, node: int) -> str:
        return self._facts[node].host if node in self._facts else "unknown host"

    def _broadcast(self, message: ToAgent) -> None:
        for node in sorted(self.members()):
            self.send(node, message)
