"""CPU time and memory of a node's ranks, with all processes below them, and of the whole node.

CPU time is exact: what a DataLoader worker used goes to its parent as it is waited for, so nothing
is lost with workers that end. Memory that processes share counts once, and is what the kernel's
count of it (PSS) costs time for, some 70 ms per GB in ordinary pages: it is asked for as often as
`_MOST_COST` allows, one process after the other, of each at most once a minute. In between the
resident memory, which costs nothing, tells by how much a process grew. Where a process was not yet
counted at all, there is no figure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from hpcdist.machine.memory import proportional_bytes
from hpcdist.machine.process import descendants

_MOST_COST = 0.002
"""Share of the time."""
_FIRST_COST_S = 0.1
_KNOWN_FOR_S = 60.0


@dataclass
class _Seen:
    """A process, and what is known of its memory."""

    process: psutil.Process
    rss_bytes: int = 0
    shared_bytes: int | None = None
    """By how much less than its resident memory it counted, when it was last counted."""
    counted_s: float = 0.0


class RankProcesses:
    """The ranks of one node, sampled again and again."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._cpu_s: dict[int, float] = {}
        self._begin_s = time.monotonic()
        self._cost_s = 0.0

    def sample(self, ranks: Iterable[int], length_s: float) -> dict[str, float]:
        """`cpus_busy` since the last sample, `length_s` ago, of ranks that were there then, and
        `memory_bytes` now, of the processes with the pids `ranks` and all below them."""
        trees = {rank: [rank, *descendants(rank)] for rank in ranks}
        self._look_at(pid for tree in trees.values() for pid in tree)
        before, self._cpu_s = self._cpu_s, {}
        found: dict[str, float] = {}
        for rank, tree in trees.items():
            self._cpu_s[rank] = sum(map(self._cpu_time_s, tree))
        known = self._cpu_s.keys() & before.keys()
        if known and length_s > 0:
            used_s = sum(max(0.0, self._cpu_s[rank] - before[rank]) for rank in known)
            found["cpus_busy"] = used_s / length_s
        memory_bytes = self._memory_bytes()
        if memory_bytes is not None:
            found["memory_bytes"] = memory_bytes
        return found

    def _look_at(self, pids: Iterable[int]) -> None:
        """Know the processes that are there, and no others."""
        kept: dict[int, _Seen] = {}
        for pid in pids:
            try:
                seen = self._seen.get(pid) or _Seen(psutil.Process(pid))
                seen.rss_bytes = seen.process.memory_info().rss
            except psutil.Error:  # it has just ended
                continue
            kept[pid] = seen
        self._seen = kept

    def _cpu_time_s(self, pid: int) -> float:
        """With that of its children which it has waited for."""
        seen = self._seen.get(pid)
        try:
            return sum(seen.process.cpu_times()[:4]) if seen else 0.0
        except psutil.Error:
            return 0.0

    def _memory_bytes(self) -> int | None:
        living = [seen for seen in self._seen.values() if seen.rss_bytes]  # else it has just ended
        for seen in sorted(living, key=lambda one: one.counted_s):
            now_s = time.monotonic()
            is_known = seen.shared_bytes is not None and now_s - seen.counted_s < _KNOWN_FOR_S
            if is_known or self._cost_s >= _FIRST_COST_S + _MOST_COST * (now_s - self._begin_s):
                break
            self._count(seen)
        if not living or any(seen.shared_bytes is None for seen in living):
            return None
        return sum(max(0, seen.rss_bytes - (seen.shared_bytes or 0)) for seen in living)

    def _count(self, seen: _Seen) -> None:
        begin_s = time.monotonic()
        pss_bytes = proportional_bytes(seen.process.pid)  # 0 where that is not permitted
        seen.shared_bytes = seen.rss_bytes - (pss_bytes or seen.rss_bytes)
        seen.counted_s = time.monotonic()
        self._cost_s += seen.counted_s - begin_s


class NodeProcesses:
    """All processes of the node, whoever's they are."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def sample(self, length_s: float) -> dict[str, float]:
        """`node_cpus_busy` since the last sample, and `node_memory_bytes` now."""
        now = psutil.cpu_times()
        used_s = _busy_s(now._asdict()) - _busy_s(self._before._asdict())
        self._before = now
        memory = psutil.virtual_memory()
        found = {"node_memory_bytes": float(memory.total - memory.available)}
        if length_s > 0:
            found["node_cpus_busy"] = max(0.0, used_s) / length_s
        return found


def _busy_s(times: Mapping[str, float]) -> float:
    """Of all CPUs together; `guest` is in `user`, `guest_nice` in `nice`."""
    return sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
