"""From what agents sampled of their nodes to what a run used: sums first, one file at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from hpcdist.agent.usage import GpuFacts, GpuWindow, NodeBegin, Spread
from hpcdist.summary.read.records import NodeRecord
from hpcdist.summary.values import GpuUsage, NodeUsage, UsageSummary


class Total(Struct, kw_only=True):
    """A quantity over time, added up."""

    length_s: float = 0.0
    integral: float = 0.0
    max: float | None = None

    def add(self, spread: Spread | None, length_s: float) -> None:
        """A window of so many seconds."""
        if spread is not None:
            self.length_s += length_s
            self.integral += spread.mean * length_s
            if self.max is None or spread.max > self.max:
                self.max = spread.max

    def merge(self, other: Total) -> None:
        """What another one has."""
        self.length_s += other.length_s
        self.integral += other.integral
        if other.max is not None:
            self.max = max(other.max, self.max or 0.0)

    @property
    def mean(self) -> float | None:
        """Over the time; None where there is none."""
        return self.integral / self.length_s if self.length_s else None

    @property
    def max_whole(self) -> int | None:
        """The maximum of a quantity that is counted, as bytes are."""
        return None if self.max is None else int(self.max)


class GpuTotals(Struct, kw_only=True):
    """One GPU of a node."""

    facts: GpuFacts
    utilization: Total
    memory: Total
    power: Total
    temperature: Total
    throttled: Total
    energy_j: float | None = None

    @classmethod
    def of(cls, facts: GpuFacts) -> GpuTotals:
        """Without any time yet."""
        totals = [Total() for _ in range(5)]
        return cls(
            facts=facts,
            utilization=totals[0],
            memory=totals[1],
            power=totals[2],
            temperature=totals[3],
            throttled=totals[4],
        )

    def add(self, window: GpuWindow, length_s: float) -> None:
        """A window of so many seconds."""
        self.utilization.add(window.utilization, length_s)
        self.memory.add(window.memory_bytes, length_s)
        self.power.add(window.power_w, length_s)
        self.temperature.add(window.temperature_c, length_s)
        self.throttled.add(window.throttled, length_s)
        if window.energy_j is not None:
            self.energy_j = (self.energy_j or 0.0) + window.energy_j

    def merge(self, other: GpuTotals) -> None:
        """The same GPU in another attempt."""
        self.utilization.merge(other.utilization)
        self.memory.merge(other.memory)
        self.power.merge(other.power)
        self.temperature.merge(other.temperature)
        self.throttled.merge(other.throttled)
        if other.energy_j is not None:
            self.energy_j = (self.energy_j or 0.0) + other.energy_j


class NodeTotals(Struct, kw_only=True):
    """One node, in one attempt or in several."""

    node: int
    attempt: int
    begin: NodeBegin | None
    length_s: float
    cpus: Total
    memory: Total
    node_cpus: Total
    gpus: list[GpuTotals]


def measure_node(record: NodeRecord) -> NodeTotals:
    """Sums of one node in one attempt."""
    begin = record.begins[-1] if record.begins else None
    totals = NodeTotals(
        node=record.node,
        attempt=record.attempt,
        begin=begin,
        length_s=0.0,
        cpus=Total(),
        memory=Total(),
        node_cpus=Total(),
        gpus=[GpuTotals.of(facts) for facts in (begin.gpus if begin else [])],
    )
    for window in record.windows:
        totals.length_s += window.wall_s
        totals.cpus.add(window.cpus_busy, window.wall_s)
        totals.memory.add(window.memory_bytes, window.wall_s)
        totals.node_cpus.add(window.node_cpus_busy, window.wall_s)
        for gpu, own in zip(totals.gpus, window.gpus, strict=False):
            gpu.add(own, window.wall_s)
    return totals


def num_cpus_of(nodes: Sequence[NodeTotals]) -> float | None:
    """CPUs that the ranks may use on all nodes, as the newest attempt had them."""
    newest = {totals.node: totals.begin for totals in sorted(nodes, key=lambda one: one.attempt)}
    return _num_cpus([begin for begin in newest.values() if begin])


def summarize_usage(nodes: Sequence[NodeTotals]) -> UsageSummary | None:
    """Over all nodes and attempts; None where nothing was sampled."""
    by_node: dict[int, list[NodeTotals]] = defaultdict(list)
    for totals in sorted(nodes, key=lambda one: (one.node, one.attempt)):
        by_node[totals.node].append(totals)
    merged = [_merge(attempts) for attempts in by_node.values()]
    merged = [totals for totals in merged if totals.length_s]
    if not merged:
        return None
    found = [_node_usage(totals) for totals in merged]
    usage = UsageSummary(
        sampled_s=max(totals.length_s for totals in merged),
        cpus_busy=_sum(node.cpus_busy for node in found),
        num_cpus=_num_cpus([totals.begin for totals in merged if totals.begin]),
        max_memory_bytes=max((n.max_memory_bytes or 0 for n in found), default=0) or None,
        nodes=found,
        gpus=[_gpu_usage(totals.node, gpu) for totals in merged for gpu in totals.gpus],
    )
    return _with_gpus(usage, [gpu for totals in merged for gpu in totals.gpus])


def _merge(attempts: Sequence[NodeTotals]) -> NodeTotals:
    """The attempts of one node, the newest last."""
    newest = attempts[-1]
    merged = NodeTotals(
        node=newest.node,
        attempt=newest.attempt,
        begin=newest.begin,
        length_s=0.0,
        cpus=Total(),
        memory=Total(),
        node_cpus=Total(),
        gpus=[],
    )
    gpus: dict[str, GpuTotals] = {}
    for totals in attempts:
        merged.length_s += totals.length_s
        merged.cpus.merge(totals.cpus)
        merged.memory.merge(totals.memory)
        merged.node_cpus.merge(totals.node_cpus)
        for gpu in totals.gpus:
            gpus.setdefault(gpu.facts.uuid, GpuTotals.of(gpu.facts)).merge(gpu)
    merged.gpus = list(gpus.values())
    return merged


def _node_usage(totals: NodeTotals) -> NodeUsage:
    begin = totals.begin
    return NodeUsage(
        node=totals.node,
        host=begin.host if begin else None,
        num_cpus=begin.num_cpus if begin else None,
        cpus_busy=totals.cpus.mean,
        max_cpus_busy=totals.cpus.max,
        max_memory_bytes=totals.memory.max_whole,
        memory_bytes=begin.memory_bytes if begin else None,
        node_cpus_busy=totals.node_cpus.mean,
    )


def _gpu_usage(node: int, gpu: GpuTotals) -> GpuUsage:
    return GpuUsage(
        node=node,
        uuid=gpu.facts.uuid,
        name=gpu.facts.name,
        utilization=gpu.utilization.mean,
        max_memory_bytes=gpu.memory.max_whole,
        memory_bytes=gpu.facts.memory_bytes,
        power_w=gpu.power.mean,
        max_power_w=gpu.power.max,
        energy_j=gpu.energy_j,
        max_temperature_c=gpu.temperature.max,
        throttled=gpu.throttled.mean,
    )


def _with_gpus(usage: UsageSummary, gpus: Sequence[GpuTotals]) -> UsageSummary:
    """With the figures of all of them together."""
    utilization, power = Total(), Total()
    for gpu in gpus:
        utilization.merge(gpu.utilization)
        power.merge(gpu.power)
    fullest = max(gpus, key=lambda gpu: gpu.memory.max or 0.0, default=None)
    means = [gpu.utilization.mean for gpu in gpus]
    return msgspec.structs.replace(
        usage,
        gpu_utilization=utilization.mean,
        max_gpu_utilization=max((mean for mean in means if mean is not None), default=None),
        max_gpu_memory_bytes=fullest.memory.max_whole if fullest else None,
        gpu_memory_bytes=fullest.facts.memory_bytes if fullest else None,
        gpu_power_w=power.mean,
        energy_j=_sum(gpu.energy_j for gpu in gpus),
    )


def _num_cpus(begins: Sequence[NodeBegin]) -> float | None:
    """Simulated nodes share a host, and may share its CPUs."""
    hosts: dict[str | None, list[NodeBegin]] = defaultdict(list)
    for begin in begins:
        hosts[begin.host].append(begin)
    return _sum(_cpus_of_host(own) for own in hosts.values())


def _cpus_of_host(begins: Sequence[NodeBegin]) -> float | None:
    in_all = _sum(begin.num_cpus for begin in begins)
    cpus = {cpu for begin in begins for cpu in begin.cpus or []}
    return in_all if in_all is None or not cpus else min(in_all, len(cpus))


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
