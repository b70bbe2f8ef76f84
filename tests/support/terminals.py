"""A command on a terminal of its own."""

import fcntl
import os
import pty
import select
import struct
import termios
import time

LIMIT_S = 100.0


class Terminal:
    """A command on a terminal of its own, as its foreground process."""

    def __init__(self, hpcdist, *arguments, rows=None, columns=80):
        """Without rows its size is not known, as in a serial console."""
        self._master, slave = pty.openpty()
        if rows is not None:
            self.resize(rows=rows, columns=columns)
        self.process = hpcdist.start(
            *arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.shown = ""

    def read(self, wait_s=0.05):
        """False once the terminal is closed."""
        if select.select([self._master], [], [], wait_s)[0]:
            try:
                self.shown += os.read(self._master, 1 << 16).decode(errors="replace")
            except OSError:
                return False
        return True

    def wait_for(self, text, *, after=0):
        """Wait until the text was shown; `after` so many characters."""
        deadline_s = time.monotonic() + LIMIT_S
        while text not in self.shown[after:]:
            assert self.read(), f"ended without {text!r}: {self.shown}"
            assert time.monotonic() < deadline_s, f"no {text!r}: {self.shown}"

    def resize(self, *, rows, columns):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def type(self, keys):
        os.write(self._master, keys)

    def press_ctrl_c(self):
        self.type(b"\x03")

    def finish(self):
        deadline_s = time.monotonic() + LIMIT_S
        while self.read() and time.monotonic() < deadline_s:
            pass
        os.close(self._master)
        return self.process.wait(LIMIT_S)


def _take_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
