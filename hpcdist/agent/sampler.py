"""Sampling of what a run uses of its nodes: GPUs through NVML, CPUs through /proc.

Every agent has one sampler, a thread that lives as long as an attempt's ranks do, and writes
`events/node-NNNNN.jsonl` (docs/events.md). It begins two seconds after the ranks, so that the time
to their first step stays what it was, and whatever fails in it ends the sampling and nothing else.

A thread, and not a timer of the agent's loop: a driver that answers late must not keep the agent
from its ranks. It is a daemon: one that hangs in the driver does not outlive the agent. The agent
forks before the first one, and not after.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hpcdist.machine.cpus import cpu_model, cpu_quota
from hpcdist.machine.gpus import memory_of, nvml
from hpcdist.machine.process import descendants, process_use
from hpcdist.rank.context import RankOrder
from hpcdist.runs.events import EventWriter, GpuFacts, GpuWindow, NodeBegin, UsageWindow
from hpcdist.runs.run import Run

_FIRST_S = 2.0
"""From the start of the ranks: until then imports for samples would be in their way."""
_LOOK_S = 0.2
_SHORTEST_S = 0.05
_END_LIMIT_S = 0.2

_WINDOW_SHARE = 0.01
_FASTEST_S = 0.5
_GROWTH = 0.1
"""Shares of the time so far: windows grow, so that a day makes some 700 of them, and samples begin
close to each other, so that short runs have some."""

_PROC_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and steal, which another guest of the
hypervisor used. That of guests is in user and nice."""
_TICKS_PER_S = 100  # USER_HZ: the kernel's interface has no other

_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""HW_SLOWDOWN, SW_THERMAL, HW_THERMAL and HW_POWER_BRAKE of nvml.h. The power cap is not among
them: a GPU at its cap does what it was bought for."""


@dataclass
class UsageSampler:
    """Samples one attempt after the other; `every_s` 0 is off."""

    run: Run
    node: int
    host: str
    every_s: float
    log: Callable[[str], None]
    gpu_share: float | None = None
    """Largest share of the last moment in which a GPU worked; None where that is not known."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(
        self,
        attempt: int,
        orders: Sequence[RankOrder],
        *,
        living: Callable[[], Mapping[int, int]],
        gpus: Sequence[str],
    ) -> None:
        """Sample an attempt, whose ranks are being started; `living` are the pids of those that
        live, `gpus` the UUIDs of theirs."""
        if not self.every_s:
            return
        self._stop.set()  # of an attempt that is over
        self._stop = threading.Event()
        num_cpus = orders[0].num_cpus
        begin = NodeBegin(
            begin_s=time.time(),
            node=self.node,
            host=self.host,
            cpus=sorted({cpu for order in orders for cpu in order.cpus}) or None,
            num_cpus=min(num_cpus, cpu_quota() or num_cpus),
            cpu_model=cpu_model(),
        )
        arguments = (self._stop, self.run.usage_file(self.node, attempt), begin, living, gpus)
        self._thread = threading.Thread(target=self._sample, args=arguments, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the limit of threads
            self._thread = None
            self.log(f"what the ranks use is not sampled: {error}")

    def end(self) -> None:
        """Have the last window written, unless that takes long: no rank is left."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_LIMIT_S)

    def _sample(
        self,
        stop: threading.Event,
        path: Path,
        begin: NodeBegin,
        living: Callable[[], Mapping[int, int]],
        gpus: Sequence[str],
    ) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        try:
            events = EventWriter(path)
            events.write(begin)  # also of a run too short for samples
            while not living() and not stop.is_set():
                stop.wait(_LOOK_S)  # a node may take long to import what they need
            if not stop.wait(min(_FIRST_S, self.every_s)):
                with nvml() as library:
                    for event in self._events(stop, begin, living, GpuReader(library, gpus)):
                        events.write(event)
            events.close()
        except Exception as error:  # noqa: BLE001 - what is not known must not end a run
            self.log(f"what the ranks use is not sampled any more: {error!r}")

    def _events(
        self,
        stop: threading.Event,
        begin: NodeBegin,
        living: Callable[[], Mapping[int, int]],
        gpus: GpuReader,
    ) -> Iterator[NodeBegin | UsageWindow]:
        """Sample until no rank lives; yield each window as it is full."""
        own, host = RankProcesses(), HostReader(begin.cpus)
        yield msgspec.structs.replace(begin, host_cpus=host.num_cpus, gpus=gpus.facts)
        windows = Windows(max(_SHORTEST_S, self.every_s))
        at_s, sampled_s = time.monotonic(), time.time()
        own.sample(living().values(), 0.0)
        gpus.sample()
        while not stop.wait(windows.next_in_s()) and (pids := list(living().values())):
            before_s, at_s, sampled_s = at_s, time.monotonic(), time.time()
            length_s = at_s - before_s
            found, of_gpus = own.sample(pids, length_s) | host.sample(length_s), gpus.sample()
            shares = [gpu.get("utilization", math.nan) for gpu in of_gpus]
            self.gpu_share = max(shares) if shares and not math.isnan(sum(shares)) else None
            if window := windows.add(Sample(length_s, found, of_gpus), time_s=sampled_s):
                yield window
        if window := windows.close(time_s=sampled_s):
            yield window


# Windows.


class Sample(NamedTuple):
    """The measurements of one moment, by quantity; the names are those of the events' fields."""

    length_s: float
    """Time since the last sample, for which this one stands."""
    node: Mapping[str, float]
    gpus: Sequence[Mapping[str, float]]


class Windows:
    """Gathers samples until a window is full."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._passed_s = 0.0
        self._samples: list[Sample] = []

    def next_in_s(self) -> float:
        return min(self._every_s, max(_FASTEST_S, _GROWTH * self._passed_s))

    def add(self, sample: Sample, *, time_s: float) -> UsageWindow | None:
        """Take a sample of the Unix time `time_s`; return the window that it fills, if it does."""
        self._samples.append(sample)
        self._passed_s += sample.length_s
        if sum(one.length_s for one in self._samples) < _WINDOW_SHARE * self._passed_s:
            return None
        return self.close(time_s=time_s)

    def close(self, *, time_s: float) -> UsageWindow | None:
        """Return the window as far as it is; None where it has no sample."""
        samples, self._samples = self._samples, []
        length_s = sum(sample.length_s for sample in samples)
        if not length_s:
            return None
        num_gpus = max(len(sample.gpus) for sample in samples)
        of_gpus = [
            [(one.length_s, one.gpus[index]) for one in samples if index < len(one.gpus)]
            for index in range(num_gpus)
        ]
        return UsageWindow(
            time_s=time_s,
            wall_s=_short(length_s),
            samples=len(samples),
            gpus=[GpuWindow(**_sum_up(own)) for own in of_gpus],
            **_sum_up([(sample.length_s, sample.node) for sample in samples]),
        )


def _sum_up(found: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, Any]:
    """Return the sum of the energy, the maximum of memory, and else the mean of what some sample
    has; each value weighs as much as the time that it stands for."""
    summed_up = {}
    for name in dict.fromkeys(name for _, values in found for name in values):
        lengths_s, own = zip(
            *((length_s, values[name]) for length_s, values in found if name in values), strict=True
        )
        if name == "energy_j":
            value = sum(own)
        elif name == "memory_bytes" or not any(lengths_s):
            value = max(own)
        else:
            value = sum(map(mul, lengths_s, own)) / sum(lengths_s)
            value = min(max(own), max(min(own), value))  # whatever the rounding
        summed_up[name] = _short(value)
    return summed_up


def _short(value: float) -> float:
    """No sample is so exact that more digits would say anything."""
    return float(f"{value:.6g}")


# What is read.


class RankProcesses:
    """CPU time of a node's ranks, with all processes below them.

    It is exact: what a DataLoader worker used goes to its parent as it is waited for, so nothing is
    lost with workers that end.
    """

    def __init__(self) -> None:
        self._cpu_s: dict[int, float] = {}

    def sample(self, ranks: Iterable[int], length_s: float) -> dict[str, float]:
        """`cpus_busy` since the last sample, `length_s` ago, of ranks that were there then: the
        processes with the pids `ranks` and all below them."""
        before, self._cpu_s = self._cpu_s, {}
        for rank in ranks:
            uses = list(filter(None, map(process_use, [rank, *descendants(rank)])))
            self._cpu_s[rank] = sum(use.cpu_s + use.cpu_of_ended_s for use in uses)
        known = self._cpu_s.keys() & before.keys()
        if not known or length_s <= 0:
            return {}
        used_s = sum(max(0.0, self._cpu_s[rank] - before[rank]) for rank in known)
        return {"cpus_busy": used_s / length_s}


class HostReader:
    """CPU time of all processes of a host, whoever's they are; begins at once.

    /proc/stat is the whole machine's, in a container too, and counts CPUs by the numbers that a
    process is bound by. Where a container has a view of its own (lxcfs), these numbers are not in
    it: then nothing is told of them.
    """

    def __init__(self, cpus: Sequence[int] | None, *, proc_stat: Path = _PROC_STAT) -> None:
        """`cpus`: those that ranks are bound to; None where they are bound to none."""
        self._cpus = cpus
        self._proc_stat = proc_stat
        self._busy_s = self._read_cpus()
        self.num_cpus = len(self._busy_s)
        """The number of CPUs that are online; of a container's own view, those in it."""

    def sample(self, length_s: float) -> dict[str, float]:
        """Return `bound_cpus_busy` since the last sample, `length_s` ago; nothing where the host
        does not tell it."""
        before, self._busy_s = self._busy_s, self._read_cpus()
        cpus = before.keys() if self._cpus is None else self._cpus
        if length_s <= 0 or any(cpu not in before or cpu not in self._busy_s for cpu in cpus):
            return {}
        used_s = sum(max(0.0, self._busy_s[cpu] - before[cpu]) for cpu in cpus)
        return {"bound_cpus_busy": used_s / length_s}

    def _read_cpus(self) -> dict[int, float]:
        """Return the busy seconds of each CPU since the host was started."""
        busy_s = {}
        for line in self._proc_stat.read_text().splitlines():
            name, *columns = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = sum(int(columns[column]) for column in _BUSY if column < len(columns))
                busy_s[int(name.removeprefix("cpu"))] = ticks / _TICKS_PER_S
        return busy_s


class GpuReader:
    """The GPUs that a node's ranks drive, as NVML has them, while its library is open.

    They are known by their UUIDs, which the agent found when it chose them, so CUDA_VISIBLE_DEVICES
    is of no concern here.
    """

    def __init__(self, library: Any, uuids: Sequence[str]) -> None:
        """Nothing is read where there is no library."""
        self.facts: list[GpuFacts] = []
        self._nvml = library
        self._gpus: list[Any] = []
        self._energy_mj: dict[int, float] = {}
        for uuid in uuids if library is not None else ():
            with contextlib.suppress(library.NVMLError):
                gpu = library.nvmlDeviceGetHandleByUUID(uuid)
                facts = GpuFacts(
                    uuid=uuid,
                    name=library.nvmlDeviceGetName(gpu),
                    driver=library.nvmlSystemGetDriverVersion(),
                    memory_bytes=int(memory_of(library, gpu).total),
                )
                self._gpus.append(gpu)
                self.facts.append(facts)

    def sample(self) -> list[dict[str, float]]:
        """Return what each GPU tells (a part of one, MIG, has no use and no power of its own);
        `energy_j` is since the last sample, of GPUs that count it: from Volta on."""
        found = []
        library = self._nvml
        for place, gpu in enumerate(self._gpus):
            known: dict[str, float] = {}
            with contextlib.suppress(library.NVMLError):
                known["utilization"] = library.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
            with contextlib.suppress(library.NVMLError):
                known["memory_bytes"] = float(memory_of(library, gpu).used)
            with contextlib.suppress(library.NVMLError):
                known["power_w"] = library.nvmlDeviceGetPowerUsage(gpu) / 1000
            with contextlib.suppress(library.NVMLError):
                reasons = library.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
                known["throttled"] = float(bool(reasons & _SLOWED))
            with contextlib.suppress(library.NVMLError):
                energy_mj = library.nvmlDeviceGetTotalEnergyConsumption(gpu)
                if (before_mj := self._energy_mj.get(place)) is not None:
                    known["energy_j"] = max(0.0, energy_mj - before_mj) / 1000
                self._energy_mj[place] = energy_mj
            found.append(known)
        return found
