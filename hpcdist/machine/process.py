"""Processes by the means of Linux: adoption, reaping, their use, and an end with the parent's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
WARNING_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
"""Signals that schedulers send before they end a job; LSF begins with SIGINT."""
RANK_VARIABLE = "HPCDIST_RANK_PID"
"""Tells the children of a rank, whatever they execute, that they belong to one."""
_ENDED = ("Z", "X")
_KILL_POLL_S = 0.002
_KILL_LIMIT_S = 2.0
_CLEANING_S = 0.2
_CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Helpers that free shared memory when the processes that used it are gone, and then end: Python's
at once, torch's (of the sharing strategy file_system) after 2 s. Nobody else knows what to free."""

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - no file is made there
_OF_TORCH = re.compile(r"torch_(\d+)_")
"""Names that torch gives, by the pid of who makes the file."""

MORE_DESCRIPTORS = (
    "raise the limit of open files where the run starts: ulimit -Hn, nofile in limits.conf, or "
    "LimitNOFILE of the scheduler's daemon"
)
_MOST_DESCRIPTORS = 1 << 20
"""No run needs more; and there are programs that close all descriptors that they may have, one by
one."""

_libc = ctypes.CDLL(None, use_errno=True)


def use_all_descriptors() -> None:
    """Raise the soft limit of open files of this process, and of its later children, to the hard
    one: node 0's agent has a connection to each node, its store one to each rank, and a rank may
    have several to each other rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _MOST_DESCRIPTORS:  # -1 is no limit
        wanted = min(hard, _MOST_DESCRIPTORS) if hard >= 0 else _MOST_DESCRIPTORS
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def kernel_text(path: str | Path) -> str:
    """Return the content of a small file of the kernel's; nothing where it is not there."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


class ProcessId(msgspec.Struct, frozen=True, kw_only=True):
    """A process that can be told from a later one with the same pid."""

    host: str
    boot_id: str
    pid: int
    start_ticks: int
    """Start time in clock ticks since boot, from /proc/<pid>/stat."""


class ProcessUse(NamedTuple):
    """What a process does, as /proc has it."""

    state: str
    """State letter: R, S, D, T, Z ..."""
    cpu_s: float
    """CPU time of all its threads so far."""
    cpu_of_ended_s: float
    """CPU time of the children that it has waited for."""
    rss_bytes: int
    start_ticks: int
    """As that of ProcessId."""


def let_trace() -> None:
    """Let all processes of this user trace this one (py-spy, gdb), where the kernel's Yama keeps
    that from all but parents (ptrace_scope 1); elsewhere nothing changes."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER_ANY


def shield_worker(_worker: int = 0) -> None:
    """Ignore schedulers' signals in a rank's DataLoader worker, as its `worker_init_fn`: else they
    end the worker, and torch's handler the rank."""
    if RANK_VARIABLE in os.environ:
        for signum in WARNING_SIGNALS:
            signal.signal(signum, signal.SIG_IGN)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets away."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the direct children of a process, by all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, kernel_text(f"/proc/{pid}/task/{task}/children").split()))
    return found


def descendants(pid: int) -> list[int]:
    """Return all processes below a process, parents before children."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        found.append(waiting.pop())
        waiting.extend(children(found[-1]))
    return found


def kill_descendants() -> None:
    """SIGKILL and reap all that is below this process, also what is forked meanwhile.

    For a process that adopts orphans: no daemon gets away. What frees shared memory is left to end
    by itself; what is in uninterruptible sleep cannot be killed.
    """
    begin_s = time.monotonic()
    killed: set[int] = set()
    while left := descendants(os.getpid()):
        targets = [pid for pid in left if not is_cleaner(pid)]
        killed.update(targets)
        for pid in targets:
            send_signal(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() - begin_s > (_KILL_LIMIT_S if targets else _CLEANING_S):
            break
        time.sleep(_KILL_POLL_S)
    _free_shared_memory(killed)


def _free_shared_memory(pids: Collection[int]) -> None:
    """Remove what processes that are gone have left in shared memory: a DataLoader's worker makes a
    file for each tensor, and unlinks it when it is mapped. One that is killed in between leaves
    it, as large as a batch, until the machine is started anew."""
    with contextlib.suppress(OSError):
        for name in os.listdir(_SHARED_MEMORY) if pids else ():
            found = _OF_TORCH.match(name)
            if found and int(found[1]) in pids and not Path("/proc", found[1]).exists():
                with contextlib.suppress(OSError):  # another user's
                    os.unlink(f"{_SHARED_MEMORY}/{name}")


def is_cleaner(pid: int) -> bool:
    """Return True if a process frees the shared memory of others when they are gone."""
    return any(name in kernel_text(f"/proc/{pid}/cmdline") for name in _CLEANERS)


def exit_status(pid: int, limit_s: float) -> int:
    """Return the status of a child that ends now, as waitpid does; SIGKILL where it is unknown."""
    deadline = time.monotonic() + limit_s
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status
            time.sleep(_KILL_POLL_S)
    return int(signal.SIGKILL)


def identify(pid: int) -> ProcessId | None:
    """Return what tells a process from a later one with its pid; None where it has ended."""
    use = process_use(pid)
    if use is None or use.state in _ENDED:
        return None
    host = socket.gethostname()
    return ProcessId(host=host, boot_id=boot_id(), pid=pid, start_ticks=use.start_ticks)


def is_alive(process: ProcessId) -> bool | None:
    """Return True if that very process still runs; None where it is on another machine."""
    if process.host != socket.gethostname():
        return None
    return identify(process.pid) == process


def works_in(pid: int, folder: Path) -> bool:
    """Return whether a process is this user's, and its command names something in a folder or it
    holds something there open."""
    real = os.path.realpath(folder)
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return False
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        places = [os.fsdecode(part) for part in command if part.startswith(b"/")]
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed at this moment
                places.append(os.readlink(entry.path))
    except OSError:
        return False
    return any(Path(os.path.realpath(place)).is_relative_to(real) for place in places)


def send_signal(pid: int, signum: int) -> None:
    """Send a signal to a process that may have ended, or have become another user's (sudo)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


@contextlib.contextmanager
def handling(
    signals: Iterable[int], take: Callable[[int, FrameType | None], None]
) -> Iterator[dict[int, Any]]:
    """Handle these signals in this block by `take`, but for those that are ignored, as nohup and a
    script's background have it; give their handlers of before, which hold again after the block."""
    before = {
        number: handler
        for number in signals
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, take)
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def process_use(pid: int) -> ProcessUse | None:
    """Return what a process does; None where it has ended."""
    if not (text := kernel_text(f"/proc/{pid}/stat")):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the second may hold spaces, brackets
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return ProcessUse(
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks_per_s,
        cpu_of_ended_s=(int(fields[13]) + int(fields[14])) / ticks_per_s,
        rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        start_ticks=int(fields[19]),
    )


def catches(pid: int, signum: int) -> bool:
    """Return True where a process has a handler for a signal."""
    status = kernel_text(f"/proc/{pid}/status")
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signum - 1) & 1)


def boot_id() -> str:
    """Return an id of this machine since its start, the same for simulated nodes on it."""
    return kernel_text("/proc/sys/kernel/random/boot_id")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the call
        os._exit(1)
