"""Calling LSF's commands: their exit codes differ between sites, so it is the text that counts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, call_command, failure_of

TIMEOUT_S = 30.0

_SHOWN_WORDS = 6  # there may be thousands of ids
_SHOWN_LINES = 5

DOWN = re.compile(
    r"LSF is down|(?:daemon|LIM|mbatchd) (?:is )?(?:down|not responding)|cannot connect to LSF|"
    r"failed in an LSF library call|communication time ?out",
    re.IGNORECASE,
)
"""What commands say where LSF is there and its daemons do not answer."""
_FORMATS = re.compile(r"LSB_B[A-Z]+_FORMAT")


def call_lsf(
    argv: Sequence[str], *, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of LSF, whatever its exit code.

    Raises SchedulerError where LSF is down, does not answer in time, or has no such command.
    """
    done = call_command(argv, timeout_s=timeout_s, environment=_environment())
    complaints = [line for line in lsf_lines(done.stderr, done.stdout) if DOWN.search(line)]
    # A command that has waited for LSF to come back complains too, and then answers.
    if complaints and all(line in complaints for line in lsf_lines(done.stdout)):
        raise SchedulerError(
            f"LSF does not answer: {argv[0]} says {complaints[0]!r}",
            hint="see `lsid`; if it lasts, tell the site",
        )
    return done


def lsf_lines(*texts: str) -> list[str]:
    """What LSF says, without empty lines."""
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]


def failure(
    done: subprocess.CompletedProcess[str], lines: Sequence[str] = ()
) -> CommandFailedError:
    """The error for what a command said; `lines` are those that tell, if not all do."""
    argv = [*done.args[:_SHOWN_WORDS], *(["..."] if len(done.args) > _SHOWN_WORDS else [])]
    said = lines or lsf_lines(done.stderr, done.stdout)
    text = "\n".join(said[:_SHOWN_LINES])
    return failure_of(subprocess.CompletedProcess(argv, done.returncode, text, ""))


def _environment() -> dict[str, str]:
    """Without the formats that a user or a site has set for people to read."""
    return {name: value for name, value in os.environ.items() if not _FORMATS.fullmatch(name)}
