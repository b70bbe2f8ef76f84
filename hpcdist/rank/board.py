"""The progress board: one page of memory that a node's ranks share with their agent.

Every rank stores its last finished step there; the agent reads it to see a hang, and to know the
last step of a rank that was killed. A store costs less than a microsecond and no system call.

The board is also where all ranks of a run agree on the step at which they stop. Each counts the
boundaries between its steps, and stores the number before it looks at the board's order. To stop
the run, every agent gives the order to pause: from then on each rank waits at its next boundary,
which is at most one after the last that its agent sees. The ranks stop at the boundary after the
last one that any rank of any node has reached: none can have gone further, so all run exactly up to
it. That holds whatever the ranks exchange and when; on a GPU, the host may be many steps ahead of
what other ranks have computed.
"""

from __future__ import annotations

import mmap
import struct
import time

import msgspec

_SLOT = struct.Struct("=dqq")  # monotonic time of the last sign of life, step + 1, flags
_SLOT_BYTES = 64  # a cache line each: ranks on different cores must not slow each other
_WORD_BYTES = 8  # stored and read in one piece
_BOUNDARY_WORD = 3  # of a slot, after the struct
_FINISHED = 1
_IGNORES_SIGTERM = 2

_GO_ON = 0  # the order on the board; a positive one is the boundary to stop at
_PAUSE = -1
_PAUSE_POLL_S = 0.0005


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one rank, as the board has it."""

    alive_s: float
    """Monotonic clock of the last step, or of the start; 0.0 before the start."""
    step: int | None
    """Number of finished steps; None where no step was recorded."""
    finished: bool
    """The workload returned by itself."""
    ignores_sigterm: bool
    """SIGTERM would not end it."""
    boundary: int
    """Boundaries between steps that it has reached; 0 for a workload that counts none."""


class ProgressBoard:
    """Shared, anonymous memory with a slot per local rank; inherited by fork."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._memory = mmap.mmap(-1, (num_ranks + 1) * _SLOT_BYTES)  # the last: the order
        self._words = memoryview(self._memory).cast("q")
        self._order = _first_word(num_ranks)

    def clear(self) -> None:
        """Forget all ranks, before an attempt starts."""
        self._memory[:] = bytes(len(self._memory))

    def slot(self, local_rank: int) -> ProgressSlot:
        """Return the writing end of one rank."""
        return ProgressSlot(self._memory, self._words, local_rank, order=self._order)

    def pause(self) -> None:
        """Have every rank wait at its next boundary for the one at which all stop."""
        if self._words[self._order] == _GO_ON:
            self._words[self._order] = _PAUSE

    def stop_at(self, boundary: int) -> None:
        """Have every rank stop at this boundary."""
        self._words[self._order] = boundary

    def last_boundary(self) -> int:
        """Return the last boundary that any rank has reached; some time after `pause`, none goes
        beyond the one after it."""
        return max(self.read(local_rank).boundary for local_rank in range(self.num_ranks))

    def read(self, local_rank: int) -> RankProgress:
        """Return what one rank last stored."""
        alive_s, step, flags = _SLOT.unpack_from(self._memory, local_rank * _SLOT_BYTES)
        return RankProgress(
            alive_s=alive_s,
            step=step - 1 if step else None,
            finished=bool(flags & _FINISHED),
            ignores_sigterm=bool(flags & _IGNORES_SIGTERM),
            boundary=self._words[_first_word(local_rank) + _BOUNDARY_WORD],
        )


class ProgressSlot:
    """The part of the board where one rank stores its progress, and learns that it is to stop."""

    def __init__(
        self, memory: mmap.mmap, words: memoryview[int], local_rank: int, *, order: int
    ) -> None:
        self._memory = memory
        self._words = words
        self._offset = local_rank * _SLOT_BYTES
        self._boundary_word = _first_word(local_rank) + _BOUNDARY_WORD
        self._order = order
        self._step = 0
        self._flags = 0
        self._boundary = 0

    @property
    def last_step(self) -> int | None:
        """Number of finished steps; None where none was stored."""
        return self._step - 1 if self._step else None

    def start(self) -> None:
        """Store that the rank is alive and has not finished a step."""
        self._store(0)

    def alive(self) -> None:
        """Store that the rank is alive outside of steps, such as in an evaluation."""
        self._store(self._step)

    def step(self, step: int) -> None:
        """Store that `step` steps are finished."""
        self._store(step + 1)

    def finish(self) -> None:
        """Store that the workload returned by itself."""
        self._flags |= _FINISHED
        self._store(self._step)

    def ignore_sigterm(self) -> None:
        """Store that SIGTERM would not end the rank: the forkserver then sends SIGKILL at once."""
        self._flags |= _IGNORES_SIGTERM
        self._store(self._step)

    def should_stop(self) -> bool:
        """Count a boundary between steps; return True where the rank must stop here.

        Every rank calls this equally often, and all get the same answers. While the ranks agree
        where to stop, it waits.
        """
        self._boundary += 1
        self._words[self._boundary_word] = self._boundary  # before the order is looked at
        order = self._words[self._order]
        while order == _PAUSE:  # without limit: the rank ends when its agent does
            time.sleep(_PAUSE_POLL_S)
            order = self._words[self._order]
        return order != _GO_ON and self._boundary >= order

    def is_asked_to_stop(self) -> bool:
        """Return True where the ranks are to stop at some boundary, perhaps not the next.

        It counts no boundary: ranks may ask whenever they like, and get different answers.
        """
        return self._words[self._order] != _GO_ON

    def _store(self, step: int) -> None:
        self._step = step
        _SLOT.pack_into(self._memory, self._offset, time.monotonic(), step, self._flags)


def _first_word(slot: int) -> int:
    return slot * _SLOT_BYTES // _WORD_BYTES
