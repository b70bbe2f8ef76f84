"""How many bytes a rank may use on its machine, and which sizes fit."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

_SHARE = 0.5
"""Of what is free: gloo and NCCL have buffers of their own, and other programs want some."""


def machine_id() -> str:
    """Tells machines apart; simulated nodes on one machine have the same."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return boot.read_text().strip()
    except OSError:
        return os.uname().nodename


def free_host_bytes() -> int:
    """Memory that this process could still get: of its machine, of its cgroups, and of its own
    limit (ulimit -v)."""
    import psutil

    rests = [*_cgroup_rests(), *_address_space_rest()]
    return min([int(psutil.virtual_memory().available), *rests])


def largest_buffer(
    free_bytes: float, *, num_sharing: int, limit_bytes: float | None, num_in_limit: int
) -> int:
    """Bytes of the largest buffer that a rank should have.

    `free_bytes` is shared by `num_sharing` ranks, `limit_bytes` (resources.mem_gb) by
    `num_in_limit`.
    """
    shares = [free_bytes / num_sharing]
    if limit_bytes is not None:
        shares.append(limit_bytes / num_in_limit)
    return int(_SHARE * min(shares))


def split_by_room(sizes: Sequence[int], largest_bytes: int) -> tuple[list[int], list[int]]:
    """The sizes that fit, and those that do not, in their order."""
    fitting = [size for size in sizes if size <= largest_bytes]
    return fitting, [size for size in sizes if size > largest_bytes]


def _address_space_rest() -> list[int]:
    """What a limit of this process's address space leaves, where it has one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return [max(0, limit - pages * resource.getpagesize())]


def _cgroup_rests() -> list[int]:
    """What is left in this process's memory cgroup and those above it; cgroup v2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    folder = Path("/sys/fs/cgroup", own.lstrip("/"))
    found = [_rest(one) for one in (folder, *folder.parents)]
    return [rest for rest in found if rest is not None]


def _rest(folder: Path) -> int | None:
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        statistics = (folder / "memory.stat").read_text()
    except (OSError, ValueError):  # none here, or `max`
        return None
    return max(0, limit - used + _reclaimable(statistics))


def _reclaimable(statistics: str) -> int:
    """Pages of files that the kernel gives up for others."""
    fields = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
    return int(fields.get("inactive_file", 0))
