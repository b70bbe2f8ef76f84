"""A member of a run: the part of an agent that runs the ranks of its node, a loop around one
`select`.

It carries out the leader's orders with its ranks (agent/local_ranks.py), and tells the leader what
it sees; the member of node 0 does so, too. Other threads of an agent sample what the ranks use
(agent/sampler.py), and on node 0 lead the run (agent/leader.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from hpcdist.agent import messages
from hpcdist.agent.coordinator import CANCEL_SIGNALS, STANDSTILL_S, Legacy
from hpcdist.agent.forkserver import wake_up_on
from hpcdist.agent.leader import Leader
from hpcdist.agent.local_ranks import LocalRanks
from hpcdist.agent.meeting import Joined, Liveness, join_meeting
from hpcdist.agent.messages import TO_AGENT, Beat, Channel, ChannelClosedError, ToAgent, ToLeader
from hpcdist.agent.node import CannotLaunchError, NodeFacts, OwnNode, RankMeeting, rank_orders
from hpcdist.agent.outcome import failure, lives
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.agent.succession import LIMIT_S, Seen, Succession
from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.job.spec import TrainJob
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
_GONE_S = 5.0
"""Beyond the grace, how long ranks may take to be gone where the leader is lost."""
_SUCCESSION_POLL_S = 0.2
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
        self._log, self._notes = log, notes
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
        self.has_lost_leader = False
        """Node 0's agent is gone, and with it, perhaps, the job's script."""
        self._leading_node = 0
        self._meeting: RankMeeting | None = None
        """The ranks' meeting in the newest attempt."""
        self._gone: int | None = None
        """The last attempt of which nothing is left here."""
        self._is_elastic = isinstance(node.job, TrainJob)
        self._stood_still_s = -math.inf
        """When the loop had last stood still, as where the process was suspended."""
        self._succession: Succession | None = None
        self._is_closing = False
        self._verdict: Verdict | None = None
        self._looked_s = self._tick_s = time.monotonic()

    @property
    def leads(self) -> bool:
        """The agent of this node leads the run."""
        return self._leader is not None

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
            if self._succession is not None and not self._is_closing:
                self._succeed(self._succession)
        self._ranks.end_rest(min(self._node.job.launch.grace_s, self._attempts.most_grace_s))
        if self._leader is not None:
            self._leader.end()
            self._verdict = self._leader.verdict
        return self._verdict

    def _join(self) -> None:
        """Connect to the leader, and send it Join; do neither where the run is over before."""
        joined: Joined | None
        limit_s = math.inf if self._succession is None else LIMIT_S
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
                timeout_s=min(self._node.job.launch.join_timeout_s, limit_s),
                give_up=self._is_over_while_joining,
                rendezvous=self._node.place.rendezvous,
                life=self._attempts.life,
                attempt=0 if self._succession is None else self._attempts.number + 1,
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
            if now_s - self._tick_s > STANDSTILL_S:
                self._stood_still_s = now_s
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
        if isinstance(message, messages.Ended):
            self._is_elastic = self._is_elastic or message.end.elastic
        elif isinstance(message, messages.Gone):
            self._gone = message.attempt
        try:
            if self._channel is not None:
                self._channel.send(message)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error), is_sure=error.is_sure)

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            for order in self._channel.receive():
                self._obey(order)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error), is_sure=error.is_sure)

    def _on_leader_lost(self, reason: str, *, is_sure: bool = False) -> None:
        """Leave the run, with a verdict where it has none: without the leader nobody would end the
        ranks, or say why the run ended. Or begin the succession, where the run may go on."""
        if self._is_closing or self._succession is not None:
            return
        self.has_lost_leader = True
        meeting, lost = self._meeting, self._leading_node
        if not files.is_there(self._run.verdict_file):
            self._verdict = Verdict(
                kind="agent_lost",
                message=f"the agent of node {lost} was lost: {reason}",
                time_s=time.time(),
                attempt=self._attempts.number,
                node=lost,
            )
        least = self._node.job.launch.min_nodes
        is_able = self._verdict is not None and self._leader is None and self._ranks.is_ready
        requeuer = self._attempts.requeuer
        is_able = is_able and (requeuer is None or requeuer.outlives_first_node)
        if least is None or meeting is None or len(meeting.nodes) <= least or not is_able:
            self._is_closing = True
            return
        unsuspended_s = time.monotonic() - self._stood_still_s
        self._succession = Succession(
            node=self._facts.node,
            lost=lost,
            nodes=meeting.nodes,
            attempt=meeting.attempt,
            is_sure=is_sure and unsuspended_s > LIMIT_S,
        )

    def _host_of(self, node: int) -> str | None:
        facts = files.read_json(self._run.agent_file(node))
        host = facts.get("host") if isinstance(facts, dict) else None
        return host if isinstance(host, str) else None

    def _succeed(self, succession: Succession) -> None:
        """End the ranks of this node, and lead the others, or join the one that does; or leave."""
        meeting, verdict = self._meeting, self._verdict
        assert meeting is not None
        assert verdict is not None
        self._log(f"the leader, node {succession.lost}, was lost")
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None
        self._liveness.end(_LEADER)
        grace_s = self._node.job.launch.grace_s
        if self._gone != meeting.attempt:
            end = messages.End(attempt=meeting.attempt, signal=signal.SIGTERM, grace_s=grace_s)
            self._ranks.obey(end)
        deadline = time.monotonic() + grace_s + _GONE_S
        while self._gone != meeting.attempt and time.monotonic() < deadline:
            self._turn()
        is_able = self._is_elastic and self._gone == meeting.attempt
        step = self._find_leader(succession, verdict) if is_able else "leave"
        if step == "lead":
            self._log(f"this node leads attempt {self._attempts.number}")
            before = [self._run.read_attempt_verdict(one) for one in self._run.attempts()]
            num_losses = sum(one is not None and one.num_nodes_left is not None for one in before)
            failed = replace(verdict, host=self._host_of(succession.lost))
            num_losses = min(num_losses, meeting.restart_count)
            legacy = Legacy(failed, meeting, succession.rest, num_losses)
            self._leader = Leader(
                self._node, self._attempts, notes=self._notes, log=self._log, legacy=legacy
            )
        if step != "leave":
            try:
                self._join()
                self._attempts.begin(meeting.attempt + 1)
            except CannotLaunchError as error:
                self._log(f"no leader was found: {error}")
                step = "leave"
        if step == "leave" and not self._run.is_alive():  # nobody else could have a say
            self._attempts.newest = newest = self._run.newest_attempt()
            self._verdict = self._verdict and replace(self._verdict, attempt=newest)
        self._is_closing = self._is_closing or step == "leave"
        if files.is_there(self._run.verdict_file) or not self._is_closing:
            self._succession = self._verdict = None

    def _find_leader(self, succession: Succession, verdict: Verdict) -> str:
        """Wait until a node leads, and return whether to lead, to join it, or to leave."""
        begin_s, step = time.monotonic(), "wait"
        while step == "wait" and not self._is_over_while_joining():
            time.sleep(_SUCCESSION_POLL_S)
            newest = self._run.newest_attempt()
            beginning = self._run.read_beginning(newest)
            leader = None if beginning is None else beginning.leader
            seen = Seen(newest, leader, self._run.is_alive())
            step = succession.step(seen, time.monotonic() - begin_s)
            if step == "join":
                self._leading_node = leader or 0
            elif step == "claim" and not lives.is_ours(self._attempts, verdict):
                step = "leave"
            elif step == "claim":
                self._leading_node = succession.node
                step = "lead" if self._attempts.claim_next(succession.node) else "wait"
        return "leave" if step == "wait" else step

    def _obey(self, order: ToAgent | Beat) -> None:
        match order:
            case Beat():
                self._liveness.hear(_LEADER)
            case messages.Begin():
                self._attempts.begin(order.meeting.attempt)
                self._meeting = order.meeting
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
            meeting = replace(meeting, master_addr=facts.master_addr)
        orders = rank_orders(
            self._run, self._node, interface=facts.interface, gpus=facts.gpus, meeting=meeting
        )
        if is_preflight:
            self._ranks.check(orders)
        else:
            self._ranks.start(orders, facts.gpus)
