"""Questions of an agent to its living ranks, through memory that both share: no file is made, and
no descriptor is held that a program might close.

*Where is the rank?* A rank that hangs in a collective runs no Python, and so no signal handler of
Python: a thread of its own answers. It sleeps in a semaphore, without the interpreter's lock and
without a look at the clock, until the agent asks. Where the main thread is in C code that keeps the
lock, nothing is answered, which says something, too.

*What takes the time in its next steps?* The agent's wish is a word that the rank looks at between
two steps: as long as nothing is wished it compares two numbers (rank/profiling.py).
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.synchronize import Semaphore
from types import ModuleType
from typing import Any

import msgspec

from hpcdist.rank.collectives import C10D, Collectives, own_collectives
from hpcdist.rank.on_import import on_import
from hpcdist.rank.stacks import ThreadStack, own_threads

DESK_BYTES = 1 << 18
"""Memory of one rank's desk; it is used only where it was written."""
_IS_ATTENDED, _ASKED, _ANSWERED, _ANSWER_BYTES, _REPORTED, _REPORT_BYTES, _WISH = range(7)
"""Words at the begin of a desk: whether a thread of the rank answers, the numbers (from 1) of the
last question and of the one that the answer is to, the number of the wish that the report is on,
their lengths, and the wish."""
_WORDS_BYTES = 8 * 7
_MOST_REPORT_BYTES = 1 << 16
MOST_ANSWER_BYTES = DESK_BYTES - _WORDS_BYTES - _MOST_REPORT_BYTES
_STEPS = 1 << 16
"""A wish is a number times this, and the steps that are wished for."""
_MAKES_GROUP = "_new_process_group_helper"
"""Called for each process group, by this name within its module (torch 2.6 to 2.15)."""
_MOST_INNERMOST = 8
"""Frames of each thread where all of all threads would be too many."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's word on where it is."""

    collectives: Collectives
    threads: list[ThreadStack]
    """The main one first."""


class OperationTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one operation or kernel, without that of what it calls."""

    name: str
    calls: int
    self_s: float


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of a few steps of a rank."""

    steps: int = 0
    last_step: int = 0
    """Number of finished steps at its end."""
    wall_s: float = 0.0
    """Of all these steps."""
    whole_s: float | None = None
    """Time of a step in which an operation of communication ran; None where none did."""
    overlapped_s: float | None = None
    """The part of it in which something was computed."""
    operations: list[OperationTime] = []
    """Those with the most time, on GPUs of their kernels; over all these steps."""
    operations_s: float = 0.0
    """The time of all of them, one by one; over all these steps."""
    busy_s: float = 0.0
    """The time in which one or several of them ran; the rest is Python's, and waiting."""
    trace: str | None = None
    """Its Chrome trace, relative to the run directory."""
    error: str | None = None
    """Why there is no profile, or no trace."""


class Desk:
    """The place where one rank is asked, and answers."""

    def __init__(self, area: memoryview[int]) -> None:
        self._words = area[:_WORDS_BYTES].cast("q")
        self.wish_word = self._words[_WISH:]
        """Other than before where the agent's wish is new: the rank looks at it after each step."""
        self._answer = area[_WORDS_BYTES:-_MOST_REPORT_BYTES]
        self._report = area[-_MOST_REPORT_BYTES:]
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
        """Forget questions and answers, before an attempt starts."""
        for index in range(len(self._words)):
            self._words[index] = 0
        while self._bell is not None and self._bell.acquire(block=False):
            pass

    def ask(self) -> None:
        """Ask where the rank is, also where no thread answers yet: one that starts later will."""
        self._words[_ASKED] += 1
        if self._bell is not None:
            self._bell.release()

    def answer(self) -> bytes | None:
        """Return the answer to the last question; None until it is there."""
        if not self._words[_ASKED] or self._words[_ANSWERED] != self._words[_ASKED]:
            return None
        size = self._words[_ANSWER_BYTES]
        return bytes(self._answer[:size]) if 0 <= size <= len(self._answer) else None

    def account(self) -> Account | None:
        """Return the rank's last account of itself; None where it has given none, or the program
        has written there."""
        try:
            return msgspec.json.decode(self.answer() or b"", type=Account)
        except (msgspec.MsgspecError, UnicodeError):
            return None

    def wish_for(self, steps: int) -> int:
        """Wish for a profile of so many steps, or, with 0, for none any more; return the number of
        the wish."""
        number = self._words[_WISH] // _STEPS + 1
        self._words[_WISH] = number * _STEPS + steps
        return number

    def report_on(self, wish: int) -> StepReport | None:
        """Return the report on a wish of this number; None until it is there."""
        if self._words[_REPORTED] != wish:
            return None
        try:
            size = self._words[_REPORT_BYTES]
            return msgspec.json.decode(self._report[: max(0, size)], type=StepReport)
        except (msgspec.MsgspecError, UnicodeError):  # the program can write there, too
            return StepReport(error="its report cannot be read")

    # The rank's side.

    @property
    def wish(self) -> tuple[int, int]:
        """The number of the agent's wish, 0 before the first, and the steps that it is for."""
        return divmod(self._words[_WISH], _STEPS)

    def leave_report(self, wish: int, report: StepReport) -> None:
        """Leave the report on a wish for the agent."""
        text = msgspec.json.encode(report)
        if len(text) > _MOST_REPORT_BYTES:
            text = msgspec.json.encode(msgspec.structs.replace(report, operations=[]))
        self._report[: len(text)] = text
        self._words[_REPORT_BYTES] = len(text)
        self._words[_REPORTED] = wish

    def attend(self, respond: Callable[[], bytes]) -> None:
        """Start the thread that answers questions with what `respond` returns, where this process
        has not started it."""
        if self._served_by == os.getpid():
            return
        self._served_by = os.getpid()
        # It is none of threading's, whose list of threads is the program's.
        with contextlib.suppress(RuntimeError):  # the limit of threads is reached
            _thread.start_new_thread(self._serve, (respond, os.getpid()))
            self._words[_IS_ATTENDED] = 1

    def attend_with_groups(self) -> None:
        """Answer the agent's questions from the first process group on: a program without one has
        no thread more than it makes."""

        def change(module: ModuleType) -> None:
            make = getattr(module, _MAKES_GROUP, None)
            if make is None:  # another release
                return

            @functools.wraps(make)
            def make_group(*args: Any, **kwargs: Any) -> Any:
                self.attend(_own_account)
                return make(*args, **kwargs)

            setattr(module, _MAKES_GROUP, make_group)

        on_import({C10D: change})

    def _serve(self, respond: Callable[[], bytes], pid: int) -> None:
        # Handlers run in the main thread: a signal that came here would not wake that.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        while self._bell is not None and os.getpid() == pid:
            self._bell.acquire()
            if self.answer() is not None:  # of two questions, the last is answered
                continue
            with contextlib.suppress(Exception):  # what it says depends on versions of torch
                number = self._words[_ASKED]
                answer = respond()[: len(self._answer)]
                self._answer[: len(answer)] = answer
                self._words[_ANSWER_BYTES] = len(answer)
                self._words[_ANSWERED] = number


def _own_account() -> bytes:
    """Return this process' account as JSON, without the oldest operations and the outer frames
    where it is too long."""
    threads = own_threads()
    for newest in (16, 4, 1):
        try:
            collectives = own_collectives(newest)
        except Exception:  # noqa: BLE001 - another version of torch: the stacks tell, too
            collectives = Collectives(is_recorded=False)
        text = msgspec.json.encode(Account(collectives=collectives, threads=threads))
        if len(text) <= MOST_ANSWER_BYTES:
            return text
        threads = [
            msgspec.structs.replace(thread, frames=thread.frames[:_MOST_INNERMOST])
            for thread in threads
        ]
    return msgspec.json.encode(
        Account(collectives=Collectives(is_recorded=False), threads=threads[:1])
    )
