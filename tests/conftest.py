"""What all tests share: none may leave a process or shared memory behind."""

import os
import re
import signal
import time
import uuid
from pathlib import Path

import pytest

LIMIT_S = 30.0
_GONE_LIMIT_S = 5.0
_MARK = "HPCDIST_TEST_MARK"
_SHARED_MEMORY = Path("/dev/shm")
_LASTING: set[int] = set()  # processes that serve several tests

os.environ[_MARK] = uuid.uuid4().hex  # every descendant carries it


def wait_until(condition, limit_s=LIMIT_S):
    """The first true value of `condition`; fails after the limit."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"did not come true within {limit_s} s")
        time.sleep(0.01)
    return value


def is_running(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def marked_processes():
    """Command line by pid of the living processes that come from this test session."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or int(name) in _LASTING:
            continue
        try:
            if mark not in Path(f"/proc/{name}/environ").read_bytes():
                continue
            command = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        # Python's own resource tracker lives as long as the test process.
        if b"multiprocessing.resource_tracker" not in command or _parent(name) != os.getpid():
            found[int(name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def _parent(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


def leaked_shared_memory(before):
    """New entries of /dev/shm that no living process uses: those of other programs do not count."""
    new = set(os.listdir(_SHARED_MEMORY)) - before
    return new - _shared_memory_in_use() if new else new


def _shared_memory_in_use():
    names = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        names.update(re.findall(rf"{_SHARED_MEMORY}/(\S+)", "\n".join([maps, *links])))
    return names


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fails the test that leaves a process or shared memory behind, and cleans up after it."""
    before = set(os.listdir(_SHARED_MEMORY))
    yield
    deadline = time.monotonic() + _GONE_LIMIT_S
    while time.monotonic() < deadline and (marked_processes() or leaked_shared_memory(before)):
        time.sleep(0.05)
    processes, memory = marked_processes(), leaked_shared_memory(before)
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    for name in memory:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    assert not processes
    assert not memory


@pytest.fixture(scope="session")
def lasting_process():
    """Call it with the pid of a process that serves several tests."""
    return _LASTING.add
