"""Signs of work in a node's ranks and in the processes below them, by what the kernel counts.

A rank that waits in gloo sleeps, and one that waits in NCCL may spin: CPU time of the rank itself
proves nothing. Certain signs are steps, output, files that are read or written, and CPU time of
processes below it (a compiler, workers that load data). Nothing is asked of a file system but of
/proc, and nothing of the ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpcdist.agent.stacks import Stacks
from hpcdist.machine.process import descendants, process_use
from hpcdist.rank.board import ProgressBoard

_BUSY_CPUS = 0.05
"""More than threads take that only watch something."""
_BUSY_BYTES_PER_S = 1 << 16
"""Likewise: trackers read /proc, and tell their own processes of it."""
_MOST_BETWEEN_LOOKS_S = 30.0
_LOOKS_PER_NOTICE = 20
_SPIN_SHARE = 0.25
_TICKS_S = 0.02
"""CPU time is counted in hundredths of a second."""
STANDSTILL_LOOKS = 3
"""An agent that has not looked for so many times was suspended, with its ranks."""


class _Counts(NamedTuple):
    """What the kernel has counted of a process until now."""

    cpu_s: float
    cpu_of_ended_s: float
    """Of children that it has waited for."""
    read_bytes: int
    """By any call that reads, or from a disk."""
    written_bytes: int


@dataclass
class _Rank:
    """A rank as it was last looked at."""

    worked_s: float
    """When it last showed a certain sign, by the monotonic clock."""
    cpu_then: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2))
    """Time and own CPU time at some former looks, by the monotonic clock."""
    spins: bool = True
    """It has used CPU time since then."""
    progress: tuple[float, int] = (0.0, 0)
    told_bytes: int = 0
    """Bytes that it has written because its agent asked where it is."""
    counts: dict[int, _Counts] = field(default_factory=dict)
    """By pid, of itself and all below it."""


@dataclass
class WorkSigns:
    """The living ranks of one node, and when each last showed that it works."""

    board: ProgressBoard
    stacks: Stacks
    notice_s: float
    """Time without a sign that is worth a notice; 0: none is."""
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _looked_s: float = 0.0

    def begin(self) -> None:
        """Forget the ranks of an attempt that is over."""
        self._ranks.clear()

    def forgive(self) -> None:
        """Count from now on: until now none could go on."""
        now_s = time.monotonic()
        for rank in self._ranks.values():
            rank.worked_s = now_s

    def look(self, pids: Mapping[int, int]) -> bool:
        """Look at the ranks with these pids, by local rank; False where it is too early for it."""
        now_s = time.monotonic()
        since_s = now_s - self._looked_s
        every_s = min(_MOST_BETWEEN_LOOKS_S, self.notice_s / _LOOKS_PER_NOTICE)
        if not self.notice_s or since_s < every_s:
            return False
        self._looked_s = now_s
        if self._ranks.keys() - pids.keys() or since_s > STANDSTILL_LOOKS * max(1.0, every_s):
            self.forgive()  # the end of one is news for the others
        self._ranks = {
            local_rank: self._ranks.get(local_rank) or _Rank(now_s) for local_rank in pids
        }
        for local_rank, pid in pids.items():
            self._look_at(self._ranks[local_rank], local_rank, pid, now_s, since_s)
        return True

    def quiet_s(self) -> float:
        """Return for how long no rank has shown a certain sign; 0 where there is none."""
        worked = (rank.worked_s for rank in self._ranks.values())
        return self._looked_s - max(worked, default=self._looked_s)

    def spins(self, local_rank: int) -> bool:
        """Return True where a rank uses CPU time, and so may work."""
        rank = self._ranks.get(local_rank)
        return rank is None or rank.spins

    def _look_at(
        self, rank: _Rank, local_rank: int, pid: int, now_s: float, since_s: float
    ) -> None:
        before, rank.counts = rank.counts, _count_all(pid)
        slot = self.board.read(local_rank)
        told_before, rank.told_bytes = rank.told_bytes, self.stacks.num_bytes(local_rank)
        is_further = rank.progress != (progress := (slot.alive_s, slot.boundary))
        rank.progress = progress
        own, own_before = rank.counts.get(pid), before.get(pid)
        if own is None or own_before is None:  # it has just begun, or may not be looked at
            rank.worked_s = now_s
            return
        rank.spins = self._has_spun(rank, now_s, own.cpu_s)
        told_bytes = rank.told_bytes - told_before
        if is_further or own.written_bytes - own_before.written_bytes > told_bytes:
            rank.worked_s = now_s
            return
        cpu_s, num_bytes = 0.0, 0
        for one, counts in rank.counts.items():
            last = before.get(one, _NOTHING)
            cpu_s += counts.cpu_of_ended_s - last.cpu_of_ended_s
            num_bytes += counts.read_bytes - last.read_bytes
            if one != pid:
                cpu_s += counts.cpu_s - last.cpu_s
                num_bytes += counts.written_bytes - last.written_bytes
        if cpu_s > _most_idle_s(since_s) or num_bytes > _BUSY_BYTES_PER_S * since_s:
            rank.worked_s = now_s

    def _has_spun(self, rank: _Rank, now_s: float, cpu_s: float) -> bool:
        """Return True where a rank used CPU time; a look at its stacks takes some, too, so it is
        that of a while."""
        then = rank.cpu_then
        if not then or now_s - then[-1][0] > self.notice_s * _SPIN_SHARE:
            then.append((now_s, cpu_s))
        since_s, before_s = then[0]
        return cpu_s - before_s > _most_idle_s(now_s - since_s)


def _most_idle_s(length_s: float) -> float:
    return _BUSY_CPUS * length_s + _TICKS_S


_NOTHING = _Counts(0.0, 0.0, 0, 0)


def _count_all(pid: int) -> dict[int, _Counts]:
    found: dict[int, _Counts] = {}
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if (counts := _count(one)) is not None:
                found[one] = counts
    return found


def _count(pid: int) -> _Counts | None:
    use = process_use(pid)
    if use is None:
        return None
    io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    read_bytes = int(io["rchar"]) + int(io["read_bytes"])
    return _Counts(use.cpu_s, use.cpu_of_ended_s, read_bytes, int(io["wchar"]))
