"""A member of a run: the part of an agent that runs the ranks of its node, a loop around one
`select`.

It carries out the leader's orders with its ranks (agent/local_ranks.py), and tells the leader what
it sees; the member of node 0 does so, too. Other threads of an agent sample what the ranks use
(agent/sampler.py), and on node 0 lead the run (agent/leader.py).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable
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
from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.machine.network import NoSuchInterfaceError, require_interface
from hpcdist.machine.ports import NoFreePortError
from hpcdist.machine.process import identify, use_all_descriptors
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Notes

_TICK_S = 0.5
_LOOK_S = 1.0
"""While an agent waits for node 0's, time between two looks at what others may have written into
the run's directory."""
_LEADER = 0
UNFIT = (CannotLaunchError, JobError, NoSuchInterfaceError, NoFreePortError)
"""Reasons why a node cannot take part; the messages do not name the node."""


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
        self._ranks = LocalRanks(run, node, tell=self._tell, log=self._log)
        self._selector = self._ranks.selector
        self._warnings = {signal.Signals[name] for name in node.plan.warning_signals}
        self._signals = wake_up_on({*CANCEL_SIGNALS.values(), *self._warnings})
        self._selector.register(self._signals, selectors.EVENT_READ)
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
        self._is_closing = False
        self._verdict: Verdict | None = None
        self._looked_s = self._tick_s = time.monotonic()

    def take_part(self) -> Verdict | None:
        """Run the ranks of this node until the run is over; return the verdict, which node 0 knows,
        and another node only where it lost the leader, or was told to end before it had joined.

        Raises one of UNFIT.
        """
        self._write_facts()
        self._claims = self._node.claim_gpus(self._log)
        self._facts.device, self._facts.gpus = self._node.find_device()
        self._write_facts()  # a doctor reads them, also of a node that cannot join
        self._join()
        while not self._is_closing:
            self._turn()
        self._ranks.end_rest(min(self._node.job.launch.grace_s, self._attempts.most_grace_s))
        if self._leader is not None:
            self._leader.end()
            self._verdict = self._leader.verdict
        return self._verdict

    def _join(self) -> None:
        """Connect to the leader, and send it Join; do neither where the run is over before."""
        joined: Joined | None
        if self._leader is not None:
            addresses = self._node.own_addresses()
            self._facts.offers = addresses
            channel = Channel(self._leader.begin(addresses), TO_AGENT)
            joined = Joined(channel, 0.0, addresses[0], addresses[0])
        else:
            joined = join_meeting(
                self._run,
                node_rank=self._facts.node,
                num_nodes=self._node.num_nodes,
                source=self._node.plan_of_node.address,
                timeout_s=self._node.job.launch.join_timeout_s,
                give_up=self._is_over_while_joining,
                rendezvous=self._node.place.rendezvous,
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

    def _reach_leader(self, address: str, own_address: str) -> None:
        """Note the way to node 0 in the node's file, too."""
        self._facts.master_addr, self._facts.address = address, own_address
        self._facts.interface = self._node.interface_of(own_address)
        self._write_facts()

    def _write_facts(self) -> None:
        path = self._run.agent_file(self._facts.node)
        files.write_json(path, msgspec.to_builtins(self._facts))

    def _is_over_while_joining(self) -> bool:
        """Take signals, look into the run's directory, and return True where the run is over. A
        warning is left to node 0's agent, which gets it, too."""
        cancels = [one.signal for one in self._read_signals() if one.is_cancel]
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            self._is_closing = self._run.verdict_file.exists()
            if self._run.cancel_file.exists():
                cancels.append("SIGTERM")
        if cancels and not self._is_closing:
            number, self._is_closing = self._attempts.number, True
            self._verdict = failure.cancelled(cancels[0], attempt=number, time_s=time.time())
        return self._is_closing

    def _read_signals(self) -> list[messages.Signalled]:
        """Return what the signals mean that this agent has got since the last call."""
        notices: list[messages.Signalled] = []
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._signals, 4096):
                name, is_warning = signal.Signals(number).name, number in self._warnings
                self._log(f"received {name}")
                if is_warning or name in CANCEL_SIGNALS:
                    is_cancel = not is_warning or files.is_there(self._run.cancel_file)
                    notices.append(messages.Signalled(signal=name, is_cancel=is_cancel))
        return notices

    def _turn(self) -> None:
        timeout_s = max(0.0, self._tick_s - time.monotonic())
        ready = [key.data for key, _ in self._selector.select(timeout_s)]
        # Signals first: what the ranks' ends mean depends on whether a kill came before them.
        for notice in self._read_signals():
            self._tell(notice)
        for receive in filter(None, ready):
            receive()
        now_s = time.monotonic()
        if now_s >= self._tick_s:
            self._tick_s = now_s + _TICK_S
            for reason in self._liveness.look(now_s).values():
                self._on_leader_lost(reason)
            if not self._is_closing:
                self._ranks.look(enforces_limits=self._node.plan.enforces_limits)
        if self._leader is not None:
            self._leader.member_turns += 1
        elif self._liveness.is_beat_due(now_s):
            self._tell(Beat())

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
            self._verdict = Verdict(
                kind="agent_lost",
                message=f"the agent of node 0 was lost: {reason}",
                time_s=time.time(),
                attempt=self._attempts.number,
                node=0,
            )

    def _obey(self, order: ToAgent | Beat) -> None:
        match order:
            case Beat():
                self._liveness.hear(_LEADER)
            case messages.Begin():
                self._attempts.begin(order.meeting.attempt)
                if self._leader is not None:  # node 0's forkserver opens the ranks' store
                    self._ranks.obey(order)
            case messages.Start():
                self._start(order.meeting, is_preflight=order.is_preflight)
            case messages.Close():
                self._is_closing = True
            case _:
                self._ranks.obey(order)

    def _start(self, meeting: RankMeeting, *, is_preflight: bool) -> None:
        facts, address = self._facts, meeting.master_addr
        if facts.master_addr != address and self._leader is not None:
            # Node 0 takes the address that others reached, whatever its own name means there:
            # Debian gives it 127.0.1.1.
            self._reach_leader(address, address)
        elif facts.master_addr != address:
            self._log(f"node 0 is reached by {facts.master_addr}, not by {address}")
            meeting = msgspec.structs.replace(meeting, master_addr=facts.master_addr)
        orders = rank_orders(
            self._run, self._node, interface=facts.interface, gpus=facts.gpus, meeting=meeting
        )
        if is_preflight:
            self._ranks.check(orders)
        else:
            self._ranks.start(orders, facts.gpus)
