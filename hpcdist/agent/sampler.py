"""Sampling of what a run uses of its nodes: GPUs through NVML, CPUs through psutil and /proc/stat.

Every agent has one sampler, a thread that lives as long as an attempt's ranks do, and writes
`events/node-NNNNN.jsonl` (docs/events.md). It begins two seconds after the ranks, so that the time
to their first step stays what it was, and whatever fails in it ends the sampling and nothing else.
Measured every 5 s: 3 CPU seconds per hour with 2 ranks, and 0.06 s to begin with; 12 per hour at
most with 8 ranks of 8 DataLoader workers each. psutil and pynvml are not imported before the first
sample.

A thread, and not a timer of the agent's loop: a driver that answers late must not keep the agent
from its ranks. It is a daemon: one that hangs in the driver does not outlive the agent. The agent
forks before the first one, and not after.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hpcdist.agent.usage import ENERGY, GpuFacts, NodeBegin, Sample, Windows, to_fields
from hpcdist.machine.cpus import cpu_model, cpu_quota
from hpcdist.machine.process import descendants
from hpcdist.rank.context import RankOrder
from hpcdist.runs.events import SCHEMA_VERSION, EventWriter
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    import psutil

_FIRST_S = 2.0
"""From the start of the ranks: until then imports for samples would be in their way."""
_LOOK_S = 0.2
_SHORTEST_S = 0.05
_END_LIMIT_S = 0.2

_PROC_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and steal, which another guest of the
hypervisor used. That of guests is in user and nice."""
_TICKS_PER_S = 100  # USER_HZ: the kernel's interface has no other

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
            cpu_model=cpu_model(),
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


class RankProcesses:
    """CPU time of a node's ranks, with all processes below them.

    It is exact: what a DataLoader worker used goes to its parent as it is waited for, so nothing is
    lost with workers that end.
    """

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._processes: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}

    def sample(self, ranks: Iterable[int], length_s: float) -> dict[str, float]:
        """`cpus_busy` since the last sample, `length_s` ago, of ranks that were there then: the
        processes with the pids `ranks` and all below them."""
        trees = {rank: [rank, *descendants(rank)] for rank in ranks}
        of_process = self._look_at(pid for tree in trees.values() for pid in tree)
        before = self._cpu_s
        self._cpu_s = {
            rank: sum(of_process.get(pid, 0.0) for pid in tree) for rank, tree in trees.items()
        }
        known = self._cpu_s.keys() & before.keys()
        if not known or length_s <= 0:
            return {}
        used_s = sum(max(0.0, self._cpu_s[rank] - before[rank]) for rank in known)
        return {"cpus_busy": used_s / length_s}

    def _look_at(self, pids: Iterable[int]) -> dict[int, float]:
        """Return the CPU time of each, with that of the children which it has waited for; keep the
        processes that are there, and no others."""
        kept: dict[int, psutil.Process] = {}
        cpu_s: dict[int, float] = {}
        for pid in pids:
            with contextlib.suppress(self._psutil.Error):  # it has just ended
                process = self._processes.get(pid) or self._psutil.Process(pid)
                cpu_s[pid] = sum(process.cpu_times()[:4])
                kept[pid] = process
        self._processes = kept
        return cpu_s


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

    @property
    def num_cpus(self) -> int:
        """The number of CPUs that are online; of a container's own view, those in it."""
        return len(self._busy_s)

    def sample(self, length_s: float) -> dict[str, float]:
        """Return `bound_cpus_busy` since the last sample, `length_s` ago; nothing where the host
        does not tell it."""
        before, self._busy_s = self._busy_s, self._read_cpus()
        used_s = {
            cpu: max(0.0, busy_s - before[cpu])
            for cpu, busy_s in self._busy_s.items()
            if cpu in before
        }
        bound_to = used_s.keys() if self._cpus is None else self._cpus
        if length_s <= 0 or not used_s or any(cpu not in used_s for cpu in bound_to):
            return {}
        return {"bound_cpus_busy": sum(used_s[cpu] for cpu in bound_to) / length_s}

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
    """The GPUs that a node's ranks drive, as NVML has them, from the first sample to `close`.

    They are known by their UUIDs, which the agent found when it chose them, so CUDA_VISIBLE_DEVICES
    is of no concern here. What a GPU does not tell (a part of one, MIG, has no use and no power of
    its own) is asked for once and then left out.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        """Nothing is read where there is no GPU, no library or no driver."""
        self.facts: list[GpuFacts] = []
        self._gpus: list[_Gpu] = []
        self._nvml: Any = None
        if not uuids:
            return
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
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
        return GpuFacts(
            uuid=uuid,
            name=_text(name),
            driver=_text(driver),
            memory_bytes=int(memory.total) if memory is not None else None,
        )

    def sample(self, length_s: float) -> dict[str, float]:
        """Return each quantity that the GPU tells."""
        nvml = self._nvml
        reads: dict[str, Callable[[Any], Any]] = {
            "utilization": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "memory_bytes": lambda gpu: self._memory(gpu).used,
            "power_w": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
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


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
