"""Questions of an agent to its living ranks, answered whatever their main threads do.

A rank that hangs in a collective runs no Python, and so no signal handler of Python: a thread of
its own answers. It sleeps in a semaphore, without the interpreter's lock and without a look at the
clock, until the agent asks, and leaves its answer in memory that both share: no file is made, and
no descriptor is held that a program might close. Where the main thread is in C code that keeps the
lock, nothing is answered, which says something, too.
"""

from __future__ import annotations

import _thread
import contextlib
import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Semaphore

_AREA_BYTES = 1 << 18
"""Room for one rank's answer; memory is used only where it was written."""
MOST_ANSWER_BYTES = _AREA_BYTES - 8


class Inquiry:
    """Shared memory with a desk per local rank; inherited by fork."""

    def __init__(self, num_ranks: int) -> None:
        memory = memoryview(mmap.mmap(-1, num_ranks * _AREA_BYTES))
        starts = range(0, num_ranks * _AREA_BYTES, _AREA_BYTES)
        self._desks = [Desk(memory[start : start + _AREA_BYTES]) for start in starts]

    def desk(self, local_rank: int) -> Desk:
        return self._desks[local_rank]

    def clear(self) -> None:
        """Forget questions and answers, before an attempt starts."""
        for desk in self._desks:
            desk.clear()


class Desk:
    """The place where one rank is asked, and answers."""

    def __init__(self, area: memoryview[int]) -> None:
        self._size = area[:8].cast("q")
        self._area = area[8:]
        self._served_by: int | None = None
        self._bell: Semaphore | None = None
        # Without /dev/shm there is no semaphore that processes share: then nobody answers.
        with contextlib.suppress(OSError):
            self._bell = multiprocessing.get_context("fork").Semaphore(0)

    # The agent's side.

    def clear(self) -> None:
        self._size[0] = 0
        while self._bell is not None and self._bell.acquire(block=False):
            pass

    def ask(self) -> None:
        self._size[0] = 0
        if self._bell is not None:
            self._bell.release()

    def answer(self) -> bytes | None:
        """Return the answer to the last question; None until it is there."""
        size = self._size[0]
        return bytes(self._area[:size]) if 0 < size <= MOST_ANSWER_BYTES else None

    # The rank's side.

    def attend(self, respond: Callable[[], bytes]) -> None:
        """Start the thread that answers with what `respond` returns, cut to `MOST_ANSWER_BYTES`,
        where this process has not started it."""
        if self._served_by == os.getpid():
            return
        self._served_by = os.getpid()
        # It is none of threading's, whose list of threads is the program's.
        with contextlib.suppress(RuntimeError):  # the limit of threads is reached
            _thread.start_new_thread(self._serve, (respond, os.getpid()))

    def _serve(self, respond: Callable[[], bytes], pid: int) -> None:
        # Handlers run in the main thread: a signal that came here would not wake that.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        while self._bell is not None and os.getpid() == pid:
            self._bell.acquire()
            with contextlib.suppress(Exception):  # what it says depends on versions of torch
                answer = respond()[:MOST_ANSWER_BYTES]
                self._area[: len(answer)] = answer
                self._size[0] = len(answer)
