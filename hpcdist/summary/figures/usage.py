"""The resources that a run used, from the samples of its agents: sums first, one file at a time;
and the use that it made of its devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from hpcdist.machine.peaks import peak_flops_per_s
from hpcdist.runs.events import GpuFacts, NodeBegin
from hpcdist.summary.figures.rank import RankFigures
from hpcdist.summary.read.records import NodeRecord
from hpcdist.summary.values import FlopRate, GpuUsage, NodeUsage, UsageSummary


class Total(Struct, kw_only=True):
    """A quantity over time, added up."""

    length_s: float = 0.0
    integral: float = 0.0
    max: float = 0.0

    def add(self, value: float, length_s: float) -> None:
        """Take in the mean of so many seconds."""
        self.merge(Total(length_s=length_s, integral=value * length_s, max=value))

    def merge(self, other: Total) -> None:
        self.length_s += other.length_s
        self.integral += other.integral
        self.max = max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """Over the time; None where there is none."""
        return self.integral / self.length_s if self.length_s else None

    @property
    def max_whole(self) -> int | None:
        """The maximum of a quantity that is counted, as bytes are."""
        return int(self.max) if self.length_s else None


class Totals(defaultdict[str, Total]):
    """The quantities of a node or a GPU, by the fields of the windows."""

    def __init__(self) -> None:
        super().__init__(Total)

    def add(self, window: Struct, names: Iterable[str], length_s: float) -> None:
        """Take in a window of so many seconds."""
        for name in names:
            if (value := getattr(window, name)) is not None:
                self[name].add(value, length_s)

    def merge(self, other: Totals) -> None:
        for name, total in other.items():
            self[name].merge(total)


_OF_NODE = ("cpus_busy", "bound_cpus_busy")
_OF_GPU = ("utilization", "memory_bytes", "power_w", "throttled")


class GpuTotals(Struct, kw_only=True):
    """One GPU of a node."""

    facts: GpuFacts
    totals: Totals = field(default_factory=Totals)
    energy_j: float | None = None


class NodeTotals(Struct, kw_only=True):
    """One node, in one attempt or in several."""

    node: int
    attempt: int
    begin: NodeBegin | None
    length_s: float = 0.0
    totals: Totals = field(default_factory=Totals)
    gpus: list[GpuTotals] = []


def measure_node(record: NodeRecord) -> NodeTotals:
    begin = record.begins[-1] if record.begins else None
    gpus = [GpuTotals(facts=facts) for facts in (begin.gpus if begin else [])]
    totals = NodeTotals(node=record.node, attempt=record.attempt, begin=begin, gpus=gpus)
    for window in record.windows:
        totals.length_s += window.wall_s
        totals.totals.add(window, _OF_NODE, window.wall_s)
        for gpu, own in zip(totals.gpus, window.gpus, strict=False):
            gpu.totals.add(own, _OF_GPU, window.wall_s)
            gpu.energy_j = _sum((gpu.energy_j, own.energy_j))
    return totals


def num_cpus_of(nodes: Sequence[NodeTotals]) -> float | None:
    """Return the CPUs that the ranks may use on all nodes, as the newest attempt had them."""
    newest = {totals.node: totals.begin for totals in sorted(nodes, key=lambda own: own.attempt)}
    hosts: dict[str | None, list[NodeBegin]] = defaultdict(list)
    for begin in newest.values():
        if begin:
            hosts[begin.host].append(begin)
    of_hosts = []
    for begins in hosts.values():  # simulated nodes share a host, and may share its CPUs
        in_all = _sum(begin.num_cpus for begin in begins)
        cpus = {cpu for begin in begins for cpu in begin.cpus or []}
        of_hosts.append(in_all if in_all is None or not cpus else min(in_all, len(cpus)))
    return _sum(of_hosts)


def summarize_usage(nodes: Sequence[NodeTotals]) -> UsageSummary | None:
    """Put all nodes and attempts together; None where nothing was sampled."""
    by_node: dict[int, list[NodeTotals]] = defaultdict(list)
    for totals in sorted(nodes, key=lambda own: (own.node, own.attempt)):
        by_node[totals.node].append(totals)
    merged = [totals for own in by_node.values() if (totals := _merge(own)).length_s]
    if not merged:
        return None
    used = [_node_usage(totals) for totals in merged]
    gpus = [gpu for totals in merged for gpu in totals.gpus]
    utilization, power = Total(), Total()
    for gpu in gpus:
        utilization.merge(gpu.totals["utilization"])
        power.merge(gpu.totals["power_w"])
    fullest = max(gpus, key=lambda gpu: gpu.totals["memory_bytes"].max, default=None)
    return UsageSummary(
        sampled_s=max(totals.length_s for totals in merged),
        gpu_utilization=utilization.mean,
        max_gpu_memory_bytes=fullest.totals["memory_bytes"].max_whole if fullest else None,
        gpu_memory_bytes=fullest.facts.memory_bytes if fullest else None,
        gpu_power_w=power.mean,
        energy_j=_sum(gpu.energy_j for gpu in gpus),
        cpus_busy=_sum(node.cpus_busy for node in used),
        num_cpus=num_cpus_of(merged),
        nodes=used,
        gpus=[_gpu_usage(totals.node, gpu) for totals in merged for gpu in totals.gpus],
    )


def _merge(attempts: Sequence[NodeTotals]) -> NodeTotals:
    """Put the attempts of one node together; the newest is the last."""
    newest = attempts[-1]
    merged = NodeTotals(node=newest.node, attempt=newest.attempt, begin=newest.begin)
    gpus: dict[str, GpuTotals] = {}
    for totals in attempts:
        merged.length_s += totals.length_s
        merged.totals.merge(totals.totals)
        for gpu in totals.gpus:
            own = gpus.setdefault(gpu.facts.uuid, GpuTotals(facts=gpu.facts))
            own.totals.merge(gpu.totals)
            own.energy_j = _sum((own.energy_j, gpu.energy_j))
    merged.gpus = list(gpus.values())
    return merged


def _node_usage(totals: NodeTotals) -> NodeUsage:
    begin = totals.begin
    return NodeUsage(
        node=totals.node,
        host=begin.host if begin else None,
        num_cpus=begin.num_cpus if begin else None,
        cpus_busy=totals.totals["cpus_busy"].mean,
    )


def _gpu_usage(node: int, gpu: GpuTotals) -> GpuUsage:
    return GpuUsage(
        node=node,
        uuid=gpu.facts.uuid,
        name=gpu.facts.name,
        utilization=gpu.totals["utilization"].mean,
        max_memory_bytes=gpu.totals["memory_bytes"].max_whole,
        memory_bytes=gpu.facts.memory_bytes,
        power_w=gpu.totals["power_w"].mean,
        energy_j=gpu.energy_j,
        throttled=gpu.totals["throttled"].mean,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


# Efficiency: operations per second, and energy per sample.


def flop_rate(
    ranks: Sequence[RankFigures],
    usage: UsageSummary | None,
    *,
    samples_per_s: float | None,
) -> FlopRate | None:
    """Return the operations of all ranks; None where nobody counted them."""
    counted = [own.flops for own in ranks if own.flops and own.flops.per_sample]
    if not counted:
        return None
    first = counted[0]
    per_s = None if samples_per_s is None else first.per_sample * samples_per_s
    gpus = usage.gpus if usage else []
    peaks = [peak_flops_per_s(gpu.name or "", first.precision or "") for gpu in gpus]
    is_known = peaks and None not in peaks
    peak_per_s = sum(peak or 0.0 for peak in peaks) if is_known else None
    return FlopRate(
        per_sample=first.per_sample,
        per_s=per_s,
        peak_per_s=peak_per_s,
        utilization=per_s / peak_per_s if per_s is not None and peak_per_s else None,
    )


def energy_per_sample_j(usage: UsageSummary | None, *, samples_per_s: float | None) -> float | None:
    """Return the mean power of the GPUs while sampled, by the samples of a second."""
    if usage is None or not usage.energy_j or not usage.sampled_s or not samples_per_s:
        return None
    return usage.energy_j / usage.sampled_s / samples_per_s
