"""Memory of this machine: what is free, what ranks use, and the kernel's own out-of-memory kills.

Containers and schedulers set limits by cgroups, whose files are others in version 1 than in 2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcdist.machine.process import descendants, kernel_text

CGROUPS = Path("/sys/fs/cgroup")
_V1 = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
_V2 = ("max", "current", "inactive_file")
"""Names in a memory cgroup: of the limit, of what is used, and of the pages of files among that,
which the kernel drops before anything else."""
_VMSTAT = Path("/proc/vmstat")


def own_cgroups(controller: str, membership: str | None, root: Path) -> list[Path]:
    """Return the folders of this process's cgroups that may bound it, such as by `memory`; those
    above them may as well, and root in a container, where it stands for a group of the host's.

    `membership` is the text of /proc/self/cgroup; None reads it there.
    """
    lines = (kernel_text("/proc/self/cgroup") if membership is None else membership).splitlines()
    return [
        root / (controller if controllers else "") / path.lstrip("/")
        for _, controllers, path in (line.split(":", 2) for line in lines)
        if not controllers or controller in controllers.split(",")
    ]


def free_bytes() -> int:
    """Return the memory that this process could still get, of its machine and of its cgroups."""
    left, told = memory_left(), kernel_text("/proc/meminfo").partition("MemAvailable:")[2].split()
    available = int(told[0]) * 1024 if told else 0
    return available if left is None else min(left, available)


def memory_left(membership: str | None = None, root: Path = CGROUPS) -> int | None:
    """Return the bytes left in the cgroups of this process; None: no limit."""
    left: list[int] = []
    for own in own_cgroups("memory", membership, root):
        for folder in (own, *own.parents):
            with contextlib.suppress(ValueError):  # none here, or `max`
                *names, of_files = _V2 if (folder / "memory.max").exists() else _V1
                limit, used = (int(kernel_text(folder / f"memory.{name}")) for name in names)
                pages = _number_in(folder / "memory.stat", of_files) or 0
                left.append(max(0, limit - used + pages))
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
    for folder in own_cgroups("memory", membership, root):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _number_in(folder / name, "oom_kill")) is not None:
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
