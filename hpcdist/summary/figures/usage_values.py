"""What a run used, and what that cost: values that stand in the summary and in its JSON.

Means are over time; what is not known is None.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class GpuUsage(Struct, frozen=True, kw_only=True):
    """One GPU, or a part of one, over all attempts in which the run had it."""

    node: int
    uuid: str
    name: str | None = None
    utilization: float | None = None
    """Share of the time, 0 to 1, in which anything ran on it."""
    max_memory_bytes: int | None = None
    memory_bytes: int | None = None
    """That it has."""
    power_w: float | None = None
    max_power_w: float | None = None
    energy_j: float | None = None
    max_temperature_c: float | None = None
    throttled: float | None = None
    """Share of the time in which heat or the power supply slowed it down."""


class NodeUsage(Struct, frozen=True, kw_only=True):
    """What the ranks of one node used of it, over all attempts."""

    node: int
    host: str | None = None
    """Of the newest attempt."""
    num_cpus: float | None = None
    """That they may use."""
    cpus_busy: float | None = None
    max_cpus_busy: float | None = None
    max_memory_bytes: int | None = None
    memory_bytes: int | None = None
    """That the node has, other jobs' included."""
    node_cpus_busy: float | None = None
    """Of all processes of the node, whoever's they are."""


class UsageSummary(Struct, frozen=True, kw_only=True):
    """What the agents sampled."""

    sampled_s: float
    """Of the node that was sampled longest."""
    gpu_utilization: float | None = None
    """Mean over all GPUs and the time."""
    max_gpu_utilization: float | None = None
    """Of the GPU with the largest mean."""
    max_gpu_memory_bytes: int | None = None
    """Of the GPU that held most."""
    gpu_memory_bytes: int | None = None
    """That this GPU has."""
    gpu_power_w: float | None = None
    """Mean of one GPU."""
    energy_j: float | None = None
    """Of all GPUs together, as long as they were sampled."""
    cpus_busy: float | None = None
    """Of all nodes together."""
    num_cpus: float | None = None
    """That the ranks may use; those that simulated nodes share count once."""
    max_memory_bytes: int | None = None
    """Of the ranks of the node that held most."""
    nodes: list[NodeUsage] = []
    gpus: list[GpuUsage] = []


class Cost(Struct, frozen=True, kw_only=True):
    """For how long a run held what it had."""

    held_s: float
    """All lives together."""
    source: Literal["accounting", "events"]
    """Who says so: the scheduler's books, or what the run recorded."""
    num_gpus: int | None = None
    """None without GPUs."""
    gpu_hours: float | None = None
    num_cpus: float | None = None
    """None with GPUs."""
    cpu_hours: float | None = None
    lost_s: float | None = None
    """Of `held_s`, what went into restarts: from the end of an attempt, or the begin of a new life,
    to the next step, and for steps done again. None with one attempt, or where no steps are known.
    """
    lost_share: float | None = None
    """Of `held_s`."""
    waiting_share: float | None = None
    """Of the time from the queue to the end, what was spent in the queue."""
