"""Attacks on the meeting of a run's agents, from accounts that know nothing of its secret."""

import contextlib
import gc
import os
import resource
import secrets
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from another_user import NOBODY, needs_root
from meeting_host import LIMIT_S, MeetingHost, join_in_time, write_place

from hpcdist.agent import meeting, messages
from hpcdist.agent.meeting import (
    CHALLENGE_BYTES,
    GREETING_BYTES,
    PROOF_BYTES,
    StrangerError,
    proof,
    prove_to_leader,
)
from hpcdist.agent.node import CannotLaunchError
from hpcdist.runs.run import Run

GARBAGE = {
    "deep-json": b'{"a":' + b"[" * 1_001 + b"\n",
    "a-line-without-an-end": b"x" * (1 << 20),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n",
    "nothing": b"",
}


@pytest.fixture
def host(tmp_path):
    host = MeetingHost(tmp_path)
    yield host
    host.close()


def assert_that_node_1_can_join(host):
    with host.serving():
        channel = join_in_time(host.run).channel
    channel.send(messages.Failed(sentence="here"))
    host.turn_until(lambda: host.heard)
    channel.close()


def say(connection, garbage):
    """Say it and no more; the connection may be closed before the end of it."""
    with contextlib.suppress(OSError):
        connection.sendall(garbage[:4096])
        connection.shutdown(socket.SHUT_WR)


def read_to_end(connection):
    read = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(4096):
            read += chunk
    return read


# To the leader.


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_its_own_connection_and_nothing_else(host, garbage):
    with host.connect() as attacker, host.serving():
        say(attacker, garbage)
        assert len(read_to_end(attacker)) in {0, CHALLENGE_BYTES}
    (line,) = host.logged
    assert line.startswith("a connection from 127.0.0.1 was turned away: it ")
    assert_that_node_1_can_join(host)
    assert not host.lost


def test_a_proof_cannot_be_used_a_second_time(host):
    with host.connect() as follower, host.connect() as attacker, host.serving():
        leaders = follower.recv(CHALLENGE_BYTES)
        ours = secrets.token_bytes(CHALLENGE_BYTES) + (1).to_bytes(4)
        said = ours + proof(host.secret, "follower", leaders + ours, host.address)
        follower.sendall(said)
        answer = follower.recv(PROOF_BYTES + 8)
        clock = answer[PROOF_BYTES:]
        theirs = proof(host.secret, "leader", leaders + ours + clock, host.address)
        assert answer[:PROOF_BYTES] == theirs
        attacker.recv(CHALLENGE_BYTES)
        attacker.sendall(said)
        assert read_to_end(attacker) == b""
    assert "does not know the secret" in host.logged[0]


def test_strangers_that_say_nothing_are_turned_away_in_time(host, monkeypatch):
    monkeypatch.setattr(meeting, "_PROOF_LIMIT_S", 0.1)
    with host.connect() as idle, host.connect() as slow:
        slow.sendall(b"x")
        host.turn_until(lambda: len(host.logged) == 2)
        assert host.num_strangers == 0
        assert len(read_to_end(idle)) == CHALLENGE_BYTES
    assert [line.split(": ")[1] for line in host.logged] == [
        "it did not prove in time that it knows the secret"
    ] * 2


HOLD = """
import socket, sys
held = [socket.socket() for _ in range(800)]
for one in held:
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


def test_800_idle_connections_leave_room_for_the_run_and_for_its_verdict(host, tmp_path):
    command = [sys.executable, "-ISc", HOLD, str(host.place.port)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what other tests left open would be free later
    with subprocess.Popen(command, stdin=subprocess.PIPE):
        with open(os.devnull) as file:
            lowest = file.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 100, before[1]))
        try:
            host.turn_until(lambda: len(host.logged) == meeting._MOST_LOGGED)
            assert_that_node_1_can_join(host)
            assert host.num_strangers < 100
            (tmp_path / "verdict.json").touch()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(host.logged) == meeting._MOST_LOGGED  # a disk is soon full of all


# To a follower.


def send_garbage(connection):
    connection.sendall(b"x" * 10_000)
    return connection.recv(4096)


def send_back(connection):
    """The follower's own proof, and its own challenge before."""
    connection.sendall(bytes(CHALLENGE_BYTES))
    said = connection.recv(GREETING_BYTES)
    connection.sendall(said[CHALLENGE_BYTES:])
    return said + connection.recv(4096)


@pytest.mark.parametrize("answer", [send_garbage, send_back])
def test_whoever_listens_at_an_old_place_learns_nothing_and_is_no_leader(
    tmp_path, monkeypatch, answer
):
    monkeypatch.setattr(meeting, "_PROOF_LIMIT_S", 0.2)
    run = Run.create(tmp_path, "x")
    secret = secrets.token_bytes(32)
    heard = []

    def impostor():
        connection, _ = listener.accept()
        with connection:
            heard.append(answer(connection))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        write_place(run, listener.getsockname()[1], secret.hex())
        attacker = threading.Thread(target=impostor)
        attacker.start()
        refused = pytest.raises(CannotLaunchError, match="could not reach the agent of node 0")
        with refused as caught:
            join_in_time(run, timeout_s=0)
        attacker.join()
    assert "127.0.0.1 port" in str(caught.value)
    for word in (secret, secret.hex().encode(), b"hello"):
        assert word not in heard[0]


def test_nobody_between_two_agents_can_pass_their_proofs_on(host):
    """At an address of its own, which the follower takes for the leader's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        follower = socket.create_connection(listener.getsockname(), timeout=LIMIT_S)
        to_follower, _ = listener.accept()
    with (
        follower,
        to_follower,
        host.connect() as to_leader,
        host.serving(),
        ThreadPoolExecutor() as pool,
    ):
        proving = pool.submit(prove_to_leader, follower, host.secret, 1)
        to_follower.sendall(to_leader.recv(CHALLENGE_BYTES))
        to_leader.sendall(to_follower.recv(GREETING_BYTES))
        assert read_to_end(to_leader) == b""
        to_follower.sendall(bytes(PROOF_BYTES + 8))
        assert isinstance(proving.exception(), StrangerError)
    assert "does not know the secret" in host.logged[0]


@needs_root
@pytest.mark.parametrize(
    "forge",
    [lambda path: path.chmod(0o644), lambda path: os.chown(path, NOBODY, NOBODY)],
    ids=["readable by others", "owned by nobody"],
)
def test_a_place_that_another_user_could_have_written_is_not_gone_to(host, forge):
    forge(host.run.meeting_file)
    with pytest.raises(CannotLaunchError, match=r"meeting\.json is not private"):
        join_in_time(host.run, timeout_s=0)
    assert not host.num_strangers
