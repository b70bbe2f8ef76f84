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

import mmap
import os
import tempfile
import time
from collections.abc import Sequence

import msgspec

from hpcdist.rank.pipe import RankPipe

_SLOT_WORDS = 8
"""Words of 8 bytes, each stored and read in one piece: a cache line per slot, so that ranks on
different cores do not slow each other."""
_ALIVE_NS, _STEP, _BOUNDARY, _LEAVES, _WISH, _FINISHED, _IGNORES, _HANDLES = range(8)
"""Words of a slot: monotonic time of the last sign of life, step + 1, boundaries, the exit code
that the rank leaves with + 1, the agent's wish for a profile, and three that are 0 or 1."""
_GO_ON = 0  # the order on the board; a positive one is the boundary to stop at
_PAUSE = -1
_PAUSE_POLL_S = 0.0005
_STEPS = 1 << 16
"""A wish is a number times this, and the steps that are wished for."""


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
    handles_sigterm: bool
    """Its program had a handler of its own for SIGTERM in the end."""
    boundary: int
    """Boundaries between steps that it has reached; 0 for a workload that counts none."""
    leaves_with: int | None
    """The exit code of its workload, which is over; None where it is not."""


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
        num_bytes = (num_ranks + 1) * _SLOT_WORDS * 8
        self._memory, *shared = descriptors or [make_memory("hpcdist-board")]
        os.ftruncate(self._memory, num_bytes)
        self._words = memoryview(mmap.mmap(self._memory, num_bytes)).cast("q")
        starts = range(0, num_ranks * _SLOT_WORDS, _SLOT_WORDS)
        self._slots = [self._words[start : start + _SLOT_WORDS] for start in starts]
        self._order = self._words[-_SLOT_WORDS:]
        self._pipes = [RankPipe(shared[2 * rank : 2 * rank + 2]) for rank in range(num_ranks)]

    @property
    def descriptors(self) -> list[int]:
        """All that another process needs for a board with the same ranks."""
        return [self._memory, *(one for pipe in self._pipes for one in pipe.descriptors)]

    def clear(self) -> None:
        """Forget all ranks, before an attempt starts."""
        self._words[:] = memoryview(bytes(self._words.nbytes)).cast("q")
        for pipe in self._pipes:
            pipe.clear()

    def slot(self, local_rank: int) -> ProgressSlot:
        """Return the writing end of one rank."""
        return ProgressSlot(self._slots[local_rank], self._order, self._pipes[local_rank])

    def only(self, local_rank: int) -> ProgressSlot:
        """Return the writing end of one rank in its own process, which has no other pipe."""
        for pipe in self._pipes[:local_rank] + self._pipes[local_rank + 1 :]:
            pipe.close()
        os.close(self._memory)
        return self.slot(local_rank)

    def pipe(self, local_rank: int) -> RankPipe:
        """Return the pipe by which a rank is asked, whatever its main thread does."""
        return self._pipes[local_rank]

    def wish_for(self, local_rank: int, steps: int) -> int:
        """Wish for a profile of a rank's next steps, or, with 0, for none any more; return the
        number of the wish."""
        slot = self._slots[local_rank]
        number = slot[_WISH] // _STEPS + 1
        slot[_WISH] = number * _STEPS + steps
        return number

    def pause(self) -> None:
        """Have every rank wait at its next boundary for the one at which all stop."""
        if self._order[0] == _GO_ON:
            self._order[0] = _PAUSE

    def stop_at(self, boundary: int) -> None:
        self._order[0] = boundary

    def last_boundary(self) -> int:
        """Return the last boundary that any rank has reached; some time after `pause`, none goes
        beyond the one after it."""
        return max(slot[_BOUNDARY] for slot in self._slots)

    def read(self, local_rank: int) -> RankProgress:
        slot = self._slots[local_rank]
        return RankProgress(
            alive_s=slot[_ALIVE_NS] / 1e9,
            step=slot[_STEP] - 1 if slot[_STEP] else None,
            finished=bool(slot[_FINISHED]),
            ignores_sigterm=bool(slot[_IGNORES]),
            handles_sigterm=bool(slot[_HANDLES]),
            boundary=slot[_BOUNDARY],
            leaves_with=slot[_LEAVES] - 1 if slot[_LEAVES] else None,
        )


class ProgressSlot:
    """The part of the board where one rank stores its progress, and learns that it is to stop."""

    def __init__(self, words: memoryview[int], order: memoryview[int], pipe: RankPipe) -> None:
        self.pipe = pipe
        self.wish_word = words[_WISH:]
        """Other than before where the agent's wish is new: the rank looks at it after each step."""
        self._words = words
        self._order = order
        self._boundary = 0

    @property
    def last_step(self) -> int | None:
        """Number of finished steps; None where none was stored."""
        return self._words[_STEP] - 1 if self._words[_STEP] else None

    @property
    def wish(self) -> tuple[int, int]:
        """The number of the agent's wish, 0 before the first, and the steps that it is for."""
        return divmod(self._words[_WISH], _STEPS)

    def alive(self) -> None:
        """Store that the rank is alive, at its start and outside of steps."""
        self._words[_ALIVE_NS] = time.monotonic_ns()

    def step(self, step: int) -> None:
        """Store that `step` steps are finished."""
        self._words[_STEP] = step + 1
        self.alive()

    def finish(self) -> None:
        """Store that the workload returned by itself."""
        self._words[_FINISHED] = 1
        self.alive()

    def leave(self, code: int) -> None:
        """Store that the workload is over, whose exit code is `code`."""
        self._words[_LEAVES] = code + 1

    def ignore_sigterm(self) -> None:
        """Store that SIGTERM would not end the rank: the forkserver then sends SIGKILL at once."""
        self._words[_IGNORES] = 1

    def handle_sigterm(self) -> None:
        """Store that the program has a handler for SIGTERM: it may have ended by that."""
        self._words[_HANDLES] = 1

    def should_stop(self) -> bool:
        """Count a boundary between steps; return True where the rank must stop here.

        Every rank calls this equally often, and all get the same answers. While the ranks agree
        where to stop, it waits.
        """
        self._boundary += 1
        self._words[_BOUNDARY] = self._boundary  # before the order is looked at
        while (order := self._order[0]) == _PAUSE:  # without limit: the rank ends with its agent
            time.sleep(_PAUSE_POLL_S)
        return order != _GO_ON and self._boundary >= order

    def is_asked_to_stop(self) -> bool:
        """Return True where the ranks are to stop at some boundary, perhaps not the next.

        It counts no boundary: ranks may ask whenever they like, and get different answers.
        """
        return self._order[0] != _GO_ON
