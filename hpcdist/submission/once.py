"""A submission that a laptop names is made once, however often the connection breaks."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from hpcdist.base import files, served
from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.polling import poll
from hpcdist.runs.run import Run, all_runs, make_runs_folder

SUBMISSION_VARIABLE = "HPCDIST_SUBMISSION"
"""The name; spec.json keeps it with the environment."""
_LIMIT_S, _POLL_S = 120.0, 0.2


def submitted_before(runs: Path) -> list[Run] | None:
    """Return the runs of an earlier submission of the name in the environment; None where there is
    no name, or nothing was submitted by it.

    From now on this process alone submits by that name, until it ends.
    """
    name = os.environ.get(SUBMISSION_VARIABLE)
    if not name or not served.is_served():  # a job that submits has its submission's environment
        return None
    if not name.isalnum():
        raise UserError(f"{SUBMISSION_VARIABLE} is {name!r}, which is no name", hint="unset it")
    make_runs_folder(runs)
    folder = runs / ".submissions"
    folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    # It stays open, and locked, as long as this process lives.
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, files.PRIVATE_FILE)

    def lock() -> bool | None:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return None

    if not poll(lock, interval_s=_POLL_S, limit_s=_LIMIT_S):
        raise SchedulerError(
            f"the submission that began before is not at its end after {_LIMIT_S:.0f} s",
            hint="look with: hpcdist runs",
        )
    if not os.fstat(descriptor).st_size:  # nobody had it before
        os.write(descriptor, b"taken")
        return None
    found = [run for run in all_runs(runs) if run.spec.environment.get(SUBMISSION_VARIABLE) == name]
    return found or None
