"""How a scheduler lays a run's ranks out over its nodes, as it stands in spec.json."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the scheduler's plan has it; stands in spec.json."""

    address: str | None = None
    """Where the others reach it; None: its host name."""
    rank_cpus: list[list[int]] | None = None
    """CPUs of each rank; None: an equal share of those that the agent may use."""
    gpus: list[str] | None = None
    """UUIDs of its GPUs; None: as CUDA_VISIBLE_DEVICES says."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks are laid out over the nodes; stands in spec.json as `plan`."""

    nodes: list[NodePlan]
    device: str
    """cpu or cuda; auto: as the nodes have it."""
    backend: str
    """gloo or nccl; auto: as the device wants it."""
    num_threads: int | None = None
    """CPU threads per rank; None: the rank's share of the CPUs."""
    environment: dict[str, str] = {}
    """Variables for the agents and ranks; what the user has set stays."""
    warning_signals: list[str] = []
    """What the scheduler sends to the agents before it ends the job, such as SIGUSR2."""
    enforces_limits: bool = False
    """The agents see to resources.mem_gb and time_limit_min, since no scheduler does."""
    limit_min: float | None = None
    """Time limit of which node 0's agent warns the ranks by its own clock: the scheduler's warning
    comes at the limit itself. None: the scheduler warns before."""
    interface: str | None = None
    """Network interface for gloo and NCCL, where the user has set none; None: the one by which
    node 0 is reached."""


def threads_of_user(before: Mapping[str, str]) -> int | None:
    """Threads per rank as the user's OMP_NUM_THREADS says; None where it says nothing."""
    first = before.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None
