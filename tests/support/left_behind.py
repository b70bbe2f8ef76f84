"""What a test leaves behind, processes and shared memory, fails it, and is cleaned up."""

import contextlib
import os
import re
import signal
import time
import uuid
from pathlib import Path

import pytest

_GONE_LIMIT_S = 30.0
_MARK = "HPCDIST_TEST_MARK"
_SHARED_MEMORY = Path("/dev/shm")
LASTING: set[int] = set()  # processes that serve several tests
_STRANGERS: set[int] = set()  # processes of others: around each test only the new are looked at

os.environ[_MARK] = uuid.uuid4().hex  # every descendant carries it


@pytest.fixture(scope="session")
def lasting_process():
    """Call it with the pid of a process that serves several tests."""
    return LASTING.add


def marked_processes():
    """Command line by pid of the living processes that come from this test session."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    living = set(map(int, filter(str.isdigit, os.listdir("/proc"))))
    _STRANGERS.intersection_update(living)
    found = {}
    for pid in living - _STRANGERS - LASTING - {os.getpid()}:
        try:
            environment = _read_bytes(pid, "environ")
        except PermissionError:
            _STRANGERS.add(pid)
            continue
        if mark not in environment:
            # Without, it may be about to execute a program, unless it is the kernel's own.
            if environment or _stat(pid, "flags") & _KERNEL_THREAD:
                _STRANGERS.add(pid)
        # Python's own resource tracker lives as long as the test process.
        elif not _is_resource_tracker(command := _read_bytes(pid, "cmdline")) or (
            _stat(pid, "ppid") != os.getpid()
        ):
            found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


_STAT = {"ppid": 1, "flags": 6}  # places after the command's name in /proc/PID/stat
_KERNEL_THREAD = 0x00200000


def _stat(pid, name):
    _, _, fields = _read_bytes(pid, "stat").rpartition(b") ")
    return int(fields.split()[_STAT[name]]) if fields else 0


def _read_bytes(pid, name):
    """A file of a process; nothing where the process has ended, or has no such file."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except PermissionError:
        raise
    except OSError:
        return b""


def _is_resource_tracker(command):
    return b"multiprocessing.resource_tracker" in command


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


def _still_runs(process):
    pid, _ = process
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return False


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
        processes = dict(filter(_still_runs, processes.items())) or marked_processes()
        memory &= leaked_shared_memory(before)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    for name in memory:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    assert not processes, processes
    assert len(memory) <= 1, memory
