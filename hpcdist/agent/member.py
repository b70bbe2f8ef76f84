"""A member of a run: the part of an agent that runs the ranks of its node, a loop around one
`select`.

It carries out the leader's orders with its ranks (agent/local_ranks.py), and tells the leader what
it sees; the member of node 0 does so, too. Other threads of an agent sample what the ranks use
(agent/sampler.py), and on node 0 lead the run (agent/leader.py).
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.coordinator import CANCEL_SIGNALS
from hpcdist.agent.forkserver import wake_up_on
from hpcdist.agent.leader import Leader
from hpcdist.agent.local_ranks import LocalRanks
from hpcdist.agent.meeting import Joined, Liveness, join_meeting
from hpcdist.agent.messages import TO_AGENT, Beat, Channel, ChannelClosedError, ToAgent, ToLeader
from hpcdist.agent.node import CannotLaunchError, NodeFacts, OwnNode, RankMeeting, rank_orders
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.agent.sampler import UsageSampler
from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.machine.gpus import why_not_used
from hpcdist.machine.network import NoSuchInterfaceError, require_interface
from hpcdist.machine.ports import NoFreePortError
from hpcdist.machine.process import identify, use_all_descriptors
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Notes

_TICK_S = 0.5
_LOOK_S = 1.0
"""While an agent waits for node 0's, time between two looks at what others may have written into
the run's directory."""
_LEADER = 0
UNFIT = (CannotLaunchError, JobError, NoSuchInterfaceError, NoFreePortError)
"""Reasons why a node cannot take part; the messages do not name the node."""


class Notices:
    """The signals that an agent gets, as messages for the coordinator."""

    def __init__(self, run: Run, plan: LaunchPlan, *, log: Callable[[str], None]) -> None:
        """Watch the signals of this process: not before it has forked its forkserver."""
        self._run = run
        self._log = log
        self._warning_signals = {signal.Signals[name] for name in plan.warning_signals}
        self._reading = wake_up_on({*CANCEL_SIGNALS.values(), *self._warning_signals})

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come, for select."""
        return self._reading

    def read(self) -> list[messages.Signalled]:
        """Return what the signals mean that have come since the last call."""
        notices: list[messages.Signalled] = []
        for number in os.read(self._reading, 4096):
            name = signal.Signals(number).name
            self._log(f"received {name}")
            is_warning = number in self._warning_signals
            if is_warning or name in CANCEL_SIGNALS:
                is_cancel = not is_warning or files.is_there(self._run.cancel_file)
                notices.append(messages.Signalled(signal=name, is_cancel=is_cancel))
        return notices

    def wait_for_sigterm(self, seconds: float) -> bool:
        """Wait so long at most; return True as soon as SIGTERM comes."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._reading], [], [], left_s)
            if readable and signal.SIGTERM in os.read(self._reading, 4096):
                return True
        return False


class Member:
    """One node's agent in its run, `take_part`."""

    def __init__(
        self, node: OwnNode, attempts: Attempts, *, notes: Notes, log: Callable[[str], None]
    ) -> None:
        """Fork the forkserver, and watch the signals of this process."""
        self._run = run = attempts.run
        self._node = node
        self._attempts = attempts
        self._log = log
        use_all_descriptors()  # before the forkserver begins, which passes it on
        self._ranks = LocalRanks(
            run,
            node,
            tell=self._tell,
            log=self._log,
            gpu_share=lambda: self._usage.gpu_share,
        )
        self._selector = selectors.DefaultSelector()  # not before the fork: it would be shared
        self.notices = Notices(run, node.plan, log=self._log)
        self._selector.register(self.notices, selectors.EVENT_READ)
        self._facts = NodeFacts(
            node=node.place.node_rank,
            host=node.place.host,
            process=identify(os.getpid()),
            num_nodes=node.place.num_nodes or node.num_nodes,
        )
        self._claims: list[BinaryIO] = []  # hold the node's GPUs while this lives
        limit_s = node.job.launch.agent_timeout_s if node.num_nodes > 1 else 0.0
        self._liveness = Liveness(limit_s, now_s=time.monotonic())
        self._leader: Leader | None = None
        if node.place.node_rank == 0:
            self._leader = Leader(node, attempts, notes=notes, log=log)
        self._channel: Channel[ToAgent | Beat] | None = None
        """To the leader; None until the member has joined."""
        self._early_warning: messages.Signalled | None = None
        self._is_closing = False
        self._verdict: Verdict | None = None
        self._looked_s = self._tick_s = time.monotonic()
        self._usage = UsageSampler(run, every_s=node.job.record.usage_s, log=self._log)

    def take_part(self) -> Verdict | None:
        """Run the ranks of this node until the run is over; return the verdict, which node 0 knows,
        and another node only where it lost the leader, or was told to end before it had joined.

        Raises one of UNFIT.
        """
        self._write_facts()
        self._ranks.listen(self._selector)
        self._claims = self._node.claim_gpus(self._log)
        self._facts.device, self._facts.gpus = self._node.find_device()
        if (self._node.plan.device, self._facts.device) == ("auto", "cpu") and (
            why := why_not_used()
        ):
            self._log(f"the ranks compute on CPUs: {why}")
        try:
            self._join()
        except UNFIT:
            self._write_facts()  # as far as it came
            raise
        while not self._is_closing:
            self._turn()
        self._ranks.end_rest(min(self._node.job.launch.grace_s, self._attempts.most_grace_s))
        if self._leader is not None:
            self._leader.end()
            self._verdict = self._leader.verdict
        return self._verdict

    def end(self) -> None:
        """End the thread that samples usage. Call it when no rank is left."""
        self._usage.end()

    def _join(self) -> None:
        """Connect to the leader, and send it Join; do neither where the run is over before."""
        place = self._node.place
        joined: Joined | None
        if self._leader is not None:
            addresses = self._node.own_addresses()
            self._facts.offers = addresses
            channel = Channel(self._leader.begin(addresses), TO_AGENT)
            joined = Joined(channel, 0.0, addresses[0], addresses[0])
        else:
            joined = join_meeting(
                self._run,
                node_rank=place.node_rank,
                num_nodes=self._node.num_nodes,
                source=self._node.plan_of_node.address,
                timeout_s=self._node.job.launch.join_timeout_s,
                give_up=self._is_over_while_joining,
                rendezvous=place.rendezvous,
                life=self._attempts.life,
            )
        if joined is None:
            self._is_closing = True
            return
        if self._leader is None:
            # Without it gloo and NCCL would fail in words that name neither node nor profile.
            require_interface(self._node.plan.interface)
            self._liveness.hear(_LEADER)
        self._channel = joined.channel
        self._selector.register(self._channel, selectors.EVENT_READ, self._receive)
        self._ranks.clock_offset_s = joined.clock_offset_s
        self._reach_leader(joined.address, joined.source)
        self._tell(messages.Join(facts=self._facts))
        if self._early_warning is not None:
            self._tell(self._early_warning)

    def _reach_leader(self, address: str, own_address: str) -> None:
        """Note the way to node 0 in the node's file, too."""
        self._facts.master_addr, self._facts.address = address, own_address
        self._facts.interface = self._node.interface_of(own_address)
        self._write_facts()

    def _write_facts(self) -> None:
        path = self._run.agent_file(self._facts.node)
        files.write_json(path, msgspec.to_builtins(self._facts))

    def _is_over_while_joining(self) -> bool:
        """Take signals, look into the run's directory, and return True where the run is over."""
        if any(key.fileobj is self.notices for key, _ in self._selector.select(0)):
            self._heed(self.notices.read())
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            if self._run.verdict_file.exists():
                self._is_closing = True
            elif self._run.cancel_file.exists():
                self._heed([messages.Signalled(signal="SIGTERM", is_cancel=True)])
        return self._is_closing

    def _turn(self) -> None:
        timeout_s = max(0.0, self._tick_s - time.monotonic())
        ready = {key.fileobj: key.data for key, _ in self._selector.select(timeout_s)}
        # Signals first: what the ranks' ends mean depends on whether a kill came before them.
        if self.notices in ready:
            del ready[self.notices]
            self._heed(self.notices.read())
        for callback in ready.values():
            callback()
        if time.monotonic() >= self._tick_s:
            self._tick_s = time.monotonic() + _TICK_S
            self._tick()

        if self._leader is not None:
            self._leader.member_turns += 1
        elif self._liveness.is_beat_due(time.monotonic()):
            self._tell(Beat())

    def _tick(self) -> None:
        for reason in self._liveness.look(time.monotonic()).values():
            self._on_leader_lost(reason)
        if not self._is_closing:
            self._ranks.look(enforces_limits=self._node.plan.enforces_limits)

    def _heed(self, notices: Sequence[messages.Signalled]) -> None:
        """Tell the leader that the job will be ended. Before this member has joined, keep a warning
        for later, and leave at a cancellation."""
        for notice in notices:
            if self._channel is not None:
                self._tell(notice)
            elif not notice.is_cancel:
                self._early_warning = notice
            else:
                self._is_closing = True
                self._verdict = failure.cancelled(
                    notice.signal, attempt=self._attempts.number, time_s=time.time()
                )

    def _tell(self, message: ToLeader | Beat) -> None:
        try:
            if self._channel is not None:
                self._channel.send(message)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            for order in self._channel.receive():
                self._obey(order)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _on_leader_lost(self, reason: str) -> None:
        """Leave the run, with a verdict where it has none: without the leader nobody would end the
        ranks, or say why the run ended."""
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

    def _obey(self, order: ToAgent | Beat) -> None:
        match order:
            case Beat():
                self._liveness.hear(_LEADER)
            case messages.Begin():
                self._attempts.begin(order.attempt)
                if self._leader is not None:
                    self._ranks.obey(order)
            case messages.Start():
                self._start(order.meeting)
            case messages.Close():
                self._is_closing = True
            case _:
                self._ranks.obey(order)

    def _start(self, meeting: RankMeeting) -> None:
        facts, most = self._facts, meeting.master_addr
        if facts.master_addr != most and self._leader is not None:
            # Node 0 takes the address that others reached, whatever its own name means there:
            # Debian gives it 127.0.1.1.
            self._reach_leader(most, most)
        elif facts.master_addr != most:
            self._log(f"node 0 is reached by {facts.master_addr}, not by {most}")
            meeting = msgspec.structs.replace(meeting, master_addr=facts.master_addr)
        orders = rank_orders(
            self._run, self._node, interface=facts.interface, gpus=facts.gpus, meeting=meeting
        )
        self._ranks.start(orders)
        self._usage.begin(orders, living=self._ranks.living, gpus=facts.gpus)
