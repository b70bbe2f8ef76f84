"""How many CPUs' worth of time this process's cgroups allow; Linux containers and some schedulers
bound the time and not the CPUs."""

from __future__ import annotations

from pathlib import Path

from hpcdist.machine.cgroups import CGROUPS, bounding_groups


def cpu_quota(membership: str | None = None, root: Path = CGROUPS) -> float | None:
    """The smallest quota of this process's cgroup and those above it, in CPUs; None: no quota.

    `membership` is what /proc/self/cgroup says, and is read there by default.
    """
    groups = bounding_groups("cpu", membership, root)
    found = [(_quota_v2 if group.is_v2 else _quota_v1)(group.folder) for group in groups]
    return min((quota for quota in found if quota is not None), default=None)


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
