"""Memory of this machine: what is free, what ranks use, and the kernel's own out-of-memory kills.

Cgroups bound it, of version 1 and 2: containers and schedulers set limits there.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.machine.cgroups import CGROUPS, bounding_groups
from hpcdist.machine.process import descendants

_VMSTAT = Path("/proc/vmstat")
_SHARE = 0.5
"""Usable share of free memory: buffers of gloo and NCCL, and other programs, need the rest."""


class _Names(NamedTuple):
    """Names of the files in a folder of a memory cgroup."""

    limit: str
    used: str
    reclaimable: str
    """The line of memory.stat with file pages that the kernel drops before anything else."""
    kills: str
    """The file with the line `oom_kill`."""


_V1 = _Names(
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"
)
_V2 = _Names("memory.max", "memory.current", "inactive_file", "memory.events")


def free_bytes() -> int:
    """Return the memory that this process could still get: of its machine, of its cgroups, and of
    the limit of its address space (ulimit -v)."""
    import psutil

    free = [int(psutil.virtual_memory().available), memory_left()]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        free.append(max(0, limit - pages * resource.getpagesize()))
    return min(one for one in free if one is not None)


def memory_left(membership: str | None = None, root: Path = CGROUPS) -> int | None:
    """Return the bytes left in the `bounding_groups` of this process; None: no limit."""
    left: list[int] = []
    for folder, is_v2 in bounding_groups("memory", membership, root):
        names = _V2 if is_v2 else _V1
        with contextlib.suppress(OSError, ValueError):  # none here, or `max`
            limit = int((folder / names.limit).read_text())
            used = int((folder / names.used).read_text())
            reclaimable = _number_in(folder / "memory.stat", names.reclaimable) or 0
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
    for folder, is_v2 in bounding_groups("memory", membership, root, with_parents=False):
        count = _number_in(folder / (_V2 if is_v2 else _V1).kills, "oom_kill")
        if count is not None:
            return KernelKills(count, is_of_group=True)
    return KernelKills(_number_in(of_machine, "oom_kill") or 0)


def largest_buffer(
    free_bytes: float, *, num_sharing: int, limit_bytes: float | None, num_in_limit: int
) -> int:
    """Return the bytes of the largest buffer that a rank should have.

    `free_bytes` is shared by `num_sharing` ranks, `limit_bytes` (resources.mem_gb) by
    `num_in_limit`.
    """
    shares = [free_bytes / num_sharing]
    if limit_bytes is not None:
        shares.append(limit_bytes / num_in_limit)
    return int(_SHARE * min(shares))


def split_by_room(sizes: Sequence[int], largest_bytes: int) -> tuple[list[int], list[int]]:
    """Return the sizes that fit, and those that do not, in their order."""
    fitting = [size for size in sizes if size <= largest_bytes]
    return fitting, [size for size in sizes if size > largest_bytes]


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
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
        return next((int(words[1]) for words in lines if words[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None
