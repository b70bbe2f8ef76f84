"""Sampling of what a run uses of its nodes: GPUs through NVML, CPUs through /proc.

Every agent has one sampler, a thread that lives as long as an attempt's ranks do, and writes
`events/node-NNNNN.jsonl` (docs/events.md). A driver that answers late keeps only this thread from
its work, and one that hangs does not outlive the agent: it is a daemon.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

from msgspec.structs import replace

from hpcdist.machine.cpus import cpu_model, cpu_quota
from hpcdist.machine.gpus import memory_of, nvml
from hpcdist.machine.process import descendants, process_use
from hpcdist.rank.context import RankOrder
from hpcdist.runs import nodes
from hpcdist.runs.events import EventWriter, GpuFacts, GpuWindow, NodeBegin, UsageWindow
from hpcdist.runs.run import Run

_FIRST_S = 2.0
"""From the start of the ranks: until then imports for samples would be in their way."""
_LOOK_S = 0.2

_WINDOW_SHARE = 0.01
_FASTEST_S = 0.5
_GROWTH = 0.1
"""Shares of the time so far: windows grow, so that a day makes some 700 of them, and begin close to
each other, so that short runs have some."""

_PROC_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and steal, which another guest of the
hypervisor used. That of guests is in user and nice."""
_TICKS_PER_S = 100  # USER_HZ: the kernel's interface has no other

_OF_GPU: dict[str, Callable[[Any, Any], float]] = {
    "utilization": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "memory_bytes": lambda nvml, gpu: float(memory_of(nvml, gpu).used),
}

_XIDS_OF_PROGRAMS = {13, 31, 43, 45, 68, 109}
"""Xids that programs cause, as NVIDIA's device plugin for Kubernetes has them."""
_LAST_LOOK_S = 1.0

_Living = Callable[[], Mapping[int, int]]


class UsageSampler:
    """Samples one attempt after the other; `every_s` 0 is off."""

    def __init__(self, run: Run, *, every_s: float, log: Callable[[str], None]) -> None:
        self.gpu_share: float | None = None
        """Shares of the last moment in which the GPUs worked, added up; None: not known."""
        self._run = run
        self._every_s = every_s
        self._log = log
        self._stop = Event()
        self._thread: Thread | None = None

    def begin(self, orders: Sequence[RankOrder], living: _Living, gpus: Sequence[str]) -> None:
        """Sample an attempt, whose ranks are being started; `living` are the pids of those that
        live, `gpus` the UUIDs of theirs."""
        if not self._every_s:
            return
        self._stop.set()  # of an attempt that is over
        self._stop = Event()
        arguments = (self._stop, orders, living, gpus)
        try:
            self._thread = Thread(target=self._sample, args=arguments, daemon=True)
            self._thread.start()
        except RuntimeError as error:  # the limit of threads
            self._log(f"what the ranks use is not sampled: {error}")

    def end(self) -> None:
        """Stop once the GPUs have told whether a fault of theirs may have ended the ranks."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_LAST_LOOK_S)

    def _sample(
        self, stop: Event, orders: Sequence[RankOrder], living: _Living, uuids: Sequence[str]
    ) -> None:
        """Sample until no rank lives; write each window as it is full."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        order = orders[0]
        try:
            begin = NodeBegin(
                begin_s=time.time(),
                node=order.node_rank,
                host=order.host,
                cpus=sorted({cpu for each in orders for cpu in each.cpus}) or None,
                num_cpus=min(order.num_cpus, cpu_quota() or order.num_cpus),
                cpu_model=cpu_model(),
            )
            path = self._run.usage_file(order.node_rank, order.attempt)
            with contextlib.ExitStack() as stack:
                events = stack.enter_context(contextlib.closing(EventWriter(path)))
                events.write(begin)  # also of a run too short for samples
                while not living() and not stop.is_set():
                    stop.wait(_LOOK_S)  # a node may take long to import what they need
                if stop.wait(min(_FIRST_S, self._every_s)):
                    return
                library = stack.enter_context(nvml())
                cpus, devices = CpuReader(begin.cpus), GpuReader(library, uuids)
                events.write(replace(begin, host_cpus=cpus.num_cpus, gpus=devices.facts))
                begun_s = written_s = time.monotonic()
                cpus.sample(living().values(), 0.0)
                devices.sample()
                passed_s = 0.0
                while not stop.wait(min(self._every_s, max(_FASTEST_S, _GROWTH * passed_s))):
                    if not (pids := list(living().values())):
                        break
                    self.gpu_share = devices.add_up_shares()
                    passed_s, wall_s = time.monotonic() - begun_s, time.monotonic() - written_s
                    if wall_s >= _WINDOW_SHARE * passed_s:
                        written_s += wall_s
                        events.write(
                            UsageWindow(
                                time_s=time.time(),
                                wall_s=wall_s,
                                gpus=devices.sample(),
                                **cpus.sample(pids, wall_s),
                            )
                        )
                for fault in devices.faults():
                    nodes.note("gpu", order.host, self._run.id, fault)
        except Exception as error:  # noqa: BLE001 - what is not known must not end a run
            self._log(f"what the ranks use is not sampled any more: {error!r}")


class CpuReader:
    """CPU time of a node's ranks, and of all processes of its host; begins at once.

    That of a rank has all processes below it. It is exact: what a DataLoader worker used goes to
    its parent as it is waited for, so nothing is lost with workers that end.

    /proc/stat is the whole machine's, in a container too. Where a container has a view of its own
    (lxcfs), the numbers of CPUs that ranks are bound to are not in it: nothing is told of them.
    """

    def __init__(self, cpus: Sequence[int] | None, *, proc_stat: Path = _PROC_STAT) -> None:
        """`cpus`: those that ranks are bound to; None where they are bound to none."""
        self._cpus = cpus
        self._proc_stat = proc_stat
        self._ranks_s: dict[int, float] = {}
        self._host_s = self._read_host()
        self.num_cpus = len(self._host_s)
        """The number of CPUs that are online; of a container's own view, those in it."""

    def sample(self, ranks: Iterable[int], length_s: float) -> dict[str, float]:
        """Return `cpus_busy`, of ranks that were there at the last sample, `length_s` ago, and
        `bound_cpus_busy`; without what is not known. `ranks` are pids."""
        before, self._ranks_s = self._ranks_s, {}
        for rank in ranks:
            uses = filter(None, map(process_use, [rank, *descendants(rank)]))
            self._ranks_s[rank] = sum(use.cpu_s + use.cpu_of_ended_s for use in uses)
        host_before, self._host_s = self._host_s, self._read_host()
        cpus = host_before.keys() if self._cpus is None else self._cpus
        found = {}
        if length_s > 0 and (known := self._ranks_s.keys() & before.keys()):
            used_s = sum(max(0.0, self._ranks_s[rank] - before[rank]) for rank in known)
            found["cpus_busy"] = used_s / length_s
        if length_s > 0 and all(cpu in host_before and cpu in self._host_s for cpu in cpus):
            used_s = sum(max(0.0, self._host_s[cpu] - host_before[cpu]) for cpu in cpus)
            found["bound_cpus_busy"] = used_s / length_s
        return found

    def _read_host(self) -> dict[int, float]:
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
        self._nvml = library
        self._gpus: list[Any] = []
        self.facts: list[GpuFacts] = []
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
        self._num_ecc = list(map(self._count_ecc, self._gpus))
        self._xids: Any = None
        if self._gpus:
            with contextlib.suppress(library.NVMLError):
                xids, kind = library.nvmlEventSetCreate(), library.nvmlEventTypeXidCriticalError
                for gpu in self._gpus:
                    library.nvmlDeviceRegisterEvents(gpu, kind, xids)
                self._xids = xids

    def add_up_shares(self) -> float | None:
        """Return the shares of this moment in which the GPUs work, added up; None where one does
        not tell."""
        shares = [self._read(gpu, "utilization") for gpu in self._gpus]
        known = [share for share in shares if share is not None]
        return sum(known) if known and len(known) == len(shares) else None

    def sample(self) -> list[GpuWindow]:
        """Return what each GPU tells of this moment; a part of one (MIG) has no use of its own."""
        return [
            GpuWindow(**{name: self._read(gpu, name) for name in _OF_GPU}) for gpu in self._gpus
        ]

    def faults(self) -> Iterator[str]:
        """Yield what GPUs have done wrong since the beginning; what was before stands in the log of
        the kernel, which users may not read."""
        for index, gpu in enumerate(self._gpus):
            if (number := self._count_ecc(gpu) - self._num_ecc[index]) > 0:
                errors = f"had {number:g} memory errors that ECC could not correct"
                yield f"GPU {index} {'was lost' if number == math.inf else errors}"
        if self._xids is not None:
            with contextlib.suppress(self._nvml.NVMLError):  # there are no more of them
                while xid := self._nvml.nvmlEventSetWait(self._xids, 1).eventData:
                    if xid not in _XIDS_OF_PROGRAMS:
                        yield f"Xid {xid}"

    def _count_ecc(self, gpu: Any) -> float:
        """Return how many errors ECC could not correct since the driver was loaded; 0 where it does
        not count, and infinity where the GPU is lost."""
        nvml = self._nvml
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        try:
            return float(nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, since))
        except nvml.NVMLError as error:
            return math.inf if error.value == nvml.NVML_ERROR_GPU_IS_LOST else 0.0

    def _read(self, gpu: Any, name: str) -> float | None:
        with contextlib.suppress(self._nvml.NVMLError):
            return _OF_GPU[name](self._nvml, gpu)
        return None
