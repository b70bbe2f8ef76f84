"""How many CPUs' worth of time this process's cgroups allow; Linux containers and some schedulers
bound the time and not the CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cpu_quota(membership: str | None = None, root: Path = _CGROUPS) -> float | None:
    """The smallest quota of this process's cgroup and those above it, in CPUs; None: no quota.

    `membership` is what /proc/self/cgroup says, and is read there by default.
    """
    if membership is None:
        try:
            membership = Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
    return min(_quotas(membership, root), default=None)


def _quotas(membership: str, root: Path) -> Iterator[float]:
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            folders, read = upwards(root, path), _quota_v2
        elif "cpu" in controllers.split(","):
            folders, read = upwards(root / "cpu", path), _quota_v1
        else:
            continue
        for folder in folders:
            quota = read(folder)
            if quota is not None:
                yield quota


def upwards(root: Path, path: str) -> list[Path]:
    """The cgroup and those above it; root itself has no quota, but in a container it stands for a
    group of the host's that may."""
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # none here, or `max`
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = float((folder / "cpu.cfs_quota_us").read_text())
        period = float((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
