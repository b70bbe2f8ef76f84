"""Ctrl-C, SIGTERM and SIGHUP of a command that has a run to end or to let go."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user, or the system, asked the command to end."""


class Interrupts:
    """Raises Interrupted for the first signal, and ignores those that come while it is answered.

    Signals that were ignored when the command began (nohup, a script's background) stay ignored.
    """

    def __init__(self) -> None:
        self._is_deferred = False
        self._came = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in this block; as before after it."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._take)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Note a signal, for `check`: in a block that must not stop half way."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def check(self) -> None:
        """Raise Interrupted if a signal was deferred."""
        if self._came:
            raise Interrupted

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if self._came:
            return
        self._came = True
        if not self._is_deferred:
            raise Interrupted
