"""The resources that a run used, from the samples of its agents, one file at a time; the use that
it made of its devices; and whether something else used its CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

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

_Mean = tuple[float | None, float]
"""A mean, None where nothing is known, and the seconds that it is over."""
_Load = tuple[NodeBegin, float | None, float | None]
"""A node's begin, and CPUs that its ranks and that all processes used."""


class Usage:
    """Adds up the use of all nodes of a run: the files of one node after the other, in order."""

    def __init__(self) -> None:
        self.begins: dict[int, NodeBegin] = {}
        """The begin of each node's newest attempt."""
        self._sampled_s: dict[int, float] = defaultdict(float)
        self._cpus: dict[int, list[_Mean]] = defaultdict(list)
        self._gpus: list[_Mean] = []
        self._max_gpu_memory_bytes: int | None = None
        self._loads: dict[Any, list[_Load]] = defaultdict(list)
        """By place: CPUs that the ranks of its nodes used, and that all processes used."""

    def add(self, record: EventFile) -> None:
        windows = record.all(UsageWindow)
        length_s = sum(window.wall_s for window in windows)
        own = _mean([(window.cpus_busy, window.wall_s) for window in windows])
        bound = _mean([(window.bound_cpus_busy, window.wall_s) for window in windows])
        gpus = [(gpu, window.wall_s) for window in windows for gpu in window.gpus]
        self._gpus.append(_mean([(gpu.utilization, wall_s) for gpu, wall_s in gpus]))
        self._max_gpu_memory_bytes = largest(
            [
                self._max_gpu_memory_bytes,
                *(int(gpu.memory_bytes) for gpu, _ in gpus if gpu.memory_bytes is not None),
            ]
        )
        self._sampled_s[record.number] += length_s
        self._cpus[record.number].append(own)
        if begin := record.last(NodeBegin):
            self.begins[record.number] = begin
            if length_s >= _LEAST_S:
                # Simulated nodes share a host, and may share its CPUs.
                place = record.attempt, begin.host, *(begin.cpus or ())
                self._loads[place].append((begin, own[0], bound[0]))

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
        return UsageSummary(
            sampled_s=sampled_s,
            gpu_utilization=_mean(self._gpus)[0],
            max_gpu_memory_bytes=self._max_gpu_memory_bytes,
            cpus_busy=_sum(_mean(cpus)[0] for cpus in self._cpus.values()),
            num_cpus=self.num_cpus(),
        )


def _mean(parts: Sequence[_Mean]) -> _Mean:
    """Return the mean over all parts of which it is known."""
    known = [(value, length_s) for value, length_s in parts if value is not None]
    in_all_s = sum(length_s for _, length_s in known)
    integral = sum(value * length_s for value, length_s in known)
    return integral / in_all_s if in_all_s else None, in_all_s


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
