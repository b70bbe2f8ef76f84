"""Sampling of what a run uses of its nodes: GPUs through NVML, CPUs and memory through psutil.

Every agent has one sampler, a thread that lives as long as an attempt's ranks do, and writes
`events/node-NNNNN.jsonl` (docs/events.md). It begins two seconds after the ranks, so that the time
to their first step stays what it was, and whatever fails in it ends the sampling and nothing else.
Measured every 5 s: 3 CPU seconds per hour with 2 ranks, and 0.06 s to begin with; 12 per hour at
most with 8 ranks of 8 DataLoader workers each. psutil and pynvml are not imported before the first
sample.

A thread, and not a timer of the agent's loop: a driver that answers late, or a rank whose memory
takes long to be counted, must not keep the agent from its ranks. It is a daemon: one that hangs in
the driver does not outlive the agent. The agent forks before the first one, and not after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hpcdist.agent.host import HostReader
from hpcdist.agent.node import RankOrder
from hpcdist.agent.usage import ENERGY, GpuFacts, NodeBegin, Sample, Windows, to_fields
from hpcdist.machine.amd import AmdGpu, driver_version, find_amd_gpus
from hpcdist.machine.cpus import cpu_quota
from hpcdist.machine.memory import proportional_bytes
from hpcdist.machine.process import descendants
from hpcdist.runs.events import SCHEMA_VERSION, EventWriter
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    import psutil

_FIRST_S = 2.0
"""From the start of the ranks: until then imports for samples would be in their way."""
_LOOK_S = 0.2
_SHORTEST_S = 0.05
_END_LIMIT_S = 0.2

_MOST_COST = 0.002
"""Share of the time for counting memory."""
_FIRST_COST_S = 0.1
_KNOWN_FOR_S = 60.0

_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""HW_SLOWDOWN, SW_THERMAL, HW_THERMAL and HW_POWER_BRAKE of nvml.h. The power cap is not among
them: a GPU at its cap does what it was bought for."""


class NodeShare(NamedTuple):
    """The part of a node that its ranks have."""

    ranks: Callable[[], Mapping[int, int]]
    """Pids of those that live, by local rank."""
    cpus: Sequence[int] | None
    """CPUs that they are bound to; None where they are bound to none."""
    num_cpus: float
    """CPUs that they may use; a quota counts in part."""
    gpus: Sequence[str]
    """UUIDs of those that they drive."""


def share_of(
    orders: Sequence[RankOrder], *, living: Callable[[], dict[int, int]], gpus: Sequence[str]
) -> NodeShare:
    """Return the share of a node that these ranks have."""
    num_cpus = orders[0].num_cpus
    return NodeShare(
        ranks=living,
        cpus=sorted({cpu for order in orders for cpu in order.cpus}) or None,
        num_cpus=min(num_cpus, cpu_quota() or num_cpus),
        gpus=gpus,
    )


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

    def begin(self, attempt: int, share: NodeShare) -> None:
        """Sample an attempt, whose ranks are being started."""
        if not self.every_s:
            return
        self._stop.set()  # of an attempt that is over
        self._stop = threading.Event()
        begin_s = time.time()
        self._thread = threading.Thread(
            target=self._live, args=(self._stop, attempt, share, begin_s), daemon=True
        )
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

    def _live(self, stop: threading.Event, attempt: int, share: NodeShare, begin_s: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        begin = NodeBegin(
            begin_s=begin_s,
            schema=SCHEMA_VERSION,
            node=self.node,
            host=self.host,
            cpus=None if share.cpus is None else list(share.cpus),
            num_cpus=share.num_cpus,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        try:
            events = EventWriter(self.run.usage_file(self.node, attempt))
            events.write("node", **to_fields(begin))  # also of a run too short for samples
            while not share.ranks() and not stop.is_set():
                stop.wait(_LOOK_S)  # a node may take long to import what they need
            if not stop.wait(min(_FIRST_S, self.every_s)):
                self._sample(stop, events, begin, share)
            events.close()
        except Exception as error:  # noqa: BLE001 - what is not known must not end a run
            self.log(f"what the ranks use is not sampled any more: {error!r}")

    def _sample(
        self, stop: threading.Event, events: EventWriter, begin: NodeBegin, share: NodeShare
    ) -> None:
        own, host, gpus = RankProcesses(), HostReader(share.cpus), GpuReader(share.gpus)
        begin = msgspec.structs.replace(begin, host_cpus=host.num_cpus, gpus=gpus.facts)
        events.write("node", **to_fields(begin))
        windows = Windows(max(_SHORTEST_S, self.every_s))
        at_s, sampled_s = time.monotonic(), time.time()
        own.sample(share.ranks().values(), 0.0)
        gpus.sample(0.0)
        while not stop.wait(windows.next_in_s()) and (pids := list(share.ranks().values())):
            before_s, at_s, sampled_s = at_s, time.monotonic(), time.time()
            length_s = at_s - before_s
            found = own.sample(pids, length_s) | host.sample(length_s)
            of_gpus = gpus.sample(length_s)
            self.gpu_share = _busiest(of_gpus)
            full = windows.add(Sample(length_s, found, of_gpus), time_s=sampled_s)
            if full is not None:
                events.write("usage", **to_fields(full))
        last = windows.close(time_s=sampled_s)
        if last is not None:
            events.write("usage", **to_fields(last))
        gpus.close()


def _busiest(gpus: Sequence[Mapping[str, float]]) -> float | None:
    """Return the largest use of a GPU; None where one does not tell."""
    shares = [gpu["utilization"] for gpu in gpus if "utilization" in gpu]
    return max(shares) if shares and len(shares) == len(gpus) else None


@dataclass
class _Seen:
    """A process, and what is known of its CPU time and its memory."""

    process: psutil.Process
    cpu_s: float = 0.0
    """With that of the children which it has waited for."""
    rss_bytes: int = 0
    shared_bytes: int | None = None
    """By how much less than its resident memory it counted, when it was last counted."""
    counted_s: float = 0.0


class RankProcesses:
    """CPU time and memory of a node's ranks, with all processes below them.

    CPU time is exact: what a DataLoader worker used goes to its parent as it is waited for, so
    nothing is lost with workers that end. Memory that processes share counts once, and is what the
    kernel's count of it (PSS) costs time for, some 70 ms per GB in ordinary pages: it is asked for
    as often as `_MOST_COST` allows, one process after the other, of each at most once a minute. In
    between the resident memory, which costs nothing, tells by how much a process grew. Where a
    process was not yet counted at all, there is no figure.
    """

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._seen: dict[int, _Seen] = {}
        self._cpu_s: dict[int, float] = {}
        self._begin_s = time.monotonic()
        self._cost_s = 0.0

    def sample(self, ranks: Iterable[int], length_s: float) -> dict[str, float]:
        """`cpus_busy` since the last sample, `length_s` ago, of ranks that were there then, and
        `memory_bytes` now, of the processes with the pids `ranks` and all below them."""
        trees = {rank: [rank, *descendants(rank)] for rank in ranks}
        self._look_at(pid for tree in trees.values() for pid in tree)
        before, self._cpu_s = self._cpu_s, {}
        for rank, tree in trees.items():
            self._cpu_s[rank] = sum(self._seen[pid].cpu_s for pid in tree if pid in self._seen)
        found: dict[str, float] = {}
        known = self._cpu_s.keys() & before.keys()
        if known and length_s > 0:
            used_s = sum(max(0.0, self._cpu_s[rank] - before[rank]) for rank in known)
            found["cpus_busy"] = used_s / length_s
        memory_bytes = self._memory_bytes()
        if memory_bytes is not None:
            found["memory_bytes"] = memory_bytes
        return found

    def _look_at(self, pids: Iterable[int]) -> None:
        """Keep the processes that are there, and no others."""
        kept: dict[int, _Seen] = {}
        for pid in pids:
            with contextlib.suppress(self._psutil.Error):  # it has just ended
                seen = self._seen.get(pid) or _Seen(self._psutil.Process(pid))
                seen.rss_bytes = seen.process.memory_info().rss
                seen.cpu_s = sum(seen.process.cpu_times()[:4])
                kept[pid] = seen
        self._seen = kept

    def _memory_bytes(self) -> int | None:
        living = [seen for seen in self._seen.values() if seen.rss_bytes]  # else it has just ended
        for seen in sorted(living, key=lambda one: one.counted_s):
            begin_s = time.monotonic()
            is_known = seen.shared_bytes is not None and begin_s - seen.counted_s < _KNOWN_FOR_S
            if is_known or self._cost_s >= _FIRST_COST_S + _MOST_COST * (begin_s - self._begin_s):
                break
            pss_bytes = proportional_bytes(seen.process.pid)  # 0 where that is not permitted
            seen.shared_bytes = seen.rss_bytes - (pss_bytes or seen.rss_bytes)
            seen.counted_s = time.monotonic()
            self._cost_s += seen.counted_s - begin_s
        if not living or any(seen.shared_bytes is None for seen in living):
            return None
        return sum(max(0, seen.rss_bytes - (seen.shared_bytes or 0)) for seen in living)


class GpuReader:
    """The GPUs that a node's ranks drive, as NVML has them, or the kernel, from the first sample to
    `close`.

    They are known by their UUIDs, which the agent found when it chose them, so CUDA_VISIBLE_DEVICES
    is of no concern here. What a GPU does not tell (a part of one, MIG, has no use and no power of
    its own) is asked for once and then left out.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        """Nothing is read where there is no GPU, no library or no driver."""
        self.facts: list[GpuFacts] = []
        self._gpus: list[_Gpu | AmdGpu] = []
        self._nvml: Any = None
        if not uuids:
            return
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            self._gpus += find_amd_gpus(uuids)
            self.facts += map(_amd_facts, find_amd_gpus(uuids))
            return
        self._nvml = pynvml
        for uuid in uuids:
            with contextlib.suppress(pynvml.NVMLError):
                gpu = _Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
                self.facts.append(gpu.facts(uuid))
                self._gpus.append(gpu)

    def sample(self, length_s: float) -> list[dict[str, float]]:
        """Return what each GPU tells; `energy_j` is for the time `length_s` since the last
        sample."""
        return [gpu.sample(length_s) for gpu in self._gpus]

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None


class _Gpu:
    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._passing = (nvml.NVML_ERROR_TIMEOUT, nvml.NVML_ERROR_UNKNOWN)
        self._silent: set[str] = set()
        self._energy_mj: float | None = None

    def facts(self, uuid: str) -> GpuFacts:
        name = self._ask("name", self._nvml.nvmlDeviceGetName)
        driver = self._ask("driver", lambda _: self._nvml.nvmlSystemGetDriverVersion())
        memory = self._ask("memory_bytes", self._memory)
        limit_mw = self._ask("power_limit", self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return GpuFacts(
            uuid=uuid,
            name=_text(name),
            driver=_text(driver),
            memory_bytes=int(memory.total) if memory is not None else None,
            power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        )

    def sample(self, length_s: float) -> dict[str, float]:
        """Return each quantity that the GPU tells."""
        nvml = self._nvml
        reads: dict[str, Callable[[Any], Any]] = {
            "utilization": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "memory_bytes": lambda gpu: self._memory(gpu).used,
            "power_w": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "temperature_c": lambda gpu: nvml.nvmlDeviceGetTemperature(
                gpu, nvml.NVML_TEMPERATURE_GPU
            ),
            "throttled": lambda gpu: bool(
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & _SLOWED
            ),
        }
        found = {name: self._ask(name, read) for name, read in reads.items()}
        known = {name: float(value) for name, value in found.items() if value is not None}
        before_mj = self._energy_mj
        self._energy_mj = self._ask(ENERGY, nvml.nvmlDeviceGetTotalEnergyConsumption)
        if self._energy_mj is not None and before_mj is not None:  # from Volta on
            known[ENERGY] = max(0.0, self._energy_mj - before_mj) / 1000
        elif "power_w" in known:
            known[ENERGY] = known["power_w"] * length_s
        return known

    def _ask(self, quantity: str, read: Callable[[Any], Any]) -> Any:
        """Return None for what the GPU did not tell before: to ask again costs time."""
        if quantity in self._silent:
            return None
        try:
            return read(self._handle)
        except self._nvml.NVMLError as error:
            if error.value not in self._passing:
                self._silent.add(quantity)
            return None

    def _memory(self, handle: Any) -> Any:
        """In version 1 of the answer `used` holds what the driver reserves for itself, too."""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError:  # a driver before 510
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)


def _amd_facts(gpu: AmdGpu) -> GpuFacts:
    return GpuFacts(
        uuid=gpu.uuid,
        name=gpu.name,
        memory_bytes=gpu.total_bytes or None,
        power_limit_w=gpu.power_limit_w,
        driver=driver_version(),
    )


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
