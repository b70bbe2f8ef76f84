"""The resources that a run used, from the samples of its agents, one file at a time; the use that
it made of its devices; and whether something else used its CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from hpcdist.base.text import number_of
from hpcdist.machine.peaks import peak_flops_per_s
from hpcdist.runs.events import Flops, NodeBegin, UsageWindow
from hpcdist.summary.figures.rank import RankFigures, largest
from hpcdist.summary.read.event_file import EventFile
from hpcdist.summary.values import FlopRate, UsageSummary

_LEAST_S = 1.0
"""Less time was not sampled well enough to say anything."""
_OTHERS_SHARE = 0.1
"""Share of the CPUs that others take from a run, where the CPUs are full."""
_FULL = 0.9


_Load = tuple[NodeBegin, float | None, float | None]
"""A node's begin, and CPUs that its ranks and that all processes used."""


class Total(Struct):
    """A quantity over time, added up."""

    length_s: float = 0.0
    integral: float = 0.0

    def add(self, value: float | None, length_s: float) -> None:
        """Take in the mean of so many seconds."""
        if value is not None:
            self.length_s += length_s
            self.integral += value * length_s

    @property
    def mean(self) -> float | None:
        """Over the time; None where there is none."""
        return self.integral / self.length_s if self.length_s else None


class Usage:
    """Adds up the use of all nodes of a run: the files of one node after the other, in order."""

    def __init__(self) -> None:
        self.begins: dict[int, NodeBegin] = {}
        """The begin of each node's newest attempt."""
        self._sampled_s: dict[int, float] = defaultdict(float)
        self._cpus: dict[int, Total] = defaultdict(Total)
        self._gpus = Total()
        self._max_gpu_memory_bytes: float | None = None
        self._loads: dict[Any, list[tuple[NodeBegin, float | None, float | None]]] = defaultdict(
            list
        )
        """By place: CPUs that the ranks of its nodes used, and that all processes used."""

    def add(self, record: EventFile) -> None:
        own, bound, length_s = Total(), Total(), 0.0
        for window in record.all(UsageWindow):
            length_s += window.wall_s
            own.add(window.cpus_busy, window.wall_s)
            bound.add(window.bound_cpus_busy, window.wall_s)
            for gpu in window.gpus:
                self._gpus.add(gpu.utilization, window.wall_s)
                self._max_gpu_memory_bytes = largest((self._max_gpu_memory_bytes, gpu.memory_bytes))
        self._sampled_s[record.number] += length_s
        self._cpus[record.number].add(own.mean, own.length_s)
        if begin := record.last(NodeBegin):
            self.begins[record.number] = begin
            if length_s >= _LEAST_S:
                # Simulated nodes share a host, and may share its CPUs.
                place = record.attempt, begin.host, *(begin.cpus or ())
                self._loads[place].append((begin, own.mean, bound.mean))

    def disturbance(self) -> str | None:
        """Return in words what others used of the CPUs that the ranks had, where these were full:
        on the host where that was most."""
        found: list[tuple[float, str]] = []
        for loads in self._loads.values():
            (begin, *_), own, bound = zip(*loads, strict=True)
            num_cpus = len(begin.cpus or ()) or begin.host_cpus or 0
            if None in own or None in bound:
                continue
            ranks_busy, all_busy = _sum(own) or 0.0, (_sum(bound) or 0.0) / len(loads)
            others_busy = max(0.0, all_busy - ranks_busy)
            if others_busy >= _OTHERS_SHARE * num_cpus > 0 and (
                others_busy + ranks_busy >= _FULL * num_cpus
            ):
                text = (
                    f"other processes took {others_busy:.1f} of the {number_of(num_cpus, 'CPU')} "
                    f"that it had on {begin.host or 'its host'}"
                )
                found.append((others_busy, text))
        return max(found)[1] if found else None

    def num_cpus(self) -> float | None:
        """Return the CPUs that the ranks may use on all nodes, as the newest attempt had them."""
        hosts: dict[str | None, list[NodeBegin]] = defaultdict(list)
        for begin in self.begins.values():
            hosts[begin.host].append(begin)
        of_hosts = []
        for begins in hosts.values():  # simulated nodes share a host, and may share its CPUs
            in_all = _sum(begin.num_cpus for begin in begins)
            cpus = {cpu for begin in begins for cpu in begin.cpus or []}
            of_hosts.append(in_all if in_all is None or not cpus else min(in_all, len(cpus)))
        return _sum(of_hosts)

    def summarize(self) -> UsageSummary | None:
        """Put all nodes together; None where nothing was sampled."""
        sampled_s = max(self._sampled_s.values(), default=0.0)
        if not sampled_s:
            return None
        most = self._max_gpu_memory_bytes
        return UsageSummary(
            sampled_s=sampled_s,
            gpu_utilization=self._gpus.mean,
            max_gpu_memory_bytes=None if most is None else int(most),
            cpus_busy=_sum(cpus.mean for cpus in self._cpus.values()),
            num_cpus=self.num_cpus(),
        )


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def flop_rate(
    ranks: Sequence[RankFigures], begins: Iterable[NodeBegin], *, samples_per_s: float | None
) -> FlopRate | None:
    """Return the operations of all ranks; None where nobody counted them."""
    counted = [flops for own in ranks if (flops := own.events.last(Flops)) and flops.per_sample]
    if not counted:
        return None
    first = counted[0]
    per_s = None if samples_per_s is None else first.per_sample * samples_per_s
    gpus = [gpu.name or "" for begin in begins for gpu in begin.gpus]
    peaks = [peak_flops_per_s(gpu, first.precision or "") for gpu in gpus]
    peak_per_s = None if None in peaks else _sum(peaks)
    return FlopRate(
        per_sample=first.per_sample,
        per_s=per_s,
        utilization=per_s / peak_per_s if per_s is not None and peak_per_s else None,
    )
