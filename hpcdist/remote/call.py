"""The laptop's side of a command that runs at a host: what it prints appears here, signals go
there, and its exit code comes back."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import msgspec

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.version import __version__
from hpcdist.machine.process import handling
from hpcdist.remote.request import GREETING, MOST_BYTES, Request
from hpcdist.remote.ssh import LOST, START_FILE, Connection, ConnectionLostError

_QUIET = 'exec 3>&1 4>&2; exec bash -lc "$0" >/dev/null 2>&1'
"""Start a login shell whose profile's output is no part of the answer; for bash."""
_START = (
    f'exec >&3 2>&4 3>&- 4>&-; s="{START_FILE}"; if [ -x "$s" ]; then exec "$s" serve; fi; '
    "if command -v hpcdist >/dev/null; then exec hpcdist serve; fi; exit 127"
)
"""Both stand in single quotes, which all shells read alike if there is none of ' ! \\ in them."""
_NONE_THERE = 127
_ANSWER_LIMIT_S = 60.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
_TERMINAL_VARIABLES = ("TERM", "COLORTERM", "NO_COLOR")
_CHUNK_BYTES = 1 << 16
_LONGEST_GREETING = 100


class Output:
    """Shows what a command prints, over as many connections as it takes.

    Where it goes to no terminal, the lines of a rank that were shown before a connection broke are
    not shown again: they come in the same order.
    """

    def __init__(self, *, captured: bool = False) -> None:
        self.captured = bytearray() if captured else None
        self._by_line = not sys.stdout.isatty()
        self._shown: Counter[bytes] = Counter()
        self._skipped: Counter[bytes] = Counter()
        self._rest = b""

    def begin(self) -> None:
        """Expect what was shown so far once more."""
        self._skipped, self._rest = Counter(self._shown), b""

    def take(self, data: bytes) -> None:
        if self.captured is not None:
            self.captured += data
            if len(self.captured) > MOST_BYTES:
                raise SchedulerError("the host prints without an end")
        elif not self._by_line:
            _write(data)
        else:
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take_line(line + b"\n")

    def finish(self) -> None:
        """Show the last line, which has no end."""
        _write(self._rest)
        self._rest = b""

    def _take_line(self, line: bytes) -> None:
        rank = line.partition(b"] ")[0] if line.startswith(b"[rank ") else b""
        if self._skipped[rank]:
            self._skipped[rank] -= 1
        else:
            self._shown[rank] += 1
            _write(line)


def call(connection: Connection, request: Request, output: Output) -> int:
    """Run a command at the host and return its exit code. Raises ConnectionLostError where the
    connection breaks, and SchedulerError where there is no hpcdist."""
    output.begin()
    # The command decides on Ctrl-C: it is passed on, and ssh must not end by it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            connection.command(f"exec bash -c '{_QUIET}' '{_START}'"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            rest = _greet(connection, process)
            _send(process, _with_terminal(request, output).line())
            output.take(rest)
            _relay(process, output)
        except BaseException:
            process.terminate()
            raise
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        code = process.wait()
    if code == LOST or code < 0:
        raise ConnectionLostError(f"the connection to {connection.host.name} broke")
    output.finish()
    return code


def _greet(connection: Connection, process: subprocess.Popen[bytes]) -> bytes:
    """Wait for the host's first line, and return what came behind it."""
    assert process.stdout is not None
    host, heard = connection.host.name, b""
    until_s = time.monotonic() + _ANSWER_LIMIT_S
    while b"\n" not in heard and len(heard) < _LONGEST_GREETING:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            raise SchedulerError(
                f"{host} has not answered within {_ANSWER_LIMIT_S:.0f} s",
                hint=f"see whether your shell's profile there comes to its end: ssh {host} true",
            )
        if not (data := process.stdout.read(_CHUNK_BYTES)):
            code = process.wait()
            if code == _NONE_THERE:
                raise SchedulerError(
                    f"there is no hpcdist at {host}",
                    hint=f"install it there with: hpcdist setup {host}",
                )
            raise connection.unreached()
        heard += data
    line, _, rest = heard.partition(b"\n")
    words = line.decode(errors="replace").split()
    if len(words) != 2 or words[0] != GREETING:
        raise UserError(
            f"{host} did not begin as hpcdist {__version__} does",
            hint=f"have the same version there with: hpcdist setup {host}",
        )
    if words[1] != __version__:
        print(
            f"note: {host} has hpcdist {words[1]}, this machine {__version__}; bring them "
            f"together with: hpcdist setup {host}",
            file=sys.stderr,
        )
    return rest


def _with_terminal(request: Request, output: Output) -> Request:
    size = shutil.get_terminal_size()
    return msgspec.structs.replace(
        request,
        out=output.captured is None and sys.stdout.isatty(),
        err=sys.stderr.isatty(),
        columns=size.columns,
        lines=size.lines,
        variables={name: os.environ[name] for name in _TERMINAL_VARIABLES if name in os.environ},
    )


def _relay(process: subprocess.Popen[bytes], output: Output) -> None:
    """Show what the command prints, and pass signals on, until it has ended."""
    assert process.stdout is not None
    sys.stdout.flush()
    sys.stderr.flush()
    with _signals() as (wake, came):
        while True:
            readable, _, _ = select.select([process.stdout.fileno(), wake], [], [])
            if wake in readable:
                os.read(wake, 64)
                while came:
                    size = shutil.get_terminal_size()
                    _send(process, f"{came.pop(0)} {size.columns} {size.lines}\n".encode())
            if process.stdout.fileno() in readable:
                if not (data := process.stdout.read(_CHUNK_BYTES)):
                    return
                output.take(data)


@contextlib.contextmanager
def _signals() -> Iterator[tuple[int, list[int]]]:
    """Give what can be read when a signal comes, and those that came; Ctrl-C is for the command at
    the host, and twice for this one."""
    reader, writer = os.pipe()
    came: list[int] = []
    interrupts = 0

    def take(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            raise KeyboardInterrupt
        came.append(number)
        os.write(writer, b"s")

    try:
        with handling(_PASSED_ON, take):
            yield reader, came
    finally:
        os.close(reader)
        os.close(writer)


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Send what the host is told; that the connection broke is noticed where it is read."""
    assert process.stdin is not None
    view = memoryview(data)
    with contextlib.suppress(BrokenPipeError):
        while view:
            view = view[process.stdin.write(view) or 0 :]


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]
