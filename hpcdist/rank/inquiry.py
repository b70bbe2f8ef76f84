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
"""Room for one rank's question and answer; memory is used only where it was written."""
QUICK, SLOW = range(2)
"""Lines on which an agent asks, one at the same time as the other: for what is answered at once,
and for what takes seconds."""
_ASKED, _QUESTION_BYTES, _ANSWERED, _ANSWER_BYTES = range(4)
"""Words of a line, at the begin of an area: numbers of the last question and of the one that the
answer is to, from 1, and their lengths."""
_IS_ATTENDED, _REPORTED, _REPORT_BYTES = range(8, 11)
"""Words after those of the lines: whether a thread of the rank answers, and to which wish there is
a report, of which length."""
_WISH = 11
"""Word of the wish that the rank sees between two steps (rank/wishes.py)."""
_WORDS_BYTES = 8 * 12
MOST_QUESTION_BYTES = 1 << 12
_SLOW_ANSWER_BYTES = 1 << 12
MOST_REPORT_BYTES = 1 << 16
_OF_SLOW_BYTES = MOST_QUESTION_BYTES + _SLOW_ANSWER_BYTES
MOST_ANSWER_BYTES = (
    _AREA_BYTES - _WORDS_BYTES - MOST_QUESTION_BYTES - _OF_SLOW_BYTES - MOST_REPORT_BYTES
)


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


class _Line:
    """Room for a question and its answer."""

    def __init__(self, words: memoryview[int], room: memoryview[int]) -> None:
        self._words = words
        self._question = room[:MOST_QUESTION_BYTES]
        self._answer = room[MOST_QUESTION_BYTES:]

    @property
    def number(self) -> int:
        """Number of the last question."""
        return self._words[_ASKED]

    def ask(self, question: bytes) -> None:
        assert len(question) <= MOST_QUESTION_BYTES
        self._question[: len(question)] = question
        self._words[_QUESTION_BYTES] = len(question)
        self._words[_ASKED] += 1

    def answer(self) -> bytes | None:
        """Return the answer to the last question; None until it is there."""
        if not self._words[_ASKED] or self._words[_ANSWERED] != self._words[_ASKED]:
            return None
        size = self._words[_ANSWER_BYTES]
        return bytes(self._answer[:size]) if 0 <= size <= len(self._answer) else None

    def respond(self, respond: Callable[[bytes], bytes]) -> None:
        """Answer the last question with what `respond` returns, cut to the room that there is."""
        with contextlib.suppress(Exception):  # what it says depends on versions of torch
            number, size = self._words[_ASKED], self._words[_QUESTION_BYTES]
            answer = respond(bytes(self._question[:size]))[: len(self._answer)]
            self._answer[: len(answer)] = answer
            self._words[_ANSWER_BYTES] = len(answer)
            self._words[_ANSWERED] = number


class Desk:
    """The place where one rank is asked, and answers."""

    def __init__(self, area: memoryview[int]) -> None:
        self._words = area[:_WORDS_BYTES].cast("q")
        room = area[_WORDS_BYTES:-MOST_REPORT_BYTES]
        self._lines = {
            QUICK: _Line(self._words[:4], room[:-_OF_SLOW_BYTES]),
            SLOW: _Line(self._words[4:8], room[-_OF_SLOW_BYTES:]),
        }
        self._report = area[-MOST_REPORT_BYTES:]
        self.wishes = self._words[_WISH:]
        """One number; 0 before the first wish."""
        self._served_by: int | None = None
        self._bell: Semaphore | None = None
        # Without /dev/shm there is no semaphore that processes share: then nobody answers.
        with contextlib.suppress(OSError):
            self._bell = multiprocessing.get_context("fork").Semaphore(0)

    # The agent's side.

    @property
    def is_attended(self) -> bool:
        """The rank has a thread that answers."""
        return bool(self._words[_IS_ATTENDED])

    def clear(self) -> None:
        for index in range(len(self._words)):
            self._words[index] = 0
        while self._bell is not None and self._bell.acquire(block=False):
            pass

    def ask(self, question: bytes, line: int = QUICK) -> None:
        """Ask, also where no thread answers yet: one that starts later will; an answer to another
        question on this line counts no more."""
        self._lines[line].ask(question)
        if self._bell is not None:
            self._bell.release()

    def answer(self, line: int = QUICK) -> bytes | None:
        """Return the answer to the last question on a line; None until it is there."""
        return self._lines[line].answer()

    def reported(self, number: int) -> bytes | None:
        """Return the report on a wish of this number; None until it is there."""
        size = self._words[_REPORT_BYTES]
        is_there = self._words[_REPORTED] == number and 0 <= size <= MOST_REPORT_BYTES
        return bytes(self._report[:size]) if is_there else None

    # The rank's side.

    def report(self, number: int, report: bytes) -> None:
        """Leave the report on a wish."""
        self._report[: len(report)] = report
        self._words[_REPORT_BYTES] = len(report)
        self._words[_REPORTED] = number

    def attend(self, respond: Callable[[bytes], bytes]) -> None:
        """Start the thread that answers questions with what `respond` returns, where this process
        has not started it."""
        if self._served_by == os.getpid():
            return
        self._served_by = os.getpid()
        # It is none of threading's, whose list of threads is the program's.
        with contextlib.suppress(RuntimeError):  # the limit of threads is reached
            _thread.start_new_thread(self._serve, (respond, os.getpid()))
            self._words[_IS_ATTENDED] = 1

    def _serve(self, respond: Callable[[bytes], bytes], pid: int) -> None:
        # Handlers run in the main thread: a signal that came here would not wake that.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        quick, slow = self._lines[QUICK], self._lines[SLOW]
        num_slow = 0
        while self._bell is not None and os.getpid() == pid:
            self._bell.acquire()
            if num_slow != slow.number:
                num_slow = slow.number
                with contextlib.suppress(RuntimeError):  # the limit of threads is reached
                    _thread.start_new_thread(slow.respond, (respond,))
            if quick.answer() is None:
                quick.respond(respond)
