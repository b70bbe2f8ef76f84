"""How much memory this process's cgroups leave it: containers and schedulers bound it there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdist.launch.cpu_quota import upwards

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Names:
    """Of the files in a folder of a cgroup."""

    limit: str
    used: str
    reclaimable: str
    """The line of memory.stat with file pages that the kernel drops before anything else."""


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def memory_left(membership: str | None = None, root: Path = _CGROUPS) -> int | None:
    """Bytes left by this process's memory cgroup and those above it; None: there is no limit.

    `membership` is what /proc/self/cgroup says, and is read there by default.
    """
    if membership is None:
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
    return min(_each_left(membership, root), default=None)


def _each_left(membership: str, root: Path) -> Iterator[int]:
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folders, names = upwards(root, path), _V2
        elif "memory" in controllers.split(","):
            folders, names = upwards(root / "memory", path), _V1
        else:
            continue
        for folder in folders:
            left = _left(folder, names)
            if left is not None:
                yield left


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
