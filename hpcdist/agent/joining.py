"""The way of an agent into its run: node 0's becomes the leader of a meeting, each other a
follower."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.agreement import NodeFacts
from hpcdist.agent.follower import Follower, join_meeting
from hpcdist.agent.meeting import Leader, own_era
from hpcdist.agent.messages import ToAgent
from hpcdist.agent.node import OwnFile, OwnNode
from hpcdist.agent.outcome.lives import Attempts
from hpcdist.machine.network import require_interface
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.notes import Notes


class Joining:
    """The facts by which one agent joins, as leader or as follower."""

    def __init__(
        self,
        run: Run,
        node: OwnNode,
        attempts: Attempts,
        file: OwnFile,
        *,
        orders: deque[ToAgent],
        selector: selectors.BaseSelector,
        log: Callable[[str], None],
    ) -> None:
        """`file` is written as more becomes known; `orders` takes what the coordinator wants."""
        self._run = run
        self._node = node
        self._attempts = attempts
        self._file = file
        self._orders = orders
        self._selector = selector
        self._log = log

    def lead(
        self,
        *,
        notes: Notes,
        open_store: Callable[[messages.OpenStore], None],
        finish: Callable[[Verdict], None],
    ) -> Leader:
        """Let the others join, and tell the coordinator of this node. Raises NoFreePortError or
        NoSuchInterfaceError."""
        leader = Leader(
            self._run,
            self._node,
            self._attempts,
            orders=self._orders,
            notes=notes,
            open_store=open_store,
            finish=finish,
            log=self._log,
        )
        addresses = self._node.own_addresses()
        self._file.change(offers=addresses)
        if self._node.num_nodes > 1:
            leader.host_meeting(addresses, self._selector)
        leader.tell(self._facts(master_addr=addresses[0], own_address=addresses[0]))
        return leader

    def follow(
        self, *, give_up: Callable[[], bool], on_lost: Callable[[str], None]
    ) -> Follower | None:
        """Join node 0's agent, and tell it of this node; None where `give_up` says so before.

        Raises OvertakenError, NotReachedError, DisagreementError or NoSuchInterfaceError.
        """
        launch, rendezvous = self._node.job.launch, self._node.place.rendezvous
        joined = join_meeting(
            self._run,
            node_rank=self._node.place.node_rank,
            num_nodes=self._node.num_nodes,
            source=self._node.plan_of_node.address,
            timeout_s=launch.join_timeout_s,
            give_up=give_up,
            rendezvous=rendezvous,
            era=own_era(self._attempts, rendezvous),
        )
        if joined is None:
            return None
        # Without it gloo and NCCL would fail in words that name neither node nor profile.
        require_interface(self._node.plan.interface)
        follower = Follower(
            joined,
            orders=self._orders,
            on_lost=on_lost,
            selector=self._selector,
            agent_timeout_s=launch.agent_timeout_s,
        )
        follower.tell(self._facts(master_addr=joined.address, own_address=joined.source))
        return follower

    def _facts(self, *, master_addr: str, own_address: str) -> messages.Join:
        self._file.use_address(master_addr=master_addr, own_address=own_address)
        facts = NodeFacts(
            **msgspec.structs.asdict(self._file.content),
            num_nodes=self._node.place.num_nodes or self._node.num_nodes,
            ranks=self._node.job.ranks_per_node,
        )
        return messages.Join(facts=facts)
