"""A node of a run as its agent finds it: its place in the job, its device, its ranks; and what all
nodes must agree on before the ranks meet.

A run whose nodes disagree (one sees no GPU, one belongs to another allocation) would otherwise hang
until a time-out of half an hour, and say nothing of the reason.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from hpcdist.job.accelerate import accelerate_variables
from hpcdist.job.spec import JobSpec, OwnCodeJob, ScriptJob
from hpcdist.machine.cpus import share_cpus, threads_per_rank, usable_cpus
from hpcdist.machine.gpus import claim, show_only, visible_uuids, why_not_used
from hpcdist.machine.network import interface_of, offered_addresses
from hpcdist.machine.process import ProcessId
from hpcdist.rank.context import RankOrder, RankPlace
from hpcdist.rank.libraries import tracker_variables
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import JobPlace

_RECORDED_OPERATIONS = 2000
"""Number of operations that torch's flight recorder keeps."""


class CannotLaunchError(Exception):
    """A node cannot take part in its run, or the nodes do not fit together; the message says why,
    and does not name the node whose agent raises it."""


class LostGpuError(CannotLaunchError):
    """A node shows fewer GPUs than its scheduler has given to the job."""


@dataclass(frozen=True)
class OwnNode:
    """The node of an agent: its place, what the plan has for it, and what is found there."""

    job: JobSpec
    plan: LaunchPlan
    place: JobPlace
    notify: Sequence[str] = ()
    """The channels by which node 0 tells the user of the end, and that the run seems to hang."""
    now_s: float = field(default_factory=time.monotonic)
    """The time at which the place was asked for, by the monotonic clock."""

    @property
    def name(self) -> str:
        return f"node {self.place.node_rank} (host {self.place.host})"

    @property
    def num_nodes(self) -> int:
        return len(self.plan.nodes)

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.job.ranks_per_node

    @property
    def plan_of_node(self) -> NodePlan:
        return self.plan.nodes[self.place.node_rank]

    def num_threads(self) -> int:
        if self.plan.num_threads is not None:
            return self.plan.num_threads
        return threads_per_rank(
            len(usable_cpus()), self.job.ranks_per_node, cpus_per_rank=self.job.cpus_per_rank
        )

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return variables that must stand before torch is imported: libraries read them as they
        load. What the user has set (`before`) stays, but for GPUs that the plan chose."""
        of_job: dict[str, str] = {}
        if isinstance(self.job, ScriptJob):
            config = self.job.accelerate_config
            of_job = (accelerate_variables(config) if config else {}) | self.job.environment
        wanted = {"OMP_NUM_THREADS": str(self.num_threads()), **self.plan.environment, **of_job}
        if self.plan.device != "cpu":
            # Otherwise a module that asks torch.cuda.is_available() as it is preloaded starts CUDA
            # in the forkserver, and CUDA cannot be used in what is forked from there.
            wanted.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        variables = {name: value for name, value in wanted.items() if name not in before}
        if self.plan_of_node.gpus is not None:
            variables |= show_only(self.plan_of_node.gpus)
        return variables

    def claim_gpus(self, log: Callable[[str], None]) -> list[BinaryIO]:
        """Take the GPUs that the plan chose, while the result lives. Raises CannotLaunchError."""
        try:
            return claim(self.plan_of_node.gpus or [])
        except BlockingIOError:
            raise CannotLaunchError(
                "another run took one of the GPUs chosen for it at the same moment; submit again"
            ) from None
        except (OSError, RuntimeError) as error:
            log(f"the GPUs are not locked against other runs of yours: {error}")
            return []

    def find_device(self) -> tuple[str, list[str]]:
        """Return cpu or cuda, and the UUIDs of the GPUs of this node's ranks: those that the plan
        chose, else as many as there are of those that the job asks for. Raises CannotLaunchError
        where GPUs are wanted or there, but fewer than ranks."""
        device, gpus, ranks = self.plan.device, self.plan_of_node.gpus, self.job.ranks_per_node
        if gpus is None and device != "cpu":
            gpus = visible_uuids()
            if len(gpus) < ranks and (gpus or device == "cuda"):
                shown, why = os.environ.get("CUDA_VISIBLE_DEVICES"), why_not_used()
                is_lost = len((shown or "").split(",")) >= ranks and shown
                kind = LostGpuError if is_lost else CannotLaunchError
                raise kind(
                    f"{len(gpus)} GPUs for {ranks} ranks (CUDA_VISIBLE_DEVICES is {shown}, "
                    f"{why or 'NVML is asked'})"
                )
        return ("cuda", gpus[: self.job.resources.gpus]) if gpus else ("cpu", [])

    def own_addresses(self) -> list[str]:
        """Return the addresses of this host, node 0, that the other nodes may try, best first.
        Raises NoSuchInterfaceError."""
        if self.plan_of_node.address is not None:
            return [self.plan_of_node.address]
        if self.num_nodes == 1:
            return ["127.0.0.1"]
        if self.place.rendezvous is not None:
            return [self.place.rendezvous.address]
        return offered_addresses(self.place.host, self.plan.interface)

    def interface_of(self, address: str) -> str | None:
        """Return the interface for the ranks, where the node has this address: as the plan says, or
        else the address's own. A node that is alone has loopback, which nobody else reaches."""
        named = self.plan.interface if self.num_nodes > 1 else None
        return named or interface_of(address)


class NodeFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The facts that an agent has found out about its node. They stand in its file in the run
    directory, and it tells them to node 0 as it joins."""

    node: int
    host: str
    process: ProcessId | None = None
    device: str = ""
    """cpu or cuda."""
    gpus: list[str] = []
    """UUIDs of those that its ranks drive, in the order of local ranks."""
    offers: list[str] = []
    """Addresses that node 0 offers to the others."""
    address: str = ""
    """Its own, on the way to node 0."""
    master_addr: str = ""
    """By which it reaches node 0."""
    interface: str | None = None
    """On the way to node 0."""
    num_nodes: int = 0
    """Nodes of the job, as its scheduler told it."""

    @property
    def name(self) -> str:
        return f"node {self.node} (host {self.host})"


class RankMeeting(msgspec.Struct, frozen=True, kw_only=True):
    """The place where the ranks of one attempt meet, their store, and what holds for all of them.

    The meeting of the agents is another one (agent/meeting.py).
    """

    attempt: int = 0
    restart_count: int = 0
    master_addr: str = ""
    master_port: int = 0
    bind_to: str = ""
    """The address on which the store listens; empty, for all of node 0's, where the nodes reach it
    by several."""
    device: str = ""
    """cpu or cuda."""
    backend: str = ""
    """gloo or nccl."""
    nodes: tuple[int, ...] = ()
    """The nodes that take part, in the order of their ranks: others are lost."""


def agree(
    facts: Mapping[int, NodeFacts], backend: str, *, leader: int = 0, num_lost: int = 0
) -> RankMeeting:
    """Return where the ranks of all nodes meet, without attempt and port; `backend` is auto, gloo
    or nccl; `num_lost` nodes of the job are lost. Raises CannotLaunchError."""
    first = facts[min(facts)]
    for _, found in sorted(facts.items()):
        if found.num_nodes != len(facts) + num_lost:
            raise CannotLaunchError(
                f"{found.name} belongs to a job of {found.num_nodes} nodes, and {len(facts)} "
                "agents have joined"
            )
        if found.device != first.device:
            raise CannotLaunchError(
                f"{found.name} has device {found.device}, {first.name} has device {first.device}"
            )
    reached = Counter(found.master_addr for node, found in facts.items() if node != leader)
    address = reached.most_common(1)[0][0] if reached else first.master_addr
    if backend == "auto":
        backend = "nccl" if first.device == "cuda" else "gloo"
    if backend == "nccl" and first.device != "cuda":
        raise CannotLaunchError("launch.backend is nccl, but the nodes show no GPU")
    return RankMeeting(
        master_addr=address,
        bind_to=address if len(reached) <= 1 else "",
        device=first.device,
        backend=backend,
        nodes=tuple(sorted(facts)),
    )


def rank_orders(
    run: Run,
    node: OwnNode,
    *,
    interface: str | None,
    gpus: Sequence[str] = (),
    meeting: RankMeeting,
) -> list[RankOrder]:
    """Return the ranks that one node starts for one attempt; `gpus` are the UUIDs of theirs,
    equally many each."""
    cpus, cpus_of_job, num_ranks = usable_cpus(), node.place.cpus, node.job.ranks_per_node
    num_gpus = len(gpus) // num_ranks
    if node.plan_of_node.rank_cpus:
        shares = node.plan_of_node.rank_cpus
    elif cpus_of_job is not None and cpus_of_job < len(cpus):
        # The job is not bound to its own: where a site lets one of 4 CPUs roam over all 64, ranks
        # of every job would choose the same 4.
        shares = [[] for _ in range(num_ranks)]
    else:
        shares = share_cpus(cpus, num_ranks, per_share=node.job.cpus_per_rank)
    sweep = run.spec.sweep
    group = run.id if sweep is None else str(sweep.id)
    bound_to = {cpu for share in shares for cpu in share}
    orders = []
    for local_rank in range(num_ranks):
        order = RankOrder(
            rank=meeting.nodes.index(node.place.node_rank) * num_ranks + local_rank,
            local_rank=local_rank,
            world_size=len(meeting.nodes) * num_ranks,
            local_world_size=num_ranks,
            node_rank=node.place.node_rank,
            num_nodes=len(meeting.nodes),
            host=node.place.host,
            device=f"cuda:{local_rank * (num_gpus or 1)}" if meeting.device == "cuda" else "cpu",
            num_gpus=num_gpus,
            backend=meeting.backend,
            attempt=meeting.attempt,
            restart_count=meeting.restart_count,
            cpus=tuple(shares[local_rank]),
            num_cpus=len(bound_to) or cpus_of_job or len(cpus),
            num_threads=node.num_threads(),
            run_path=str(run.path),
            gpu=gpus[local_rank * num_gpus] if gpus else None,
            environment={},
        )
        most = node.job.launch.max_restarts
        order.environment.update(
            rank_environment(order, meeting, run_id=run.id, max_restarts=most, interface=interface)
        )
        if isinstance(node.job, OwnCodeJob):
            order.environment.update(tracker_variables(run.id, group, order.rank, os.environ))
        orders.append(order)
    return orders


def rank_environment(
    place: RankPlace, meeting: RankMeeting, *, run_id: str, max_restarts: int, interface: str | None
) -> dict[str, str]:
    """Return the variables that torchrun sets for its workers, by the same names and meanings
    (docs.pytorch.org/docs/stable/elastic/run.html), NODE_RANK, which Lightning reads, and those of
    torch's flight recorder, from which the verdict on a hang names the collective operation.

    TORCHELASTIC_USE_AGENT_STORE makes `init_process_group` connect to the store at
    MASTER_ADDR:MASTER_PORT instead of serving one from rank 0. What the user has set stays.
    """
    group_rank = str(place.rank // place.local_world_size)  # nodes may be lost
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": group_rank,
        "GROUP_WORLD_SIZE": str(place.num_nodes),
        "NODE_RANK": group_rank,
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": meeting.master_addr,
        "MASTER_PORT": str(meeting.master_port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(place.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **recorder_environment(os.environ),
    }
    if interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            variables[name] = os.environ.get(name, interface)
    return variables


def recorder_environment(before: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that turns the recorder on; none where the user has set it already."""
    # torch 2.7 knows the older name only.
    is_set = before.keys() & {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}
    return {} if is_set else {"TORCH_FR_BUFFER_SIZE": str(_RECORDED_OPERATIONS)}
