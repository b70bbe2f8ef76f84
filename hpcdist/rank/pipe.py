"""The pipe between a rank and its agent: questions one way, the rank's answers the other.

A rank that hangs in a collective runs no Python, and so no signal handler of Python: a thread of
its own answers. It sleeps in a read, without the interpreter's lock, until the agent asks. Where
the main thread is in C code that keeps the lock, nothing is answered, which says something, too.

Each message is one packet. A program may close the rank's end; then the rank says nothing more.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import functools
import os
import signal
import socket
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from hpcdist.rank.collectives import C10D, UNRECORDED, own_collectives
from hpcdist.rank.libraries import on_import
from hpcdist.runs.requests import Collectives, StepReport
from hpcdist.runs.verdict import ErrorReport

_MOST_BYTES = 1 << 17
"""Size of a packet: less than what a socket takes at once."""
_QUESTION_BYTES = 8
_MAKES_GROUP = "_new_process_group_helper"
"""Called for each process group, by this name within its module (torch 2.7 to 2.15)."""


class Account(msgspec.Struct, frozen=True, kw_only=True, tag="account"):
    """A rank's answer to a question: where it is, beside the stacks that it has dumped."""

    number: int
    """That of the question."""
    collectives: Collectives
    names: dict[str, str] = {}
    """Names of its threads by their number: Python's dumps lack them before 3.14."""


class Profiled(msgspec.Struct, frozen=True, kw_only=True, tag="profiled"):
    """A rank's answer to the agent's wish for a profile of its next steps."""

    wish: int
    report: StepReport


class Unwritten(msgspec.Struct, frozen=True, kw_only=True, tag="unwritten"):
    """A rank could not write the report on its exception: its disk is full."""

    report: ErrorReport


_Message = Account | Profiled | Unwritten
_MessageT = TypeVar("_MessageT", Account, Profiled, Unwritten)
_DECODER: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)


class RankPipe:
    """Both ends of the pipe to one rank, inherited by fork; ranks of later attempts have the same
    pipe."""

    def __init__(self, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are both ends, of another process."""
        if descriptors:
            self._agent, self._rank = (socket.socket(fileno=one) for one in descriptors)
        else:
            self._agent, self._rank = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._number = 0
        self._reading = threading.Lock()  # the agent's threads wait for answers, too
        self._messages: dict[type, Any] = {}
        """The newest message of each kind."""
        self._has_thread = False
        self._inode = os.fstat(self._rank.fileno()).st_ino
        self._stacks = -1

    @property
    def descriptors(self) -> list[int]:
        return [self._agent.fileno(), self._rank.fileno()]

    def close(self) -> None:
        """Close both ends, as in the process of another rank."""
        self._agent.close()
        self._rank.close()

    __del__ = close

    # The agent's end.

    def clear(self) -> None:
        """Forget a rank that is gone, before another is forked."""
        self._newest(Account)
        self._messages.clear()
        with contextlib.suppress(BlockingIOError):
            while self._rank.recv(_QUESTION_BYTES, socket.MSG_DONTWAIT):
                pass

    @property
    def is_attended(self) -> bool:
        """The rank has a thread that answers."""
        return self._newest(Account) is not None

    def ask(self) -> None:
        """Ask where the rank is: it dumps its stacks, and `account` is the answer."""
        self._number += 1
        with contextlib.suppress(OSError):  # nobody has read the questions before
            self._agent.send(self._number.to_bytes(_QUESTION_BYTES, "little"), socket.MSG_DONTWAIT)

    def account(self) -> Account | None:
        """Return the answer to the last question; None until it is there."""
        account = self._newest(Account)
        return account if account and account.number >= self._number else None

    def report_on(self, wish: int) -> StepReport | None:
        """Return the profile that the agent has wished for; None until it is there."""
        profiled = self._newest(Profiled)
        return profiled.report if profiled and profiled.wish == wish else None

    def unwritten(self) -> ErrorReport | None:
        """Return the report that the rank had no room for on its disk."""
        unwritten = self._newest(Unwritten)
        return unwritten.report if unwritten else None

    def _newest(self, kind: type[_MessageT]) -> _MessageT | None:
        with self._reading, contextlib.suppress(BlockingIOError):
            while packet := self._agent.recv(_MOST_BYTES, socket.MSG_DONTWAIT):
                with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
                    message = _DECODER.decode(packet)  # the program can write there, too
                    self._messages[type(message)] = message
        return self._messages.get(kind)

    # The rank's end.

    def begin(self, stacks: int) -> None:
        """Take the rank's end, in the rank's process. A thread answers from the first process group
        on: a program without one has no thread more than it makes. It dumps stacks to `stacks`."""
        self._agent.close()
        self._stacks, pid = stacks, os.getpid()

        def change(module: ModuleType) -> None:
            make = getattr(module, _MAKES_GROUP, None)
            if make is None:  # another release
                return

            @functools.wraps(make)
            def make_group(*args: Any, **kwargs: Any) -> Any:
                if not self._has_thread and os.getpid() == pid:
                    self._has_thread = True
                    # It is none of threading's, whose list of threads is the program's.
                    with contextlib.suppress(RuntimeError):  # the limit of threads is reached
                        _thread.start_new_thread(self._answer_questions, ())
                return make(*args, **kwargs)

            setattr(module, _MAKES_GROUP, make_group)

        on_import(C10D, change)

    def say(self, message: _Message) -> bool:
        """Send a message to the agent; return False where it is too long."""
        packet = msgspec.json.encode(message)
        with contextlib.suppress(OSError):
            if len(packet) <= _MOST_BYTES and self._is_open():
                self._rank.send(packet, socket.MSG_DONTWAIT)
        return len(packet) <= _MOST_BYTES

    def _is_open(self) -> bool:
        """Return False where the program has closed the pipe, and may have another file there."""
        return os.fstat(self._rank.fileno()).st_ino == self._inode

    def _answer_questions(self) -> None:
        # Handlers run in the main thread: a signal that came here would not wake that.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        self.say(Account(number=0, collectives=UNRECORDED))
        with contextlib.suppress(OSError):
            while self._is_open() and (question := self._rank.recv(_QUESTION_BYTES)):
                with contextlib.suppress(BlockingIOError):  # of several questions, answer the last
                    while newer := self._rank.recv(_QUESTION_BYTES, socket.MSG_DONTWAIT):
                        question = newer
                self._answer(int.from_bytes(question, "little"))

    def _answer(self, number: int) -> None:
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        # Without the lock of `threading`, which a thread that hangs may hold.
        threads = list(threading._active.items())  # type: ignore[attr-defined] # noqa: SLF001
        names = {str(ident): str(thread.name) for ident, thread in threads}
        for newest in (16, 4, 1, 0):  # of so many operations there is room for what is told
            collectives = own_collectives(newest) if newest else UNRECORDED
            if self.say(Account(number=number, collectives=collectives, names=names)):
                return
