"""Finding the processes of a cluster, and ending them so that none escapes."""

import contextlib
import os
import signal
import time
from pathlib import Path

_POLL_S = 0.01


def descendants(root):
    """Pids of all living processes below `root`."""
    children = {}
    for pid in all_pids():
        children.setdefault(parent(pid), []).append(pid)
    found, todo = set(), [root]
    while todo:
        new = children.get(todo.pop(), [])
        found.update(new)
        todo.extend(new)
    return found


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent(pid):
    """0 for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


def is_zombie(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text[text.rindex(")") + 2] == "Z"


def outer_pid(root, inner_pid):
    """The pid here of a process below `root` that has another one in its own namespace of pids."""
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if pids.split()[-1] == str(inner_pid):
                return pid
    raise ProcessLookupError(f"no process {inner_pid} below {root}")


def variable(pid, name):
    """Of the environment that the process was started with; None where it is not there."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = f"{name}=".encode()
    return next((os.fsdecode(e[len(start) :]) for e in entries if e.startswith(start)), None)


def command_line(pid):
    """Each word ends with a zero byte; None for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None


def has_open(pid, path):
    folder = Path(f"/proc/{pid}/fd")
    try:
        return any(_link(fd) == str(path) for fd in folder.iterdir())
    except OSError:
        return False


def network_namespace(pid):
    """None for a process that is gone."""
    return _link(Path(f"/proc/{pid}/ns/net"))


def _link(path):
    try:
        return os.readlink(path)
    except OSError:
        return None


def stop_all(find, limit_s=30.0):
    """SIGSTOP what `find` returns: killed one by one, those left could tell of the others' end."""
    deadline = time.monotonic() + limit_s
    stopped = set()
    while pids := {pid for pid in find() if not is_zombie(pid)} - stopped:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= pids  # one that forked before it was stopped has a child that runs
        if time.monotonic() > deadline:
            raise TimeoutError(f"new ones all the time: {sorted(pids)}")


def kill_all(find, popens=(), limit_s=30.0):
    """SIGKILL what `find` returns, until that is nothing: a process may fork while it is killed.

    Children come before their parents: the kernel sends SIGHUP and SIGCONT to stopped processes
    whose group loses its last parent outside of it, and these would wake up and tell of a cancel.
    """
    deadline = time.monotonic() + limit_s
    while pids := {pid for pid in find() if not is_zombie(pid)}:
        for pid in sorted(pids, key=_depth, reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there after SIGKILL: {sorted(pids)}")
        reap(popens)
        time.sleep(_POLL_S)


def _depth(pid):
    """Return how many ancestors a process has."""
    count = 0
    while pid := parent(pid):
        count += 1
    return count


def reap(popens=()):
    """Collect ended children, adopted ones included; those of `popens` through their objects."""
    own = {popen.pid: popen for popen in popens}
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                own[ended.si_pid].poll()
            else:
                os.waitpid(ended.si_pid, 0)
