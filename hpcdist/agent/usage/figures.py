"""The events of a node: what an agent writes about its use, and the summary reads."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

# The bounds keep every figure that is computed from damaged files finite.
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Count = Annotated[int, Meta(ge=0)]


class Spread(Struct, frozen=True, kw_only=True, gc=False):
    """A quantity within a window: its mean over time, its smallest and its largest sample."""

    mean: Amount
    min: Amount
    max: Amount


class GpuFacts(Struct, frozen=True, kw_only=True):
    """A GPU, or a part of one (MIG), that the ranks of a node drive."""

    uuid: str
    name: str | None = None
    memory_bytes: Count | None = None
    """That it has."""
    power_limit_w: Amount | None = None


class NodeBegin(Struct, frozen=True, kw_only=True, tag_field="event", tag="node"):
    """First event of a node in an attempt: what its ranks have there; once more, with its GPUs,
    before these are sampled."""

    begin_s: Amount
    """Unix time at which the ranks were started."""
    schema: int = 1
    node: Count | None = None
    host: str | None = None
    cpus: list[int] | None = None
    """That the ranks are bound to; None where they are bound to none."""
    num_cpus: Amount | None = None
    """As many as the ranks may use, a quota counted in part."""
    memory_bytes: Count | None = None
    """That the node has, other jobs' included."""
    gpus: list[GpuFacts] = []


class GpuWindow(Struct, frozen=True, kw_only=True, gc=False):
    """One GPU within a window; what it does not tell is None."""

    utilization: Spread | None = None
    """Share of the time, 0 to 1, in which anything ran on it."""
    memory_bytes: Spread | None = None
    power_w: Spread | None = None
    temperature_c: Spread | None = None
    throttled: Spread | None = None
    """1 while heat or the power supply slow it down, else 0: the mean is the share of the time."""
    energy_j: Amount | None = None


class UsageWindow(Struct, frozen=True, kw_only=True, tag_field="event", tag="usage"):
    """What a node's ranks, with all processes below them, and the whole node used in a window."""

    time_s: Amount
    wall_s: Amount
    samples: Count
    cpus_busy: Spread | None = None
    """CPUs' worth of time that the ranks used: 3.2 is three busy CPUs and a fifth of one."""
    memory_bytes: Spread | None = None
    """Of the ranks, what they share counted once."""
    node_cpus_busy: Spread | None = None
    """The same of all processes on the node, whoever's they are."""
    node_memory_bytes: Spread | None = None
    gpus: list[GpuWindow] = []
    """In the order of those in the `node` event."""
