"""Calling a scheduler's commands: always with a time-out, and errors that keep what was said."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence

from hpcdist.base.errors import SchedulerError


class CommandFailedError(SchedulerError):
    """A command ended with an error; `said` is what it wrote."""

    def __init__(self, message: str, *, said: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
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
    out, err = (written.decode(errors="replace") for written in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def failure_of(done: subprocess.CompletedProcess[str]) -> CommandFailedError:
    said = (done.stderr.strip() or done.stdout.strip()) or "nothing"
    lines = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    return CommandFailedError(
        f"{shlex.join(done.args)} ended with exit code {done.returncode} and said: {lines}",
        said=said,
        hint="if it lasts, try it by hand",
    )
