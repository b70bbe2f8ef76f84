"""TCP connections through the standard input and output of one command, such as srun or ssh: from
a port of this machine to one of a node, where no login is allowed and no port is open.

Both ends send lines, as srun passes on what it has read up to the end of one: the number of a
connection and some of its bytes in base64, nothing at its end.
"""

from __future__ import annotations

import base64
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, NoReturn

from hpcdist.base.errors import SchedulerError, UserError

LOCALHOST = "127.0.0.1"
_MOST_BYTES = 48_000
"""Of one line, before base64."""
_STALL_S = 10
"""Time after which a connection is given up that reads nothing: others wait for it."""
_READY = b"hpcdist: ready\n"


class _Lines:
    """One end of the command: sends what connections receive, and gives them what comes."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader, self._writer, self._lock = reader, writer, threading.Lock()
        self._open: dict[int, socket.socket] = {}
        """Connections by number for which more may come."""

    def begin(self, number: int, connection: socket.socket) -> None:
        """Carry what a connection receives, in a thread. It closes when both of its ways have
        ended, for nobody has it then."""
        limit = struct.pack("ll", _STALL_S, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._open[number] = connection
        threading.Thread(target=self._carry, args=(number, connection), daemon=True).start()

    def _carry(self, number: int, connection: socket.socket) -> None:
        with suppress(OSError):
            while data := connection.recv(_MOST_BYTES):
                self._send(number, data)
        self._send(number, b"")

    def _send(self, number: int, data: bytes) -> None:
        with self._lock, suppress(OSError, ValueError):  # else the command has ended
            self._writer.write(b"%d %s\n" % (number, base64.b64encode(data)))
            self._writer.flush()

    def run(self, port: int | None = None) -> None:
        """Give connections what comes for them until nothing can come any more; a new number is a
        connection to `port`, where that is given."""
        known = set[int]()
        for line in self._reader:
            head, _, text = line.partition(b" ")
            number, data = int(head), base64.b64decode(text)
            if port is not None and number not in known:
                known.add(number)
                try:
                    self.begin(number, socket.create_connection((LOCALHOST, port)))
                except OSError:
                    self._send(number, b"")
            if (connection := self._open.get(number)) is None:
                continue
            try:
                connection.sendall(data) if data else connection.shutdown(socket.SHUT_WR)
            except OSError:  # it has gone, or reads nothing
                data = b""
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            if not data:
                del self._open[number]


def answer() -> None:
    """Be the end on the node: sys.argv has the port that connections go to."""
    # Ctrl-C on a terminal is for the other end, which closes the input then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.buffer.write(_READY)
    sys.stdout.flush()
    _Lines(sys.stdin.buffer, sys.stdout.buffer).run(int(sys.argv[1]))


def listen(argv: Sequence[str], port: int, ready: Callable[[int], None]) -> NoReturn:
    """Be the end here: listen on `port` of 127.0.0.1, 0 for a free one, and start the command,
    whose other end answers; `ready` is told the port.

    Raises KeyboardInterrupt, UserError where the port is taken, and SchedulerError where the
    command ends by itself.
    """
    try:
        server = socket.create_server((LOCALHOST, port))
        command = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        raise UserError(
            f"port {port} of this machine cannot be had, or {argv[0]} not run: {error.strerror}",
            hint="name another port with --port",
        ) from None
    assert command.stdin is not None
    assert command.stdout is not None
    lines = _Lines(command.stdout, command.stdin)

    def accept() -> None:
        number = 0
        with suppress(OSError):  # the server is shut down
            while True:
                number += 1
                lines.begin(number, server.accept()[0])

    with server, command:
        # What start-up files of a shell print comes before.
        try:
            if any(line == _READY for line in command.stdout):
                threading.Thread(target=accept, daemon=True).start()
                ready(server.getsockname()[1])
                lines.run()
        except ValueError:  # amid the lines something was printed
            pass
        finally:
            with suppress(OSError):  # macOS does not know it for such a socket
                server.shutdown(socket.SHUT_RDWR)
            command.terminate()
    raise SchedulerError(
        f"{argv[0]} ended, which carried the connections (exit code {command.returncode})",
        hint="see whether the run goes on: hpcdist status",
    )
