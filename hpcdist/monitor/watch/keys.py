"""Single keys from the terminal, while a view is shown on it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_READ_BYTES = 64


@contextmanager
def keys() -> Iterator[Keys]:
    """Keys as they are pressed, unseen; afterwards the terminal is as it was. Ctrl-C and Ctrl-Z
    stay signals."""
    fd = _terminal()
    if fd is None:
        yield Keys(None)
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield Keys(fd)
    finally:
        if _is_ours(fd):
            # What was typed for the view is not for the shell.
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


class Keys:
    """What is pressed; nothing without a terminal to press it on."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, wait_s: float) -> str:
        """The keys that were pressed, once there are some, or the time is over."""
        if self._fd is None or not _is_ours(self._fd):
            time.sleep(wait_s)
            return ""
        if not select.select([self._fd], [], [], wait_s)[0]:
            return ""
        try:
            pressed = os.read(self._fd, _READ_BYTES)
        except OSError:
            pressed = b""
        if not pressed:  # the terminal is gone
            self._fd = None
        return pressed.decode(errors="replace")


def _terminal() -> int | None:
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or none from the begin
        return None
    return fd if os.isatty(fd) and _is_ours(fd) else None


def _is_ours(fd: int) -> bool:
    """Whether this is what the terminal's keys go to; in the background, asking for one, or
    changing how they come, would stop the process."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
