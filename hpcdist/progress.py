"""The progress board: one page of memory that a node's ranks share with their agent.

Every rank stores its last finished step there; the agent reads it to see a hang, and to know the
last step of a rank that was killed. A store costs less than a microsecond and no system call.
"""

from __future__ import annotations

import mmap
import struct
import time

import msgspec

_SLOT = struct.Struct("=dqq")  # monotonic time of the last sign of life, step + 1, flags
_SLOT_BYTES = 64  # a cache line each: ranks on different cores must not slow each other
_FINISHED = 1


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What the board says about one rank."""

    alive_s: float
    """Monotonic clock of the last step, or of the start; 0.0 before the start."""
    step: int | None
    """Number of finished steps; None where no step was recorded."""
    finished: bool
    """The workload returned by itself."""


class ProgressBoard:
    """Shared, anonymous memory with a slot per local rank; inherited by fork."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._memory = mmap.mmap(-1, num_ranks * _SLOT_BYTES)

    def clear(self) -> None:
        """Forget all ranks, before an attempt starts."""
        self._memory[:] = bytes(len(self._memory))

    def slot(self, local_rank: int) -> ProgressSlot:
        """The writing end of one rank."""
        return ProgressSlot(self._memory, local_rank * _SLOT_BYTES)

    def read(self, local_rank: int) -> RankProgress:
        """What one rank last stored."""
        alive_s, step, flags = _SLOT.unpack_from(self._memory, local_rank * _SLOT_BYTES)
        return RankProgress(
            alive_s=alive_s,
            step=step - 1 if step else None,
            finished=bool(flags & _FINISHED),
        )


class ProgressSlot:
    """Where one rank stores its progress."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._step = 0

    @property
    def last_step(self) -> int | None:
        """Number of finished steps; None where none was stored."""
        return self._step - 1 if self._step else None

    def start(self) -> None:
        """The rank is alive and has not finished a step."""
        self._store(0, 0)

    def alive(self) -> None:
        """Something other than a step goes on, such as an evaluation."""
        self._store(self._step, 0)

    def step(self, step: int) -> None:
        """`step` steps are finished."""
        self._store(step + 1, 0)

    def finish(self) -> None:
        """The workload returned by itself."""
        self._store(self._step, _FINISHED)

    def _store(self, step: int, flags: int) -> None:
        self._step = step
        _SLOT.pack_into(self._memory, self._offset, time.monotonic(), step, flags)
