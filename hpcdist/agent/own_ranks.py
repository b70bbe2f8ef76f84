"""Ranks that have started ranks of their own, by mp.spawn, and wait for them: a script that does so
hangs under a launcher, since nobody serves the store where these want to meet.

It shows when no rank of a node has joined a process group, each has processes of Python's
multiprocessing below it, and neither it nor they use CPUs. The text of a program tells sooner
(job/own_ranks.py), where it can be read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcdist.job.own_ranks import HOW_TO_CHANGE
from hpcdist.machine.process import descendants, process_use
from hpcdist.rank.board import ProgressBoard

SENTENCE = (
    "no rank has joined a process group, and each waits for processes that it has started, as by "
    "mp.spawn: a script that starts its ranks itself hangs under a launcher, which has started "
    f"them already ({HOW_TO_CHANGE})"
)
_LOOK_S = 5.0
_WATCHED_S = 600.0
"""A script that waits for its own processes later than that waits for something else."""
_MOST_IDLE_CPUS = 0.1
_SPAWNED = b"--multiprocessing-fork"
"""On the command line of what the start method spawn starts."""


@dataclass
class OwnRanks:
    """A look at the ranks of one node, every few seconds of the beginning of an attempt."""

    board: ProgressBoard
    _begin_s: float = field(default_factory=time.monotonic)
    _looked_s: float = 0.0
    _cpu_s: dict[int, float] = field(default_factory=dict)
    """CPU time by pid at the last look."""
    _is_so: bool = False

    def begin(self) -> None:
        """Forget an attempt that is over."""
        self._begin_s, self._cpu_s, self._is_so = time.monotonic(), {}, False

    def look(self, pids: Mapping[int, int]) -> bool | None:
        """Return whether the ranks with these pids, by local rank, wait for ranks of their own,
        where that is news."""
        now_s = time.monotonic()
        is_late = now_s - self._begin_s > _WATCHED_S and not self._is_so
        if is_late or now_s - self._looked_s < _LOOK_S or not pids:
            return None
        self._looked_s, was_so = now_s, self._is_so
        self._is_so = not any(self.board.desk(rank).is_attended for rank in pids) and (
            self._wait_for_own(pids)
        )
        return None if self._is_so is was_so else self._is_so

    def _wait_for_own(self, pids: Mapping[int, int]) -> bool:
        below = {pid: descendants(pid) for pid in pids.values()}
        before, self._cpu_s = self._cpu_s, {}
        for pid in (one for rank, others in below.items() for one in (rank, *others)):
            if (use := process_use(pid)) is not None:
                self._cpu_s[pid] = use.cpu_s
        if self._cpu_s.keys() != before.keys():  # some have just begun
            return False
        used_s = sum(self._cpu_s.values()) - sum(before.values())
        is_idle = used_s < _MOST_IDLE_CPUS * _LOOK_S * len(pids)
        return is_idle and all(any(map(_is_spawned, others)) for others in below.values())


def _is_spawned(pid: int) -> bool:
    try:
        return _SPAWNED in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return False
