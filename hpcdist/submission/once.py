"""A submission that a laptop names is made once, however often the connection breaks."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from hpcdist.base import files, served
from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.runs.run import Run, all_runs, make_runs_folder
from hpcdist.runs.spec import RunSpec

SUBMISSION_VARIABLE = "HPCDIST_SUBMISSION"
"""The name; spec.json keeps it with the environment."""
_FOLDER = ".submissions"
_LIMIT_S = 120.0
_POLL_S = 0.2
_KEPT_S = 7 * 86400.0


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
    if not _take(runs / _FOLDER, name):
        return None
    found = [
        run
        for run in all_runs(runs)
        if (run.read_spec() or RunSpec()).environment.get(SUBMISSION_VARIABLE) == name
    ]
    return found or None


def _take(folder: Path, name: str) -> bool:
    """Lock a name, and return whether another process had it before."""
    make_runs_folder(folder.parent)
    folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    for old in folder.iterdir():
        with suppress(FileNotFoundError):  # another laptop's submission has removed it
            if time.time() - old.stat().st_mtime > _KEPT_S:
                old.unlink()
    path = folder / name
    was_there = path.exists()
    # It stays open, and locked, as long as this process lives.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, files.PRIVATE_FILE)
    until_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise SchedulerError(
                    f"the submission that began before is not at its end after {_LIMIT_S:.0f} s",
                    hint="look with: hpcdist runs",
                ) from None
            was_there = True
            time.sleep(_POLL_S)
        else:
            return was_there
