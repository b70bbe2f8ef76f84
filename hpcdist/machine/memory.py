"""Memory of a node's ranks against the job's limit, and the kernel's own out-of-memory kills."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpcdist.machine.process import descendants


def proportional_bytes(pid: int) -> int:
    """Memory of a process, pages shared with others counted in part (PSS); 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(
        (int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0
    )


def over_limit(pids: Mapping[int, int], limit_bytes: float) -> tuple[int, str] | None:
    """The local rank that uses most, and why it must go, where all together exceed the limit.

    `pids`: local rank -> pid. What a rank started, such as DataLoader workers, counts as its own.
    """
    used = {
        local_rank: sum(proportional_bytes(one) for one in [pid, *descendants(pid)])
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


def kernel_kills() -> int:
    """How often the kernel's out-of-memory killer has struck in this process's memory cgroup."""
    for path, key in _counters():
        try:
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
        except (OSError, ValueError):
            continue
    return 0


def _counters() -> list[tuple[Path, str]]:
    """Files that count the kills, for cgroup v2 and v1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[tuple[Path, str]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            found.append((Path("/sys/fs/cgroup", relative, "memory.events"), "oom_kill"))
        elif "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/memory", relative)
            found.append((folder / "memory.oom_control", "oom_kill"))
    return found
