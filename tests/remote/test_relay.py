"""Connections that each go through the standard input and output of a command of their own."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from waiting import wait_for

from hpcdist.base.errors import UserError
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


def way_to(server):
    port = str(server.getsockname()[1])
    return python_command("from hpcdist.remote.relay import answer; answer()", port)


def start(command):
    """A process that listens for a command, and its port."""
    program = (
        "import sys; from hpcdist.remote.relay import listen; "
        "listen(sys.argv[1:], 0, lambda url: print(url, flush=True), lambda: False)"
    )
    own = {"stdout": -1, "stderr": -1, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", program, *command], **own)
    return process, int(process.stdout.readline().rpartition(":")[2])


def test_answers_come_back_whole_and_a_reader_that_stands_still_holds_up_nobody():
    messages = [b"one", b"\0\xff\r\n" * 800_000, b"two", *(b"%d" % number for number in range(12))]
    with socket.create_server((LOCALHOST, 0)) as server:
        echoing = threading.Thread(target=echo, args=[server, len(messages) + 1])
        echoing.start()
        process, here = start(way_to(server))
        with process:
            with socket.create_connection((LOCALHOST, here)) as still:
                still.sendall(b"x" * 8_000_000)
                still.shutdown(socket.SHUT_WR)
                with ThreadPoolExecutor(len(messages)) as pool:
                    got = list(pool.map(partial(exchange, here), messages))
                assert len(read_all(still)) == 8_000_000
            echoing.join(60)
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C on a terminal
            _, complained = process.communicate(timeout=60)
    assert got == messages
    assert "in answer" not in complained


def test_a_command_ends_with_its_reader_and_with_a_listener_whose_terminal_is_closed(tmp_path):
    talks = f"trap '' PIPE; echo $$ >> {tmp_path}/pids; while sleep 0.05; do echo eA==; done"
    process, here = start(["sh", "-c", talks])

    def is_gone():
        return not Path("/proc", (tmp_path / "pids").read_text().split()[-1]).exists()

    with process:
        for number in (0, signal.SIGHUP):
            with socket.create_connection((LOCALHOST, here), timeout=60) as connection:
                assert connection.recv(1) == b"x"
                process.send_signal(number)
                _ = number and process.communicate(timeout=60)
            wait_for(is_gone)


def test_the_end_at_the_node_does_not_outlive_for_long_a_reader_that_says_no_more():
    def talk():
        with server.accept()[0] as connection, suppress(OSError):
            while True:
                connection.sendall(b"x")

    soon = "from hpcdist.remote import relay; relay._HALF_OPEN_S = 0.5; relay.answer()"
    with socket.create_server((LOCALHOST, 0)) as server:
        threading.Thread(target=talk).start()
        command = [sys.executable, "-c", soon, str(server.getsockname()[1])]
        assert subprocess.call(command, stdin=subprocess.DEVNULL, stdout=-3, timeout=60) == 0


def test_a_port_where_nothing_listens_is_named_and_a_connection_that_is_reset_ends(capfd):
    def ask_once(command):
        """What the listener says of one connection, to which no answer comes."""
        ended = threading.Event()

        def ask(url):
            got = partial(exchange, int(url.rpartition(":")[2]), b"")
            threading.Thread(target=lambda: (got() == b"") and ended.set()).start()

        listen(command, 0, ask, ended.is_set)
        return capfd.readouterr().err

    def reset():
        with server.accept()[0] as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server((LOCALHOST, 0)) as server:
        command = way_to(server)
        threading.Thread(target=reset).start()
        assert not ask_once(command)
    refused = f"port {command[-1]} of {socket.gethostname()}: Connection refused"
    assert refused in ask_once(command)


def test_a_taken_port_and_a_command_that_is_not_there_are_told():
    taken = pytest.raises(UserError, match="cannot be had: Address already in use")
    with socket.create_server((LOCALHOST, 0)) as server, taken:
        listen(["true"], server.getsockname()[1], lambda _: None, lambda: False)
    with pytest.raises(UserError, match="no-such-command is not on PATH"):
        listen(["no-such-command"], 0, lambda _: None, lambda: False)
