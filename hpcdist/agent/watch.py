"""Watching the living ranks of a node from outside: memory, signs of work, and where they hang.

A rank that waits in gloo sleeps, and one that waits in NCCL may spin: CPU time of the rank itself
proves nothing. Certain signs of work are steps, output, files that are read or written, and CPU
time of processes below it (a compiler, workers that load data), by what the kernel counts. Nothing
is asked of a file system but of /proc, and nothing of the ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcdist.agent.coordinator import STANDSTILL_S
from hpcdist.agent.forkserver import StackMemory
from hpcdist.agent.messages import HangReport
from hpcdist.agent.outcome.ends import basic_end
from hpcdist.agent.outcome.hang import limits_of
from hpcdist.job.spec import JobSpec
from hpcdist.machine import memory
from hpcdist.machine.process import descendants, process_use, send_signal
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.context import RankOrder
from hpcdist.runs.requests import Collectives, ThreadStack, place_of
from hpcdist.runs.run import Run

_BUSY_CPUS = 0.05
"""More than threads take that only watch something."""
_BUSY_BYTES_PER_S = 1 << 16
"""Likewise: trackers read /proc, and tell their own processes of it."""
_MOST_BETWEEN_LOOKS_S = 30.0
_LOOKS_PER_LIMIT = 20
_TICKS_S = 0.02
"""CPU time is counted in hundredths of a second."""


@dataclass(frozen=True, eq=False)
class LivingRank:
    """One rank, as its agent has it at a moment."""

    order: RankOrder
    pid: int


@dataclass
class _Signs:
    """A rank as it was last looked at."""

    worked_s: float
    """When it last showed a certain sign, by the monotonic clock."""
    spins: bool = True
    """It has used CPU time since the look before."""
    progress: tuple[float, int] = (0.0, 0)
    told_bytes: int = 0
    """Bytes that it has written because its agent asked where it is."""
    uses: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """What the kernel has counted until now, by pid, of itself and all below it: `_uses_by_pid`."""


@dataclass
class RankWatch:
    """The living ranks of one node, and what is seen of them from outside."""

    run: Run
    job: JobSpec
    board: ProgressBoard
    stacks: StackMemory
    gpu_share: Callable[[], float | None] = lambda: None
    """Shares of the last moment in which the ranks' GPUs worked, added up; None: not known."""
    orders: dict[int, RankOrder] = field(default_factory=dict)
    """Orders of the living ranks, by local rank."""
    pids: dict[int, int] = field(default_factory=dict)
    """Pids of the ranks that have been forked, by local rank."""
    _signs: dict[int, _Signs] = field(default_factory=dict)
    _looked_s: float = 0.0
    _told_s: float = 0.0
    """Time without a sign of work that the coordinator has heard of; 0: ranks work."""
    _over_memory: dict[int, str] = field(default_factory=dict)
    _kernel_kills: memory.KernelKills = field(default_factory=memory.kernel_kills)

    def begin(self, orders: list[RankOrder]) -> None:
        self.board.clear()
        self.stacks.clear()
        self.orders = {order.local_rank: order for order in orders}
        self.pids.clear()
        self._signs.clear()
        self._looked_s, self._told_s = time.monotonic(), 0.0
        self._over_memory.clear()

    def living(self) -> list[LivingRank]:
        orders = self.orders
        return [LivingRank(orders[one], pid) for one, pid in self.pids.items() if one in orders]

    def remove(self, local_rank: int) -> RankOrder | None:
        """Watch a rank no more that has ended; return its order, None where it has none."""
        self.pids.pop(local_rank, None)
        return self.orders.pop(local_rank, None)

    def keep_memory_limit(self) -> None:
        """Kill the rank with most memory where all together exceed `resources.mem_gb`."""
        limit_gb = self.job.resources.mem_gb
        if limit_gb is None or self._over_memory:
            return
        if (over := memory.over_limit(self.pids, limit_gb * 1e9)) is not None:
            self._over_memory = dict([over])
            send_signal(self.pids[over[0]], signal.SIGKILL)

    def out_of_memory(self, local_rank: int, status: int) -> str | None:
        """Return the reason where a rank with waitpid's `status` was killed for its memory."""
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return None
        if local_rank in self._over_memory:
            return self._over_memory[local_rank]
        kills = memory.kernel_kills()
        if (killer := self._kernel_kills.tell_more(kills)) is None:
            return None
        self._kernel_kills = kills
        return f"killed by {killer}"

    def keep_stacks(self) -> None:
        """Write what ranks have told of their stacks into files. Raises OSError."""
        for local_rank, order in self.orders.items():
            self.stacks.keep(local_rank, self.run.stacks_file(order.rank, order.attempt))

    def look(self) -> float | None:
        """Return for how long no rank has shown a certain sign of work, once that is too long, and
        again each time it has become longer by as much; 0 when one works again; None: no news."""
        now_s, limit_s = time.monotonic(), min(limits_of(self.job))
        since_s = now_s - self._looked_s
        every_s = min(_MOST_BETWEEN_LOOKS_S, limit_s / _LOOKS_PER_LIMIT)
        if limit_s == math.inf or since_s < every_s:
            return None
        self._looked_s = now_s
        # The end of a rank is news for the others, and in a suspension none could go on.
        is_news = self._signs.keys() - self.pids.keys() or since_s > max(STANDSTILL_S, 3 * every_s)
        self._signs = {one: self._signs.get(one) or _Signs(now_s) for one in self.pids}
        for local_rank, pid in self.pids.items():
            if self._has_worked(local_rank, pid, since_s) or is_news:
                self._signs[local_rank].worked_s = now_s
        quiet_s = now_s - max((one.worked_s for one in self._signs.values()), default=now_s)
        told_s = self._told_s
        if quiet_s < limit_s:
            self._told_s = 0.0
            return 0.0 if told_s else None
        if quiet_s < told_s + limit_s:
            return None
        self._told_s = quiet_s
        return quiet_s

    def _has_worked(self, local_rank: int, pid: int, since_s: float) -> bool:
        """Return True where a rank has shown a certain sign of work since the last look."""
        before, slot = self._signs[local_rank], self.board.read(local_rank)
        signs = self._signs[local_rank] = _Signs(
            worked_s=before.worked_s,
            progress=(slot.alive_ns, slot.boundary),
            told_bytes=self.stacks.num_bytes(local_rank),
            uses=_uses_by_pid(pid),
        )
        if pid not in signs.uses or pid not in before.uses:
            return True  # it has just begun, or may not be looked at
        used = {
            one: [now - then for now, then in zip(use, before.uses.get(one, [0] * 4), strict=True)]
            for one, use in signs.uses.items()
        }
        own_cpu_s, _, _, own_written_bytes = used[pid]
        most_idle_s = _BUSY_CPUS * since_s + _TICKS_S
        signs.spins = own_cpu_s > most_idle_s
        cpu_s = sum(one[0] + one[1] for one in used.values()) - own_cpu_s
        num_bytes = sum(one[2] + one[3] for one in used.values()) - own_written_bytes
        return (
            signs.progress != before.progress
            or own_written_bytes > signs.told_bytes - before.told_bytes
            or cpu_s > most_idle_s
            or num_bytes > _BUSY_BYTES_PER_S * since_s
        )

    def hang_report(
        self, rank: LivingRank, threads: list[ThreadStack], collectives: Collectives | None
    ) -> HangReport:
        """Return where a living rank is; `collectives` is None where it did not answer."""
        order, signs = rank.order, self._signs.get(rank.order.local_rank)
        frames = threads[0].frames if threads else []
        where, calls, is_waiting = place_of(frames)
        gpus_work = order.num_gpus and self.gpu_share() != 0.0
        use = process_use(rank.pid)
        return HangReport(
            end=basic_end(order, self.board.read(order.local_rank), time_s=time.time()),
            silent_s=time.monotonic() - signs.worked_s if signs else 0.0,
            where=where,
            calls=calls,
            is_waiting=is_waiting,
            state=use.state if use else "?",
            collectives=collectives,
            stack=str(zlib.crc32(repr(frames).encode())) if frames else None,
            spins=signs is None or signs.spins or bool(gpus_work),
        )


def _uses_by_pid(pid: int) -> dict[int, tuple[float, ...]]:
    """Return what a process and all below it have used, without those that have just ended or are
    another user's: seconds of CPU time, those of children that it has waited for, bytes read (by
    any call, or from a disk), and bytes written."""
    found: dict[int, tuple[float, ...]] = {}
    for one in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            if (use := process_use(one)) is not None:
                lines = Path(f"/proc/{one}/io").read_text().splitlines()
                io = dict(line.split(": ") for line in lines)
                read_bytes = int(io["rchar"]) + int(io["read_bytes"])
                found[one] = (use.cpu_s, use.cpu_of_ended_s, read_bytes, int(io["wchar"]))
    return found
