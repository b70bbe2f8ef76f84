"""Calling a scheduler's commands: always with a time-out, and errors that keep what was said. And
calling Python for code of our own."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from hpcdist.base.errors import SchedulerError

_ANNOUNCED_S = 5.0


def python_command(code: str, *arguments: str) -> list[str]:
    """Return what runs `code` in this Python, and imports nothing from the working directory: `-m`
    and a bare `-c` would find another user's `hpcdist` or `json.py` there before ours."""
    safe_path = "import sys; sys.path[:] = filter(None, sys.path)"  # -P is of Python 3.11
    return [sys.executable, "-c", f"{safe_path}; {code}", *arguments]


class CommandFailedError(SchedulerError):
    """A command ended with an error; `said` is what it wrote."""

    def __init__(self, message: str, *, said: str) -> None:
        super().__init__(message, hint="if it lasts, try it by hand")
        self.said = said


class CommandTimeoutError(SchedulerError):
    """A command did not answer in time."""


def run_command(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it wrote. Raises CommandFailedError, CommandTimeoutError, or
    SchedulerError where there is no such command."""
    done = call_command(argv, timeout_s=timeout_s, environment=environment, text=text)
    if done.returncode != 0:
        raise failure_of(done)
    return done


def call_command(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command as `run_command`, with `text` as its input, whatever its exit code is."""
    timer = threading.Timer(_ANNOUNCED_S, _announce, (argv[0], timeout_s))
    if _listeners and argv[0] not in _announced:
        timer.start()
    try:
        done = subprocess.run(
            argv,
            input=text.encode(errors="surrogateescape"),  # names of files keep their bytes
            capture_output=True,
            timeout=timeout_s,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandTimeoutError(
            f"{argv[0]} did not answer within {timeout_s:g} s",
            hint=f"the scheduler may be down; try it by hand: {shlex.join(argv[:4])}",
        ) from None
    except OSError as error:
        raise SchedulerError(
            f"{argv[0]} cannot be run: {error.strerror}",
            hint="go to a login node of the cluster, or run on this machine with --local",
        ) from None
    finally:
        timer.cancel()
    out, err = (one.decode(errors="replace") for one in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


_listeners: list[Callable[[str], None]] = []
_announced: set[str] = set()


def announce_waits(listens: Callable[[str], None]) -> None:
    """Have `listens` called from now on, by another thread, where a command has not answered for a
    few seconds; once for each command."""
    _listeners[:] = [listens]


def _announce(name: str, timeout_s: float) -> None:
    _announced.add(name)
    for listens in _listeners:
        listens(f"{name} does not answer yet; it is waited for {timeout_s:g} s")


def failure_of(done: subprocess.CompletedProcess[str]) -> CommandFailedError:
    said = (done.stderr.strip() or done.stdout.strip()) or "nothing"
    lines = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    return CommandFailedError(
        f"{shlex.join(done.args)} ended with exit code {done.returncode} and said: {lines}",
        said=said,
    )
