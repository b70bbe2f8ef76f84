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
    """New entries of /dev/shm that no living process uses: those of other programs do not count."""
    new = {name: _inode(name) for name in set(os.listdir(_SHARED_MEMORY)) - before}
    unused = {inode for inode in new.values() if inode is not None and not _is_used(inode)}
    leaked = unused - _find_used(unused)
    return {name for name, inode in new.items() if inode in leaked}


_SHARED_MEMORY_USERS: dict[int, int] = {}  # a process that was found to use it, by its inode


def _is_used(inode):
    """Whether who used it then still does: to look at all processes takes long."""
    user = _SHARED_MEMORY_USERS.get(inode)
    return user is not None and inode in set(_shared_memory_of(user))


def _was_cut_off(name):
    """Whether a process that is gone made it by torch, which takes the name away as soon as it has
    mapped what it made: one that is killed in between leaves it. Agents free what those leave that
    they kill; a test that kills a rank or a worker by itself does not, nor one beside this one."""
    made_by = re.match(r"torch_(\d+)_", name)
    return made_by is not None and not Path("/proc", made_by[1]).exists()


def _inode(name):
    try:
        return (_SHARED_MEMORY / name).stat().st_ino
    except FileNotFoundError:
        return None


def _find_used(inodes):
    """Those that a process uses; what is new is used by new processes, which are looked at first:
    with many ranks about, all take half a second."""
    found = set()
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True):
        if found == inodes:
            break
        used = inodes.intersection(_shared_memory_of(pid))
        _SHARED_MEMORY_USERS.update(dict.fromkeys(used, pid))
        found |= used
    return found


def _shared_memory_of(pid):
    """Inodes, not names: who makes a semaphore has mapped it under a name that is gone since."""
    device = _SHARED_MEMORY.stat().st_dev
    mapped = re.compile(
        rf"^\S+ \S+ \S+ {os.major(device):02x}:{os.minor(device):02x} (\d+)", re.MULTILINE
    )
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        yield from map(int, mapped.findall(maps))
        yield from _open_inodes(Path(f"/proc/{pid}/fd"), device)


def _open_inodes(folder, device):
    for fd in folder.iterdir():
        with contextlib.suppress(OSError):
            found = fd.stat()
            if found.st_dev == device:
                yield found.st_ino


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
    while (processes or memory) and time.monotonic() < deadline:
        time.sleep(0.05)
        # To look at all processes, time and again, takes the CPU from those that are to end:
        # torch's manager of shared memory takes two seconds.
        processes = dict(filter(_still_runs, processes.items())) or marked_processes()
        if memory and not processes:  # other test processes make new entries all the time
            memory &= leaked_shared_memory(before)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    for name in memory:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    assert not processes
    assert len(memory) <= 1, memory
    assert all(map(_was_cut_off, memory)), memory
