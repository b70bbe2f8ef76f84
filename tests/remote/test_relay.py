"""Connections through the standard input and output of one command."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import python_command
from hpcdist.remote.relay import LOCALHOST, listen


def read_all(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


def exchange(port, said):
    """What comes back for a message, after which this side says nothing more."""
    with socket.create_connection((LOCALHOST, port), timeout=60) as connection:
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def echo(server, number):
    """Answer so many connections, each with all that it said, once it has said all."""

    def answer(connection):
        with connection:
            connection.sendall(read_all(connection))

    with ThreadPoolExecutor(number) as pool:
        for _ in range(number):
            pool.submit(answer, server.accept()[0])


def test_answers_come_back_whole_also_behind_what_a_shell_prints():
    messages = [b"one", b"x" * 3_000_000, b"two", *(b"%d" % number for number in range(40))]
    with socket.create_server((LOCALHOST, 0)) as server:
        echoing = threading.Thread(target=echo, args=[server, len(messages)])
        echoing.start()
        port = str(server.getsockname()[1])
        answer = python_command("from hpcdist.remote.relay import answer; answer()", port)
        noisy = ["sh", "-c", f"echo welcome; echo '[to us]'; exec {shlex.join(answer)}"]
        program = (
            "import sys; from hpcdist.remote.relay import listen; "
            "listen(sys.argv[1:], 0, lambda port: print(port, flush=True))"
        )
        command = [sys.executable, "-c", program, *noisy]
        own = {"stdout": -1, "stderr": -1, "text": True, "start_new_session": True}
        with subprocess.Popen(command, **own) as process:
            here = int(process.stdout.readline())
            with ThreadPoolExecutor(len(messages)) as pool:
                got = list(pool.map(partial(exchange, here), messages))
            echoing.join(60)
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C on a terminal
            _, complained = process.communicate(timeout=60)
    assert got == messages
    assert "in answer" not in complained


@pytest.mark.parametrize("said", ["a", "hpcdist: ready\nno line of ours"])
def test_a_command_that_says_something_else_is_told(said):
    ports = []
    with pytest.raises(SchedulerError, match="which carried the connections"):
        listen(["echo", said], 0, ports.append)
    for port in ports:  # one who comes as it ends
        with suppress(OSError):
            socket.create_connection((LOCALHOST, port)).close()
    for thread in threading.enumerate():
        if "accept" in thread.name:
            thread.join(60)
