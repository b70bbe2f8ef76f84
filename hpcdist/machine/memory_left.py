"""How much memory this process's cgroups leave it: containers and schedulers bound it there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcdist.machine.cgroups import CGROUPS, bounding_groups


@dataclass(frozen=True)
class _Names:
    """Of the files in a folder of a cgroup."""

    limit: str
    used: str
    reclaimable: str
    """The line of memory.stat with file pages that the kernel drops before anything else."""


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def memory_left(membership: str | None = None, root: Path = CGROUPS) -> int | None:
    """Bytes left by this process's memory cgroup and those above it; None: there is no limit.

    `membership` is what /proc/self/cgroup says, and is read there by default.
    """
    groups = bounding_groups("memory", membership, root)
    found = [_left(group.folder, _V2 if group.is_v2 else _V1) for group in groups]
    return min((left for left in found if left is not None), default=None)


def _left(folder: Path, names: _Names) -> int | None:
    try:
        limit = int((folder / names.limit).read_text())
        used = int((folder / names.used).read_text())
    except (OSError, ValueError):  # none here, or `max`
        return None
    return max(0, limit - used + _reclaimable(folder, names))


def _reclaimable(folder: Path, names: _Names) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == names.reclaimable)
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
