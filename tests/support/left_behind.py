"""What a test leaves behind, processes and shared memory, fails it, and is cleaned up."""

import contextlib
import os
import re
import signal
import time
import uuid
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

_GONE_LIMIT_S = 30.0
_MARK = "HPCDIST_TEST_MARK"
_SHARED_MEMORY = Path("/dev/shm")
LASTING: set[int] = set()  # processes that serve several tests


def _living():
    return set(map(int, filter(str.isdigit, os.listdir("/proc"))))


# Processes of others: around each test only the new are looked at.
_STRANGERS = _living()
os.environ[_MARK] = uuid.uuid4().hex  # every descendant carries it


@pytest.fixture(scope="session")
def lasting_process():
    """Call it with the pid of a process that serves several tests."""
    return LASTING.add


def marked_processes():
    """Command line by pid of the living processes that come from this test session."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    # Python's own resource tracker lives as long as the test process.
    own = {os.getpid(), resource_tracker._resource_tracker._pid}
    living = _living()
    _STRANGERS.intersection_update(living)
    found = {}
    for pid in living - _STRANGERS - LASTING - own:
        try:
            environment = _read_bytes(pid, "environ")
        except PermissionError:
            _STRANGERS.add(pid)
            continue
        if mark in environment:
            command = _read_bytes(pid, "cmdline")
            found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
        elif environment:  # without, it may be about to execute a program
            _STRANGERS.add(pid)
    return found


def _read_bytes(pid, name):
    """A file of a process; nothing where the process has ended, or has no such file."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except PermissionError:
        raise
    except OSError:
        return b""


def leaked_shared_memory(before):
    """New entries of /dev/shm that a process made by torch that is gone. torch takes the name away
    as soon as it has mapped what it made: a process that is killed in between leaves it. Agents
    free what those leave that they kill; a test that kills a rank or a worker by itself does not.
    """
    made_by = {name: re.match(r"torch_(\d+)_", name) for name in os.listdir(_SHARED_MEMORY)}
    return {
        name
        for name, maker in made_by.items()
        if name not in before and maker is not None and not Path("/proc", maker[1]).exists()
    }


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fails the test that leaves a process or shared memory behind, and cleans up after it."""
    before = set(os.listdir(_SHARED_MEMORY))
    yield
    deadline = time.monotonic() + _GONE_LIMIT_S
    processes, memory = marked_processes(), leaked_shared_memory(before)
    while (processes or len(memory) > 1) and time.monotonic() < deadline:
        time.sleep(0.05)
        # To look at all processes, time and again, takes the CPU from those that are to end:
        # torch's manager of shared memory takes two seconds.
        still = {pid: command for pid, command in processes.items() if _read_bytes(pid, "environ")}
        processes = still or marked_processes()
        memory &= leaked_shared_memory(before)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    for name in memory:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    assert not processes, processes
    assert len(memory) <= 1, memory
