"""TCP connections to a port of a node where no login is allowed and no port is open: each goes
through the standard input and output of a command of its own, such as srun.

To the node go the bytes as they are. From there come lines, in base64, as srun passes on what it
has read up to the end of one.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from hpcdist.base.errors import UserError
from hpcdist.machine.process import handling

LOCALHOST = "127.0.0.1"
_MOST_BYTES = 48_000
"""Of one line, before base64."""
_LOOK_S = 0.2
_HALF_OPEN_S = 600.0
"""Time for an answer to whoever says no more: through ssh and srun, nothing tells who has gone."""


def answer() -> None:
    """Be the end on the node: sys.argv has the port that the connection goes to."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's warning before the time limit
    try:
        there = socket.create_connection((LOCALHOST, int(sys.argv[1])))
    except OSError as error:
        sys.exit(f"port {sys.argv[1]} of {socket.gethostname()}: {error.strerror}")

    def send() -> None:
        with suppress(OSError):  # one of them has gone
            while data := os.read(0, _MOST_BYTES):
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)
        time.sleep(_HALF_OPEN_S)
        os._exit(0)

    threading.Thread(target=send, daemon=True).start()
    with suppress(ConnectionError):
        while data := there.recv(_MOST_BYTES):
            sys.stdout.buffer.write(base64.b64encode(data) + b"\n")
            sys.stdout.flush()


def listen(
    argv: Sequence[str], port: int, ready: Callable[[str], None], is_over: Callable[[], bool]
) -> None:
    """Listen on `port` of 127.0.0.1, 0 for a free one, until `is_over`, and start the command for
    each connection; `ready` is told the URL. What a command that fails says is passed on, but not
    that it was ended from here. UserError where port or command cannot be had; KeyboardInterrupt
    after a signal that ends programs, too, once the commands have been ended."""
    if shutil.which(argv[0]) is None:
        raise UserError(f"{argv[0]} is not on PATH")
    try:
        server = socket.create_server((LOCALHOST, port))
    except OSError as error:
        raise UserError(
            f"port {port} of this machine cannot be had: {error.strerror}",
            hint="name another port with --port",
        ) from None
    server.settimeout(_LOOK_S)
    processes = list[subprocess.Popen[bytes]]()

    def carry(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        with connection, process:
            try:
                for line in process.stdout or ():
                    connection.sendall(base64.b64decode(line))
                if process.wait() and process.stderr is not None:
                    os.write(2, os.read(process.stderr.fileno(), _MOST_BYTES))
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side has gone; srun would go on without a reader
                process.terminate()

    interrupts = list[int]()  # only noted: none comes while a command is being started
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with server, handling(numbers, lambda number, _: interrupts.append(number)):
        ready(f"http://{LOCALHOST}:{server.getsockname()[1]}")
        try:
            while not is_over():
                if interrupts:
                    raise KeyboardInterrupt
                with suppress(TimeoutError):
                    connection = server.accept()[0]
                    process = subprocess.Popen(
                        argv,
                        stdin=connection.fileno(),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        start_new_session=True,  # Ctrl-C on a terminal is for this process alone
                    )
                    processes.append(process)
                    threading.Thread(target=carry, args=[connection, process], daemon=True).start()
        finally:
            for process in processes:
                process.terminate()
