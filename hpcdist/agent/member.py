"""A node's part in its run, while that lasts: a loop around one `select`.

It carries out the coordinator's orders with its ranks, and tells the coordinator what it sees. The
only other thread of an agent samples what the ranks use (agent/sampler.py).
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.agreement import NodeFacts
from hpcdist.agent.local_ranks import LocalRanks
from hpcdist.agent.meeting import Leader, NotReachedError, join_meeting
from hpcdist.agent.messages import (
    Cancelled,
    Channel,
    ChannelClosedError,
    LimitReached,
    ToAgent,
    ToCoordinator,
    Warned,
)
from hpcdist.agent.node import (
    AgentFile,
    DisagreementError,
    Meeting,
    OwnNode,
    rank_orders,
)
from hpcdist.agent.notices import Notices
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.agent.sampler import NodeShare, UsageSampler
from hpcdist.agent.watch import STANDSTILL_S
from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.machine.cpus import cpu_quota
from hpcdist.machine.network import NoSuchInterfaceError, require_interface
from hpcdist.machine.ports import NoFreePortError
from hpcdist.machine.process import identify, use_all_descriptors
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
        self._ranks = LocalRanks(
            run, node.job, tell=self._tell, on_store=self._on_store, log=self._log
        )
        self._selector = selectors.DefaultSelector()  # not before the fork: it would be shared
        self.notices = Notices(run, node.job, node.plan, begin_s=begin_s, log=self._log)
        self._selector.register(self.notices, selectors.EVENT_READ)
        self._file = AgentFile(
            node=node.place.node_rank, host=node.place.host, process=identify(os.getpid())
        )
        self._claims: list[BinaryIO] = []  # hold the node's GPUs while this lives
        self._orders: deque[ToAgent] = deque()
        self._leader: Leader | None = None  # on node 0
        self._channel: Channel[ToAgent] | None = None  # to node 0, on the others
        self._early_warning: Warned | None = None
        self._is_closing = False
        self._verdict: Verdict | None = None
        self._turned_at = self._looked_at = time.monotonic()
        self._tick_at = self._turned_at + _TICK_S
        self.usage = UsageSampler(
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
        self._announce()
        self._ranks.listen(self._selector)
        self._claims = self._node.claim_gpus(self._log)
        device, gpus = self._node.find_device()
        self._file = msgspec.structs.replace(self._file, device=device, gpus=gpus)
        try:
            self._lead() if self._node.place.node_rank == 0 else self._join()
        except UNFIT:
            self._announce()  # as far as it came
            raise
        while not self._is_closing:
            self._turn()
        return self._verdict

    # How it becomes one of the run's agents.

    def _announce(self, **changes: object) -> None:
        self._file = msgspec.structs.replace(self._file, **changes)
        path = self._run.agent_file(self._file.node)
        files.write_json(path, msgspec.to_builtins(self._file))

    def _lead(self) -> None:
        self._leader = Leader(
            self._run,
            self._node,
            self._attempts,
            orders=self._orders,
            open_store=self._open_store,
            finish=self._finish,
            log=self._log,
        )
        addresses = self._node.own_addresses()
        self._file = msgspec.structs.replace(self._file, offers=addresses)
        if self._node.num_nodes > 1:
            use_all_descriptors()  # the ranks keep the limit that they were given
            self._leader.host_meeting(addresses, self._selector)
        self._tell_facts(master_addr=addresses[0], own_address=addresses[0])

    def _join(self) -> None:
        joined = join_meeting(
            self._run,
            node_rank=self._node.place.node_rank,
            num_nodes=self._node.num_nodes,
            source=self._node.plan_of_node.address,
            timeout_s=self._node.job.launch.join_timeout_s,
            give_up=self._is_over_while_joining,
            rendezvous=self._node.place.rendezvous,
        )
        if joined is not None:
            # Without it gloo and NCCL would fail in words that name neither node nor profile.
            require_interface(self._node.plan.interface)
            self._ranks.clock_offset_s = joined.clock_offset_s
            self._channel = joined.channel
            self._selector.register(self._channel, selectors.EVENT_READ, self._take_orders)
            self._tell_facts(master_addr=joined.address, own_address=joined.source)
            if self._early_warning is not None:
                self._tell(self._early_warning)

    def _is_over_while_joining(self) -> bool:
        if any(key.fileobj is self.notices for key, _ in self._selector.select(0)):
            self._heed(self.notices.read_signals())
        self._look()
        return self._is_closing

    def _use_address(self, *, master_addr: str, own_address: str) -> None:
        interface = self._node.interface_of(own_address)
        self._announce(address=own_address, master_addr=master_addr, interface=interface)

    def _tell_facts(self, *, master_addr: str, own_address: str) -> None:
        self._use_address(master_addr=master_addr, own_address=own_address)
        facts = NodeFacts(
            **msgspec.structs.asdict(self._file),
            num_nodes=self._node.place.num_nodes or self._node.num_nodes,
            ranks=self._node.job.ranks_per_node,
        )
        self._tell(messages.Join(facts=facts))

    # The loop.

    def _turn(self) -> None:
        ready = {key.fileobj: key.data for key, _ in self._selector.select(self._timeout_s())}
        coordinator = self._leader.coordinator if self._leader is not None else None
        now = time.monotonic()
        if coordinator is not None:
            # Before what others said meanwhile is heard.
            if now - self._turned_at > STANDSTILL_S:
                coordinator.on_standstill()
            for note in self._notes.new():
                sentence = f"no agent could be started there: {note.said}"
                coordinator.on_unreachable(note.node, note.host, sentence)
        self._turned_at = now
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
        if self._leader is not None:
            self._leader.on_time()
        self._deliver()

    def _tick(self) -> None:
        if self._leader is not None:  # the others hear over their connections what it finds
            self._look()
        if self._is_closing:
            return
        if self._leader is not None and (notice := self.notices.read_clock()) is not None:
            self._heed([notice])
        self._ranks.look(enforces_limits=self._node.plan.enforces_limits)

    def _timeout_s(self) -> float:
        deadlines = [self._tick_at, self._ranks.next_deadline()]
        if self._leader is not None:
            if self._leader.messages:
                return 0.0
            due = self._leader.coordinator.deadline
            deadlines += [] if due is None else [due]
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
            if self._leader is not None or self._channel is not None:
                self._tell(notice)
            elif isinstance(notice, Warned):
                self._early_warning = notice
            elif isinstance(notice, Cancelled):
                self._is_closing = True
                self._verdict = failure.cancelled(
                    notice.signal, attempt=self._attempts.number, time_s=time.time()
                )

    # Talking to the coordinator, and obeying it.

    def _tell(self, message: ToCoordinator) -> None:
        if self._leader is not None:
            self._leader.messages.append(message)
            return
        assert self._channel is not None
        try:
            self._channel.send(message)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _take_orders(self) -> None:
        assert self._channel is not None
        try:
            self._orders.extend(self._channel.receive())
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _deliver(self) -> None:
        """Carry out what was said, until nothing follows from it any more."""
        while True:
            if self._orders:
                self._obey(self._orders.popleft())
            elif self._leader is not None and self._leader.messages:
                self._leader.coordinator.on_message(0, self._leader.messages.popleft())
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
            case messages.Close():
                self._is_closing = True
            case _:
                self._ranks.obey(order)

    def _start(self, meeting: Meeting) -> None:
        own = self._file.master_addr
        if own != meeting.master_addr and self._file.node == 0:
            # Node 0 is known by the address that the others reached, whatever its own name means
            # to itself: Debian gives it 127.0.1.1.
            self._use_address(master_addr=meeting.master_addr, own_address=meeting.master_addr)
        elif own != meeting.master_addr:
            self._log(f"node 0 is reached by {own}, not by {meeting.master_addr}")
            meeting = msgspec.structs.replace(meeting, master_addr=own)
        orders = rank_orders(
            self._run,
            self._node,
            interface=self._file.interface,
            gpus=self._file.gpus,
            meeting=meeting,
        )
        self._ranks.start(orders)
        num_cpus = orders[0].num_cpus
        share = NodeShare(
            ranks=self._ranks.living,
            cpus=sorted({cpu for order in orders for cpu in order.cpus}) or None,
            num_cpus=min(num_cpus, cpu_quota() or num_cpus),
            gpus=self._file.gpus,
        )
        self.usage.begin(meeting.attempt, share)

    def _open_store(self, address: str, bind_to: str) -> None:
        wanted = messages.OpenStore(
            bind_to=bind_to,
            address=address,
            port_range=self._node.job.launch.port_range,
        )
        self._ranks.open_store(wanted)

    def _on_store(self, port: int | None, error: str | None) -> None:
        assert self._leader is not None
        self._leader.coordinator.on_store(port, error)
