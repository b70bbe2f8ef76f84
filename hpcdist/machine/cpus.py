"""Which CPUs each rank may use, and how many threads that makes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def usable_cpus() -> list[int]:
    """CPUs that this process may use, hyperthreads of one core beside each other."""
    return sorted(os.sched_getaffinity(0), key=_place)


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
    """CPU threads for each of the ranks that share so many CPUs."""
    return max(1, min(cpus_per_rank or num_cpus, num_cpus // num_ranks))


def _place(cpu: int) -> tuple[int, int, int]:
    """(socket, core, cpu): the order in which neighbours share caches."""
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (
            int((folder / "physical_package_id").read_text()),
            int((folder / "core_id").read_text()),
            cpu,
        )
    except (OSError, ValueError):
        return 0, cpu, cpu
