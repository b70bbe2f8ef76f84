"""Memory of this machine: what is free, what ranks use, and the kernel's own out-of-memory kills.

Containers and schedulers set limits by cgroups, which are read here in version 2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcdist.machine.process import descendants, kernel_text

CGROUPS = Path("/sys/fs/cgroup")
_VMSTAT = Path("/proc/vmstat")


def cgroup_folders(membership: str | None, root: Path) -> list[Path]:
    """Return the folder of this process's cgroup, and those above it, which bound it as well.

    `membership` is the text of /proc/self/cgroup; None reads it there. root itself has no bound,
    but in a container it stands for a group of the host's that may.
    """
    if membership is None:
        membership = kernel_text("/proc/self/cgroup")
    for line in membership.splitlines():
        if line.startswith("0::/"):
            own = root / line.removeprefix("0::/")
            return [own, *(folder for folder in own.parents if folder.is_relative_to(root))]
    return []


def free_bytes() -> int:
    """Return the memory that this process could still get, of its machine and of its cgroups."""
    import psutil

    left, available = memory_left(), int(psutil.virtual_memory().available)
    return available if left is None else min(left, available)


def memory_left(membership: str | None = None, root: Path = CGROUPS) -> int | None:
    """Return the bytes left in the `cgroup_folders` of this process; None: no limit."""
    left: list[int] = []
    for folder in cgroup_folders(membership, root):
        with contextlib.suppress(ValueError):  # none here, or `max`
            limit = int(kernel_text(folder / "memory.max"))
            used = int(kernel_text(folder / "memory.current"))
            # Pages of files that the kernel drops before anything else.
            reclaimable = _number_in(folder / "memory.stat", "inactive_file") or 0
            left.append(max(0, limit - used + reclaimable))
    return min(left, default=None)


class KernelKills(NamedTuple):
    """A count of the processes that the kernel's out-of-memory killer has ended."""

    number: int = 0
    is_of_group: bool = False
    """In this process's memory cgroup; else on the whole machine, whoever's they were."""

    def tell_more(self, now: KernelKills) -> str | None:
        """Return who killed a process since this count, and why; None where nothing was counted."""
        if now.number <= self.number or now.is_of_group != self.is_of_group:
            return None
        if now.is_of_group:
            return "the kernel, for lack of memory: its cgroup counts that"
        number = now.number - self.number
        return f"the kernel, it seems: {number:,} of its host's processes ended for lack of memory"


def kernel_kills(
    membership: str | None = None, root: Path = CGROUPS, *, of_machine: Path = _VMSTAT
) -> KernelKills:
    """Count the kernel's kills in this process's memory cgroup; where that tells nothing, on the
    machine."""
    for folder in cgroup_folders(membership, root)[:1]:
        if (count := _number_in(folder / "memory.events", "oom_kill")) is not None:
            return KernelKills(count, is_of_group=True)
    return KernelKills(_number_in(of_machine, "oom_kill") or 0)


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, shared pages counted in part (PSS); 0 where it has ended."""
    kilobytes = _number_in(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    return 1024 * (kilobytes or 0)


def over_limit(pids: Mapping[int, int], limit_bytes: float) -> tuple[int, str] | None:
    """Return the rank that uses most, and why it must go, where all together exceed the limit.

    `pids`: local rank -> pid. What a rank started, such as DataLoader workers, counts as its own.
    """
    used = {
        local_rank: sum(proportional_bytes(process) for process in [pid, *descendants(pid)])
        for local_rank, pid in pids.items()
    }
    total = sum(used.values())
    if not used or total <= limit_bytes:
        return None
    largest = max(used, key=lambda local_rank: used[local_rank])
    return largest, (
        f"the node's ranks use {total / 1e9:.2f} GB, resources.mem_gb allows "
        f"{limit_bytes / 1e9:.2f} GB; this rank has most, {used[largest] / 1e9:.2f} GB"
    )


def _number_in(file: Path, name: str) -> int | None:
    """Return the number behind a name at the begin of a line; None where there is none."""
    lines = (line.split() for line in kernel_text(file).splitlines())
    return next((int(words[1]) for words in lines if words[:1] == [name]), None)
