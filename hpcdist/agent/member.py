"""A node's part in its run, while that lasts: a loop around one `select`.

It carries out the coordinator's orders with its ranks, and tells the coordinator what it sees. Two
other threads of an agent send its heartbeats (agent/liveness.py), and sample what the ranks use
(agent/sampler.py).
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.follower import Follower, NotReachedError, OvertakenError
from hpcdist.agent.joining import Joining
from hpcdist.agent.liveness import Heart
from hpcdist.agent.local_ranks import LocalRanks
from hpcdist.agent.meeting import Leader
from hpcdist.agent.messages import (
    Beat,
    Cancelled,
    LimitReached,
    ToAgent,
    ToLeader,
    Warned,
)
from hpcdist.agent.node import (
    DisagreementError,
    Meeting,
    OwnFile,
    OwnNode,
    note_on_device,
    rank_orders,
)
from hpcdist.agent.notices import Notices
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.agent.sampler import UsageSampler, share_of
from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.machine.network import NoSuchInterfaceError
from hpcdist.machine.ports import NoFreePortError
from hpcdist.machine.process import use_all_descriptors
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Notes

_TICK_S = 0.5
_LOOK_S = 1.0
_LOOK_AT_WORK_S = 5.0
"""Between two looks of an agent at what others may write into the run's directory; the second once
all agents have joined: then it only matters where a scheduler does not pass on a cancellation."""
UNFIT = (DisagreementError, NotReachedError, JobError, NoSuchInterfaceError, NoFreePortError)
"""Reasons why a node cannot take part; the messages do not name the node."""


class Member:
    """One agent among those of a run."""

    def __init__(
        self,
        run: Run,
        node: OwnNode,
        attempts: Attempts,
        *,
        begin_s: float,
        log: Callable[[str], None],
    ) -> None:
        """Fork the forkserver, and watch the signals of this process.

        The job's time limit counts from `begin_s`, by the monotonic clock.
        """
        self._run = run
        self._node = node
        self._attempts = attempts
        self._log = log
        self._notes = Notes()
        use_all_descriptors()  # before the forkserver begins, which passes it on
        self._ranks = LocalRanks(
            run,
            node,
            tell=self._tell,
            on_store=self._on_store,
            log=self._log,
            gpu_share=lambda: self._usage.gpu_share,
        )
        self._selector = selectors.DefaultSelector()  # not before the fork: it would be shared
        self.notices = Notices(run, node.job, node.plan, begin_s=begin_s, log=self._log)
        self._selector.register(self.notices, selectors.EVENT_READ)
        self._file = OwnFile(run, node)
        self._claims: list[BinaryIO] = []  # hold the node's GPUs while this lives
        self._orders: deque[ToAgent] = deque()
        self._joining = Joining(
            run, node, attempts, self._file, orders=self._orders, selector=self._selector, log=log
        )
        self._leader: Leader | None = None  # on node 0
        self._follower: Follower | None = None  # on the others
        self._early_warning: Warned | None = None
        self._heart = Heart(
            node.job.launch.agent_timeout_s if node.num_nodes > 1 else 0.0,
            send=self._beat,
            num_ranks=lambda: len(self._ranks.living()),
        )
        self._is_closing = False
        self._verdict: Verdict | None = None
        self._looked_at = time.monotonic()
        self._tick_at = self._looked_at + _TICK_S
        self._usage = UsageSampler(
            run,
            node=node.place.node_rank,
            host=node.place.host,
            every_s=node.job.record.usage_s,
            log=self._log,
        )

    def take_part(self) -> Verdict | None:
        """Stay until the run is over; returns what this node makes of it, if that is known here.

        Raises CannotLaunchError, or one of UNFIT.
        """
        self._file.write()
        self._ranks.listen(self._selector)
        self._claims = self._node.claim_gpus(self._log)
        device, gpus = self._node.find_device()
        if note := note_on_device(self._node.plan.device, device):
            self._log(note)
        self._file.change(device=device, gpus=gpus)
        try:
            self._lead() if self._node.place.node_rank == 0 else self._join()
        except UNFIT:
            self._file.write()  # as far as it came
            raise
        self._heart.start()
        while not self._is_closing:
            self._turn()
        self._heart.stop()
        self._ranks.end_rest(min(self._node.job.launch.grace_s, self._attempts.most_grace_s))
        return self._verdict

    def end(self) -> None:
        """Have its threads end: no rank is left."""
        self._usage.end()

    # How it becomes one of the run's agents.

    def _lead(self) -> None:
        self._leader = self._joining.lead(
            notes=self._notes,
            open_store=self._ranks.open_store,
            finish=self._finish,
        )

    def _join(self) -> None:
        try:
            self._follower = self._joining.follow(
                give_up=self._is_over_while_joining, on_lost=self._on_leader_lost
            )
        except OvertakenError as error:
            self._log(f"{error}: this one has no say any more")
            self._is_closing = True
        if self._follower is not None:
            self._ranks.clock_offset_s = self._follower.clock_offset_s
            if self._early_warning is not None:
                self._tell(self._early_warning)

    def _is_over_while_joining(self) -> bool:
        if any(key.fileobj is self.notices for key, _ in self._selector.select(0)):
            self._heed(self.notices.read_signals())
        self._look()
        return self._is_closing

    @property
    def _way(self) -> Leader | Follower | None:
        """The way to the coordinator, and to the other agents."""
        return self._leader or self._follower

    # The loop.

    def _turn(self) -> None:
        ready = {key.fileobj: key.data for key, _ in self._selector.select(self._timeout_s())}
        self._heart.turn()
        if self._leader is not None:
            self._leader.on_turn()
        # Signals first: what the ranks' ends mean depends on whether a kill came before them.
        if self.notices in ready:
            del ready[self.notices]
            self._heed(self.notices.read_signals())
        self._deliver()
        for callback in ready.values():
            callback()
        self._ranks.on_time()
        if time.monotonic() >= self._tick_at:
            self._tick_at = time.monotonic() + _TICK_S
            self._tick()
        if self._way is not None:
            self._way.on_time()
        self._deliver()

    def _tick(self) -> None:
        if self._leader is not None:  # the others hear over their connections what it finds
            self._look()
        if self._is_closing:
            return
        if self._leader is not None:
            self._leader.look()
        if self._leader is not None and (notice := self.notices.read_clock()) is not None:
            self._heed([notice])
        self._ranks.look(enforces_limits=self._node.plan.enforces_limits)

    def _timeout_s(self) -> float:
        deadlines = [self._tick_at, self._ranks.next_deadline()]
        if self._leader is not None:
            if self._leader.messages:
                return 0.0
            deadlines.append(self._leader.deadline)
        return 0.0 if self._orders else max(0.0, min(deadlines) - time.monotonic())

    def _look(self) -> None:
        """Find out, now and then, whether the run has a verdict, of an agent that could not join,
        or was cancelled."""
        now = time.monotonic()
        if now - self._looked_at < (_LOOK_AT_WORK_S if self._attempts.has_begun else _LOOK_S):
            return
        self._looked_at = now
        if self._run.verdict_file.exists():
            self._is_closing = True
            if self._leader is not None:
                self._leader.coordinator.on_concluded()
        elif self._run.cancel_file.exists():
            self._heed([Cancelled(signal="SIGTERM")])

    def _heed(self, notices: Sequence[Warned | Cancelled | LimitReached]) -> None:
        """The job will be ended; a warning is told later where the coordinator is not known yet."""
        for notice in notices:
            if self._way is not None:
                self._tell(notice)
            elif isinstance(notice, Warned):
                self._early_warning = notice
            elif isinstance(notice, Cancelled):
                self._is_closing = True
                self._verdict = failure.cancelled(
                    notice.signal, attempt=self._attempts.number, time_s=time.time()
                )

    # Talking to the coordinator, and obeying it.

    def _tell(self, message: ToLeader) -> None:
        assert self._way is not None
        self._way.tell(message)

    def _beat(self, beat: Beat) -> None:
        """Tell the others that this agent lives; the thread of its heart calls this."""
        if (way := self._way) is not None:
            way.beat(beat)

    def _deliver(self) -> None:
        """Carry out what was said, until nothing follows from it any more."""
        while True:
            if self._orders:
                self._obey(self._orders.popleft())
            elif self._leader is not None and self._leader.messages:
                self._leader.hear(0, self._leader.messages.popleft())
            else:
                return

    def _on_leader_lost(self, reason: str) -> None:
        """Without the leader nobody would end the ranks, or say why the run ended."""
        if self._is_closing:
            return
        self._is_closing = True
        if not files.is_there(self._run.verdict_file):
            self._verdict = failure.without_rank(
                "agent_lost",
                f"the agent of node 0 was lost: {reason}",
                time_s=time.time(),
                attempt=self._attempts.number,
                node=0,
            )

    def _finish(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def _obey(self, order: ToAgent) -> None:
        match order:
            case messages.Begin():
                self._attempts.begin(order.attempt)
            case messages.Start():
                self._start(order.meeting)
            case messages.Ask():
                self._ranks.inspect(order.request)
            case messages.Close():
                self._is_closing = True
            case _:
                self._ranks.obey(order)

    def _start(self, meeting: Meeting) -> None:
        own = self._file.reach_leader_at(meeting.master_addr)
        if own != meeting.master_addr:
            self._log(f"node 0 is reached by {own}, not by {meeting.master_addr}")
            meeting = msgspec.structs.replace(meeting, master_addr=own)
        file = self._file.content
        orders = rank_orders(
            self._run, self._node, interface=file.interface, gpus=file.gpus, meeting=meeting
        )
        self._ranks.start(orders)
        share = share_of(orders, living=self._ranks.living, gpus=file.gpus)
        self._usage.begin(meeting.attempt, share)

    def _on_store(self, port: int | None, error: str | None) -> None:
        assert self._leader is not None
        self._leader.coordinator.on_store(port, error)
