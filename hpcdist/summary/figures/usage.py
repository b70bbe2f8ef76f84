"""The resources that a run used, from the samples of its agents, one file at a time; the use that
it made of its devices; and whether something else used its CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from hpcdist.base.text import number_of
from hpcdist.machine.peaks import peak_flops_per_s
from hpcdist.runs.events import Flops, GpuFacts, NodeBegin, UsageWindow
from hpcdist.summary.figures.rank import RankFigures
from hpcdist.summary.read.event_file import EventFile
from hpcdist.summary.values import FlopRate, GpuUsage, NodeUsage, UsageSummary


class Total(Struct, kw_only=True):
    """A quantity over time, added up."""

    length_s: float = 0.0
    integral: float = 0.0
    max: float = 0.0

    def add(self, value: float | None, length_s: float) -> None:
        """Take in the mean of so many seconds."""
        if value is not None:
            self.length_s += length_s
            self.integral += value * length_s
            self.max = max(self.max, value)

    @property
    def mean(self) -> float | None:
        """Over the time; None where there is none."""
        return self.integral / self.length_s if self.length_s else None

    @property
    def max_whole(self) -> int | None:
        """The maximum of a quantity that is counted, as bytes are."""
        return int(self.max) if self.length_s else None


_OF_GPU = ("utilization", "memory_bytes", "power_w", "throttled")


class GpuTotals(Struct, kw_only=True):
    """One GPU of a node, in all attempts."""

    facts: GpuFacts
    totals: dict[str, Total] = field(default_factory=lambda: {name: Total() for name in _OF_GPU})
    """By the fields of the windows."""
    energy_j: float | None = None


class NodeTotals(Struct, kw_only=True):
    """One node, in all attempts."""

    node: int
    begin: NodeBegin | None = None
    """The begin of the newest attempt."""
    length_s: float = 0.0
    cpus: Total = field(default_factory=Total)
    gpus: dict[str, GpuTotals] = {}


class _SharedCpus(Struct):
    """CPUs of a host in one attempt, and what its nodes there say of them."""

    begin: NodeBegin
    busy: list[float] = []
    """CPUs that all processes used, by node."""
    own_busy: list[float | None] = []
    """CPUs that the ranks used, by node."""


_LEAST_S = 1.0
"""Less time was not sampled well enough to say anything."""


class Usage:
    """Adds up the use of all nodes of a run, the file of one node after the other."""

    def __init__(self) -> None:
        self.nodes: dict[int, NodeTotals] = {}
        self._newest: dict[int, int] = {}
        self._shared: dict[Hashable, _SharedCpus] = {}

    def add(self, record: EventFile) -> None:
        node = self.nodes.setdefault(record.number, NodeTotals(node=record.number))
        begin = record.last(NodeBegin)
        if record.attempt >= self._newest.get(record.number, 0):
            self._newest[record.number], node.begin = record.attempt, begin
        gpus = [
            node.gpus.setdefault(facts.uuid, GpuTotals(facts=facts))
            for facts in (begin.gpus if begin else [])
        ]
        own, bound, length_s = Total(), Total(), 0.0
        for window in record.all(UsageWindow):
            length_s += window.wall_s
            node.cpus.add(window.cpus_busy, window.wall_s)
            own.add(window.cpus_busy, window.wall_s)
            bound.add(window.bound_cpus_busy, window.wall_s)
            for gpu, used in zip(gpus, window.gpus, strict=False):
                for name, total in gpu.totals.items():
                    total.add(getattr(used, name), window.wall_s)
                gpu.energy_j = _sum((gpu.energy_j, used.energy_j))
        node.length_s += length_s
        if begin is not None and length_s >= _LEAST_S:
            key = record.attempt, begin.host, (*(begin.cpus or ()),)
            shared = self._shared.setdefault(key, _SharedCpus(begin))
            shared.busy += [] if bound.mean is None else [bound.mean]
            shared.own_busy.append(own.mean)

    def other_loads(self) -> list[OtherLoad]:
        """Return what others used on each set of CPUs that ranks had.

        Simulated nodes share a host, and may share its CPUs: then what all of them used is their
        own.
        """
        loads = []
        for own in self._shared.values():
            num_cpus = len(own.begin.cpus or ()) or own.begin.host_cpus or 0
            if own.busy and num_cpus and None not in own.own_busy:
                ranks_busy = _sum(own.own_busy) or 0.0
                others_busy = max(0.0, sum(own.busy) / len(own.busy) - ranks_busy)
                loads.append(OtherLoad(own.begin.host, others_busy, ranks_busy, num_cpus))
        return loads

    def num_cpus(self) -> float | None:
        """Return the CPUs that the ranks may use on all nodes, as the newest attempt had them."""
        hosts: dict[str | None, list[NodeBegin]] = defaultdict(list)
        for node in self.nodes.values():
            if node.begin:
                hosts[node.begin.host].append(node.begin)
        of_hosts = []
        for begins in hosts.values():  # simulated nodes share a host, and may share its CPUs
            in_all = _sum(begin.num_cpus for begin in begins)
            cpus = {cpu for begin in begins for cpu in begin.cpus or []}
            of_hosts.append(in_all if in_all is None or not cpus else min(in_all, len(cpus)))
        return _sum(of_hosts)

    def summarize(self) -> UsageSummary | None:
        """Put all nodes together; None where nothing was sampled."""
        nodes = [node for _, node in sorted(self.nodes.items()) if node.length_s]
        if not nodes:
            return None
        gpus = [(node.node, gpu) for node in nodes for gpu in node.gpus.values()]
        of_gpus = [
            GpuUsage(
                node=number,
                uuid=gpu.facts.uuid,
                name=gpu.facts.name,
                utilization=gpu.totals["utilization"].mean,
                max_memory_bytes=gpu.totals["memory_bytes"].max_whole,
                memory_bytes=gpu.facts.memory_bytes,
                power_w=gpu.totals["power_w"].mean,
                energy_j=gpu.energy_j,
                throttled=gpu.totals["throttled"].mean,
            )
            for number, gpu in gpus
        ]
        fullest = max(of_gpus, key=lambda gpu: gpu.max_memory_bytes or 0, default=None)
        return UsageSummary(
            sampled_s=max(node.length_s for node in nodes),
            gpu_utilization=_mean_over_time(gpu.totals["utilization"] for _, gpu in gpus),
            max_gpu_memory_bytes=fullest.max_memory_bytes if fullest else None,
            gpu_memory_bytes=fullest.memory_bytes if fullest else None,
            gpu_power_w=_mean_over_time(gpu.totals["power_w"] for _, gpu in gpus),
            energy_j=_sum(gpu.energy_j for _, gpu in gpus),
            cpus_busy=_sum(node.cpus.mean for node in nodes),
            num_cpus=self.num_cpus(),
            nodes=[
                NodeUsage(
                    node=node.node,
                    host=node.begin.host if node.begin else None,
                    num_cpus=node.begin.num_cpus if node.begin else None,
                    cpus_busy=node.cpus.mean,
                )
                for node in nodes
            ],
            gpus=of_gpus,
        )


def _mean_over_time(totals: Iterable[Total]) -> float | None:
    known = [*totals]
    length_s = sum(total.length_s for total in known)
    return sum(total.integral for total in known) / length_s if length_s else None


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


_OTHERS_SHARE = 0.1
"""Share of the CPUs that others take from a run, where the CPUs are full."""
_FULL = 0.9


class OtherLoad(NamedTuple):
    """CPUs of a host that others used while a run trained there."""

    host: str | None
    others_busy: float
    ranks_busy: float
    num_cpus: int

    @property
    def takes_from_ranks(self) -> bool:
        in_all = self.others_busy + self.ranks_busy
        return self.others_busy >= _OTHERS_SHARE * self.num_cpus and in_all >= _FULL * self.num_cpus

    def sentence(self) -> str:
        return (
            f"other processes took {self.others_busy:.1f} of the "
            f"{number_of(self.num_cpus, 'CPU')} that it had on {self.host or 'its host'}"
        )


def flop_rate(
    ranks: Sequence[RankFigures],
    usage: UsageSummary | None,
    *,
    samples_per_s: float | None,
) -> FlopRate | None:
    """Return the operations of all ranks; None where nobody counted them."""
    counted = [flops for own in ranks if (flops := own.events.last(Flops)) and flops.per_sample]
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
