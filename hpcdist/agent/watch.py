"""Watching the living ranks of a node from outside: silence, memory, and where they hang."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcdist.agent.messages import HangReport
from hpcdist.agent.node import RankOrder
from hpcdist.agent.outcome.ends import living_end
from hpcdist.agent.signs import WorkSigns
from hpcdist.agent.stacks import Stacks, ThreadStack, digest, place_of
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.machine import memory
from hpcdist.machine.process import send_signal, state_letter
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.collectives import Collectives
from hpcdist.runs.run import Run

_TRAINER_HANG_TIMEOUT_S = 600.0
STANDSTILL_S = 10.0
"""An agent looks twice a second: one that has not for so long was suspended, with its ranks."""
_MOST_BETWEEN_LOOKS_S = 10.0
_LOOK_SHARE = 0.1
"""Share of the silence that is too long after which a rank's log is looked at again: file servers
are slow."""


@dataclass
class _Log:
    """The log of a rank as it was last looked at; times are of the monotonic clock."""

    changed_s: float
    look_at_s: float = -math.inf
    seen: tuple[int, int] | None = None
    """Size and time of change, by whatever clock."""


@dataclass(frozen=True, eq=False)
class LivingRank:
    """One rank, as its agent has it at a moment."""

    order: RankOrder
    pid: int


@dataclass
class RankWatch:
    """The living ranks of one node, and what is seen of them from outside."""

    run: Run
    job: JobSpec
    board: ProgressBoard
    stacks: Stacks
    gpu_share: Callable[[], float | None] = lambda: None
    """Largest share of the last moment in which one of the ranks' GPUs worked; None: not known."""
    orders: dict[int, RankOrder] = field(default_factory=dict)
    """Orders of the living ranks, by local rank."""
    pids: dict[int, int] = field(default_factory=dict)
    """Pids of the ranks that have been forked, by local rank."""
    signs: WorkSigns = field(init=False)
    _over_memory: dict[int, str] = field(default_factory=dict)
    _kernel_kills: memory.KernelKills = field(default_factory=memory.kernel_kills)
    _logs: dict[int, _Log] = field(default_factory=dict)
    """Logs of ranks that show by what they print that they live, by local rank."""
    _looked_s: float = field(default_factory=time.monotonic)
    _resumed_s: float = 0.0

    def __post_init__(self) -> None:
        """Watch for signs of work, too."""
        self.signs = WorkSigns(self.board, self.stacks, self.job.launch.hang_notice_s)

    def begin(self, orders: list[RankOrder]) -> None:
        self.board.clear()
        self.stacks.clear()
        self.signs.begin()
        self.orders = {order.local_rank: order for order in orders}
        self.pids.clear()
        self._over_memory.clear()
        self._logs.clear()

    def living(self) -> list[LivingRank]:
        return [
            LivingRank(order, self.pids[local_rank])
            for local_rank, order in self.orders.items()
            if local_rank in self.pids
        ]

    def remove(self, local_rank: int) -> RankOrder | None:
        """Watch a rank no more that has ended; return its order, None where it has none."""
        self.pids.pop(local_rank, None)
        return self.orders.pop(local_rank, None)

    def most_silent(self) -> int | None:
        """Return the rank that gave no sign of life for longest, if that is too long."""
        now = time.monotonic()
        if now - self._looked_s > STANDSTILL_S:
            self.forgive()
        self._looked_s = now
        timeout_s = self._timeout_s()
        if not timeout_s or not self.pids:
            return None
        silent = {local_rank: self._silent_s(local_rank) for local_rank in self.pids}
        longest = max(silent, key=lambda local_rank: silent[local_rank])
        return self.orders[longest].rank if silent[longest] >= timeout_s else None

    def _timeout_s(self) -> float:
        """Return the silence that is too long; 0 where none is."""
        if self.job.launch.hang_timeout_s is not None:
            return self.job.launch.hang_timeout_s
        return 0.0 if isinstance(self.job, OwnCodeJob) else _TRAINER_HANG_TIMEOUT_S

    def keep_memory_limit(self) -> None:
        """Kill the rank with most memory where all together exceed `resources.mem_gb`."""
        limit_gb = self.job.resources.mem_gb
        if limit_gb is None or self._over_memory:
            return
        over = memory.over_limit(self.pids, limit_gb * 1e9)
        if over is not None:
            local_rank, sentence = over
            self._over_memory[local_rank] = sentence
            send_signal(self.pids[local_rank], signal.SIGKILL)

    def out_of_memory(self, local_rank: int, status: int) -> str | None:
        """Return the reason where a rank with waitpid's `status` was killed for its memory."""
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return None
        if local_rank in self._over_memory:
            return self._over_memory[local_rank]
        kills = memory.kernel_kills()
        killer = self._kernel_kills.tell_more(kills)
        if killer is None:
            return None
        self._kernel_kills = kills
        return f"killed by {killer}"

    def keep_stacks(self) -> None:
        """Write what ranks have told of their stacks into files. Raises OSError."""
        for local_rank, order in self.orders.items():
            self.stacks.keep(local_rank, self.run.stacks_file(order.rank, order.attempt))

    def forgive(self) -> None:
        """Count the silence of ranks from now on: until now none could go on."""
        self._resumed_s = time.monotonic()
        self.signs.forgive()

    def _may_use_gpu(self, order: RankOrder) -> bool:
        return bool(order.num_gpus) and self.gpu_share() != 0.0

    def _silent_s(self, local_rank: int) -> float:
        alive_s = self.board.read(local_rank).alive_s
        if alive_s == 0.0:
            return 0.0
        silent_s = time.monotonic() - max(alive_s, self._resumed_s)
        if isinstance(self.job, OwnCodeJob):  # what it prints is a sign of life, too
            silent_s = min(silent_s, self._unchanged_s(local_rank))
        return silent_s

    def _unchanged_s(self, local_rank: int) -> float:
        """Return for how long a rank's log has been seen to stay as it is.

        The clock of its file server is not asked: one that is behind would make all ranks silent.
        """
        order, now_s = self.orders[local_rank], time.monotonic()
        log = self._logs.setdefault(local_rank, _Log(changed_s=now_s))
        if now_s >= log.look_at_s:
            log.look_at_s = now_s + min(_MOST_BETWEEN_LOOKS_S, self._timeout_s() * _LOOK_SHARE)
            with contextlib.suppress(OSError):  # somebody removed it
                stat = self.run.log_file(order.rank, order.attempt).stat()
                if log.seen != (seen := (stat.st_size, stat.st_mtime_ns)):
                    log.seen, log.changed_s = seen, now_s
        return now_s - log.changed_s

    def hang_report(
        self, rank: LivingRank, threads: list[ThreadStack], collectives: Collectives | None
    ) -> HangReport:
        """Return where a living rank is; `collectives` is None where it did not answer."""
        order = rank.order
        frames = threads[0].frames if threads else []
        where, calls, is_waiting = place_of(frames)
        local_rank = order.local_rank
        return HangReport(
            end=living_end(order, self.board.read(local_rank), time_s=time.time()),
            silent_s=self._silent_s(local_rank),
            where=where,
            calls=calls,
            is_waiting=is_waiting,
            state=state_letter(rank.pid),
            collectives=collectives,
            stack=digest(frames),
            spins=self.signs.spins(local_rank) or self._may_use_gpu(order),
        )
