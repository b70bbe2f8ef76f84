"""A submission that a laptop names is made once, however often the connection breaks."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.base.version import is_served
from hpcdist.runs.run import Run, all_runs, make_runs_folder

SUBMISSION_VARIABLE = "HPCDIST_SUBMISSION"
"""The name; spec.json keeps it with the environment."""


def submitted_before(runs: Path) -> list[Run] | None:
    """Return the runs of an earlier submission of the name in the environment; None where there is
    no name, or nothing was submitted by it.

    From now on this process alone submits by that name, until it ends.
    """
    name = os.environ.get(SUBMISSION_VARIABLE)
    if not name or not is_served():  # a job that submits has its submission's environment
        return None
    make_runs_folder(runs)
    folder = runs / ".submissions"
    folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    # It stays open, and locked, as long as this process lives.
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, files.PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = "the submission whose connection broke is still at work"
        raise SchedulerError(message, hint="run the same command again in a minute") from None
    if not os.fstat(descriptor).st_size:  # nobody had it before
        os.write(descriptor, b"taken")
        return None
    found = [run for run in all_runs(runs) if run.spec.environment.get(SUBMISSION_VARIABLE) == name]
    return found or None
