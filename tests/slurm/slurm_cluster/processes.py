"""Finding the processes of a cluster, and ending them so that none escapes."""

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil


def ask(pid, question, otherwise=None):
    """The answer about a living process, as psutil has it; else what was said for that."""
    with contextlib.suppress(psutil.Error):
        return question(psutil.Process(pid))
    return otherwise


def descendants(root):
    """Pids of all living processes below `root`."""
    return {one.pid for one in ask(root, lambda it: it.children(recursive=True), ())}


def outer_pid(root, inner_pid):
    """The pid here of a process below `root` that has another one in its own namespace of pids."""
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:") and line.split()[-1] == str(inner_pid):
                    return pid
    raise ProcessLookupError(f"no process {inner_pid} below {root}")


def variable(pid, name):
    """Of the environment that the process was started with; None where it is not there."""
    return ask(pid, lambda it: it.environ().get(name))


def has_open(pid, path):
    return str(path) in ask(pid, lambda it: [file.path for file in it.open_files()], ())


def network_namespace(pid):
    """None for a process that is gone."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return None


def _living(pids):
    """Those that are no zombies."""
    gone = psutil.STATUS_ZOMBIE
    return {pid for pid in pids if ask(pid, psutil.Process.status, gone) != gone}


def stop_all(find):
    """SIGSTOP what `find` returns: killed one by one, those left could tell of the others' end."""
    stopped = set()
    while pids := _living(find()) - stopped:
        _signal(pids, signal.SIGSTOP)
        stopped |= pids  # one that forked before it was stopped has a child that runs


def kill_all(find, popens=(), limit_s=30.0):
    """SIGKILL what `find` returns, until that is nothing: a process may fork while it is killed.

    Children come before their parents: the kernel sends SIGHUP and SIGCONT to stopped processes
    whose group loses its last parent outside of it, and these would wake up and tell of a cancel.
    """
    deadline = time.monotonic() + limit_s
    while pids := _living(find()):
        depths = {pid: len(ask(pid, psutil.Process.parents, ())) for pid in pids}
        _signal(sorted(pids, key=depths.get, reverse=True), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"still there after SIGKILL: {sorted(pids)}")
        reap(popens)
        time.sleep(0.01)


def _signal(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(popens=()):
    """Collect ended children, adopted ones included; those of `popens` through their objects."""
    own = {popen.pid: popen for popen in popens}
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                own[ended.si_pid].poll()
            else:
                os.waitpid(ended.si_pid, 0)
