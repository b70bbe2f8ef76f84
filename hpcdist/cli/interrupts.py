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

    Once a run is under way signals are only noted, and `check` raises where it is safe: in the
    midst of drawing on the terminal it would leave the run behind.

    Signals that were ignored when the command began (nohup, a script's background) stay ignored.
    """

    def __init__(self) -> None:
        self._is_deferred = False
        self._came = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in this block; after one that came, the command is left in peace."""

        def take(_number: int, _frame: FrameType | None) -> None:
            if not self._came:
                self._came = True
                if not self._is_deferred:
                    raise Interrupted

        before = {
            number: handler
            for number in _SIGNALS
            if (handler := signal.getsignal(number)) is not signal.SIG_IGN
        }
        for number in before:
            signal.signal(number, take)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self._came else handler)

    def defer(self) -> None:
        """From here on only note a signal: what begins must not stop half way."""
        self._is_deferred = True

    def check(self) -> None:
        """Raise if a signal was noted."""
        if self._came:
            raise Interrupted
