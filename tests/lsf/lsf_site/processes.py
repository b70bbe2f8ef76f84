"""Starting, finding and killing the processes of the simulated hosts."""

import contextlib
import os
import signal
import time
from pathlib import Path

HOST_MARK = "LSB_SITE_HOST"
JOB_MARK = "LSF_SITE_JOB"
TASK_MARK = "LSF_SITE_TASK"
_POLL_S = 0.005


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid):
    """State and parent, or None for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = text[text.rindex(")") + 2 :].split()
    return words[0], int(words[1])


def descendants(roots):
    """Living processes below these, themselves included."""
    children = {}
    alive = set()
    for pid in all_pids():
        if (found := _stat(pid)) and found[0] != "Z":
            alive.add(pid)
            children.setdefault(found[1], []).append(pid)
    found, todo = set(), list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children.get(pid, ()))
    return found & alive


def marked(below, **marks):
    """Processes below one that were started with these variables."""
    wanted = [f"{name}={value}".encode() for name, value in marks.items()]
    found = set()
    for pid in descendants([below]) - {below}:
        with contextlib.suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if all(one in entries for one in wanted):
                found.add(pid)
    return found


def kill_all(find, limit_s=60.0):
    """SIGKILL what `find` returns, until that is nothing: a process may fork while it is killed."""
    deadline = time.monotonic() + limit_s
    while pids := find():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there after SIGKILL: {sorted(pids)}")
        time.sleep(_POLL_S)


def signal_group(group, number):
    """False where nothing of it is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def exit_code(status):
    """(code as LSF counts it, the signal or None) of what waitpid tells."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def has_variable(pid, name):
    """Whether it was started with this variable."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(f"{name}=".encode()) for entry in entries)
