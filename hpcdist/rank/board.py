"""The progress board: one page of memory that a node's ranks share with their agent.

Every rank stores its last finished step there; the agent reads it to see a hang, and to know the
last step of a rank that was killed. A store costs less than a microsecond and no system call.

Here all ranks of a run agree, too, on the step at which they stop. Each counts the boundaries
between its steps, and stores the number before it looks at the board's order. To stop the run,
every agent gives the order to pause: from then on each rank waits at its next boundary, which is at
most one after the last that its agent sees. The ranks stop at the boundary after the last one that
any rank of any node has reached: none can have gone further, whatever they exchange and when.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Sequence

from hpcdist.rank.pipe import RankPipe

_GO_ON = 0  # the order on the board; a positive one is the boundary to stop at
_PAUSE = -1
_PAUSE_POLL_S = 0.0005
_STEPS = 1 << 16
"""A wish is a number times this, and the steps that are wished for."""


class RankProgress(ctypes.Structure):
    """The progress of one rank: words, each stored and read in one piece. They fill a cache
    line, so that ranks on different cores do not slow each other."""

    alive_ns: int
    """Monotonic clock of the last step, or of the start; 0 before the start."""
    num_steps: int
    """Finished steps + 1; 0 where no step was recorded."""
    boundary: int
    """Boundaries between steps that it has reached; 0 for a workload that counts none."""
    leaves: int
    """The exit code of its workload, which is over, + 1; 0 where it is not."""
    wish: int
    """The agent's wish for a profile."""
    finished: bool
    """The workload returned by itself."""
    ignores_sigterm: bool
    """SIGTERM would not end it, and the forkserver sends SIGKILL at once."""
    handles_sigterm: bool
    """Its program had a handler of its own for SIGTERM in the end: it may have ended by that."""
    elastic: bool
    """Its program says that it can go on in a world of another size."""

    _numbers = ("alive_ns", "num_steps", "boundary", "leaves", "wish")
    _flags = ("finished", "ignores_sigterm", "handles_sigterm", "elastic")
    _fields_ = (
        *((name, ctypes.c_int64) for name in _numbers),
        *((name, ctypes.c_bool) for name in _flags),
        ("_rest", ctypes.c_int64 * 2),
    )

    @property
    def step(self) -> int | None:
        """Number of finished steps; None where no step was recorded."""
        return self.num_steps - 1 if self.num_steps else None


def make_memory(name: str) -> int:
    """Return a file without a place: Python that was built for old systems has no memfd_create."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class ProgressBoard:
    """Memory with a slot per local rank; inherited by fork, or by its descriptor."""

    def __init__(self, num_ranks: int, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are those of another process's."""
        kind = RankProgress * (num_ranks + 1)
        self._memory, *shared = descriptors or [make_memory("hpcdist-board")]
        os.ftruncate(self._memory, ctypes.sizeof(kind))
        self._slots = kind.from_buffer(mmap.mmap(self._memory, ctypes.sizeof(kind)))
        self._order = self._slots[num_ranks]
        """Its `boundary` is the order to all ranks."""
        self.pipes = [RankPipe(shared[2 * rank : 2 * rank + 2]) for rank in range(num_ranks)]
        """Pipes by which ranks are asked, whatever their main threads do."""

    @property
    def descriptors(self) -> list[int]:
        """All that another process needs for a board with the same ranks."""
        return [self._memory, *(one for pipe in self.pipes for one in pipe.descriptors)]

    def clear(self) -> None:
        """Forget all ranks, before an attempt starts."""
        ctypes.memset(self._slots, 0, ctypes.sizeof(self._slots))
        for pipe in self.pipes:
            pipe.clear()

    def slot(self, local_rank: int) -> ProgressSlot:
        """Return the writing end of one rank."""
        return ProgressSlot(self._slots[local_rank], self._order, self.pipes[local_rank])

    def only(self, local_rank: int) -> ProgressSlot:
        """Return the writing end of one rank in its own process, which has no other pipe."""
        for pipe in self.pipes[:local_rank] + self.pipes[local_rank + 1 :]:
            pipe.close()
        os.close(self._memory)
        return self.slot(local_rank)

    def wish_for(self, local_rank: int, steps: int) -> int:
        """Wish for a profile of a rank's next steps, or with 0 for none; return its number."""
        slot = self._slots[local_rank]
        number = slot.wish // _STEPS + 1
        slot.wish = number * _STEPS + steps
        return number

    def pause(self) -> None:
        """Have every rank wait at its next boundary for the one at which all stop."""
        if self._order.boundary == _GO_ON:
            self._order.boundary = _PAUSE

    def stop_at(self, boundary: int) -> None:
        self._order.boundary = boundary

    def last_boundary(self) -> int:
        """Return the last boundary of any rank; soon after `pause`, none passes the next one."""
        return max(self._slots[rank].boundary for rank in range(len(self.pipes)))

    def read(self, local_rank: int) -> RankProgress:
        """Return the progress of a rank as it is now."""
        return RankProgress.from_buffer_copy(self._slots[local_rank])


class ProgressSlot:
    """The part of the board where one rank stores its progress, and learns that it is to stop."""

    def __init__(self, told: RankProgress, order: RankProgress, pipe: RankPipe) -> None:
        self.pipe = pipe
        self.values = told
        self._order = order
        self._boundary = 0

    @property
    def last_step(self) -> int | None:
        """Number of finished steps; None where none was stored."""
        return self.values.step

    @property
    def wish(self) -> tuple[int, int]:
        """The number of the agent's wish, 0 before the first, and the steps that it is for."""
        return divmod(self.values.wish, _STEPS)

    def alive(self) -> None:
        """Store that the rank is alive, at its start and outside of steps."""
        self.values.alive_ns = time.monotonic_ns()

    def step(self, step: int) -> None:
        """Store that `step` steps are finished."""
        self.values.num_steps = step + 1
        self.alive()

    def finish(self) -> None:
        """Store that the workload returned by itself."""
        self.values.finished = True
        self.alive()

    def should_stop(self) -> bool:
        """Count a boundary between steps; return True where the rank must stop here.

        Every rank calls this equally often, and all get the same answers. While the ranks agree
        where to stop, it waits.
        """
        self._boundary += 1
        self.values.boundary = self._boundary  # before the order is looked at
        while (order := self._order.boundary) == _PAUSE:  # no limit: the rank ends with its agent
            time.sleep(_PAUSE_POLL_S)
        return order != _GO_ON and self._boundary >= order
