"""Finding the processes of a cluster, and ending them so that none escapes."""

import contextlib
import os
import signal
import time
from pathlib import Path


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


def _read(pid, name):
    """A file of a process; nothing for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _stat(pid):
    """State and parent, `Z` and 0 of a process that is gone."""
    _, _, rest = _read(pid, "stat").rpartition(b") ")
    state, ppid, *_ = rest.split() or (b"Z", b"0")
    return state.decode(), int(ppid)


def parent(pid):
    return _stat(pid)[1]


def is_zombie(pid):
    return _stat(pid)[0] == "Z"


def outer_pid(root, inner_pid):
    """The pid here of a process below `root` that has another one in its own namespace of pids."""
    for pid in descendants(root):
        for line in _read(pid, "status").decode().splitlines():
            if line.startswith("NSpid:") and line.split()[-1] == str(inner_pid):
                return pid
    raise ProcessLookupError(f"no process {inner_pid} below {root}")


def variable(pid, name):
    """Of the environment that the process was started with; None where it is not there."""
    start = f"{name}=".encode()
    entries = _read(pid, "environ").split(b"\0")
    return next((os.fsdecode(one[len(start) :]) for one in entries if one.startswith(start)), None)


def command_line(pid):
    """Each word ends with a zero byte."""
    return _read(pid, "cmdline")


def has_open(pid, path):
    try:
        return any(_link(fd) == str(path) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def network_namespace(pid):
    """None for a process that is gone."""
    return _link(Path(f"/proc/{pid}/ns/net"))


def _link(path):
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return None


def stop_all(find):
    """SIGSTOP what `find` returns: killed one by one, those left could tell of the others' end."""
    stopped = set()
    while pids := {pid for pid in find() if not is_zombie(pid)} - stopped:
        _signal(pids, signal.SIGSTOP)
        stopped |= pids  # one that forked before it was stopped has a child that runs


def kill_all(find, popens=(), limit_s=30.0):
    """SIGKILL what `find` returns, until that is nothing: a process may fork while it is killed.

    Children come before their parents: the kernel sends SIGHUP and SIGCONT to stopped processes
    whose group loses its last parent outside of it, and these would wake up and tell of a cancel.
    """
    deadline = time.monotonic() + limit_s
    while pids := {pid for pid in find() if not is_zombie(pid)}:
        _signal(sorted(pids, key=_depth, reverse=True), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there after SIGKILL: {sorted(pids)}")
        reap(popens)
        time.sleep(0.01)


def _signal(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


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
