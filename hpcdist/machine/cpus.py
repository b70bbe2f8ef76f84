"""The CPUs of this machine: which a rank may use, how many threads that makes, and how much of
their time its cgroups allow.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from hpcdist.machine.memory import CGROUPS, own_cgroups
from hpcdist.machine.process import kernel_text


def usable_cpus() -> list[int]:
    """Return the CPUs that this process may use, hyperthreads of one core beside each other."""

    def place(cpu: int) -> tuple[int, int, int]:  # neighbours share caches
        folder = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        socket, core = (kernel_text(f"{folder}/{of}_id") for of in ("physical_package", "core"))
        return int(socket or 0), int(core or 0), cpu

    return sorted(os.sched_getaffinity(0), key=place)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the name of this machine's CPUs; None where the kernel tells none, as on ARM."""
    for line in kernel_text(cpuinfo).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip() or None
    return None


def share_cpus(
    cpus: Sequence[int], num_shares: int, *, per_share: int | None = None
) -> list[list[int]]:
    """Divide CPUs among ranks (or simulated nodes).

    With as many CPUs as shares or more, each share has CPUs of its own, equally many (or
    `per_share`), neighbours together. With fewer CPUs than shares, shares take turns where that
    comes out even; where it does not, all share all: pinning 3 ranks to 2 CPUs would make one of
    them the straggler of every step.
    """
    if len(cpus) >= num_shares:
        size = min(per_share or len(cpus), len(cpus) // num_shares)
        return [list(cpus[index * size : (index + 1) * size]) for index in range(num_shares)]
    if num_shares % len(cpus) == 0:
        repeats = num_shares // len(cpus)
        return [[cpus[index // repeats]] for index in range(num_shares)]
    return [list(cpus) for _ in range(num_shares)]


def threads_per_rank(num_cpus: int, num_ranks: int, *, cpus_per_rank: int | None = None) -> int:
    """Return the CPU threads for each of the ranks that share so many CPUs."""
    return max(1, min(cpus_per_rank or num_cpus, num_cpus // num_ranks))


def cpu_quota(membership: str | None = None, root: Path = CGROUPS) -> float | None:
    """Return the smallest quota of this process's cgroups, in CPUs; None: no quota."""
    quotas: list[float] = []
    for own in own_cgroups("cpu", membership, root):
        for folder in (own, *own.parents):
            with contextlib.suppress(ValueError):  # none here, or `max`
                of_v1 = [kernel_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
                quota, period = map(float, kernel_text(folder / "cpu.max").split() or of_v1)
                if quota > 0:
                    quotas.append(quota / period)
    return min(quotas, default=None)
