"""Foresight of a run by the time that it is submitted: the last plan of its job, and its start,
which the scheduler is asked for beside the submission. Light: every submission imports it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError
from hpcdist.job.spec import job_to_dict
from hpcdist.planning.when import ask_start
from hpcdist.runs.run import make_runs_folder
from hpcdist.runs.spec import Planned
from hpcdist.schedulers.base import Start
from hpcdist.submission.plan import PlannedRun

FOLDER = ".plans"
"""In the folder of the runs: hidden, so that nothing takes it for a run."""
_KEPT_S = 24 * 3600.0
_LIMIT_S = 1.0


def kept_file(planned: PlannedRun, runs: Path) -> Path:
    """Return the place of what is foreseen of a job, which is private."""
    job = job_to_dict(planned.loaded.job)
    content = json.dumps([job, planned.scheduler.name, planned.cluster.name])
    return runs / FOLDER / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.json"


def keep(values: Planned, planned: PlannedRun, runs: Path) -> None:
    """Keep what is foreseen of a job for its submission."""
    make_runs_folder(runs)
    file = kept_file(planned, runs)
    with suppress(OSError):  # the plan is shown all the same
        file.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        files.write_json(file, msgspec.to_builtins(values))


class Foresight:
    """The start of a run that is being submitted. It is not waited for: a scheduler that does not
    answer meanwhile says nothing."""

    def __init__(self, planned: PlannedRun) -> None:
        self.start, self.asked_s = Start(), time.time()
        self._planned = planned
        if planned.scheduler.has_queue:
            threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        with suppress(HpcdistError, OSError, ValueError):
            self.start = ask_start(self._planned, timeout_s=_LIMIT_S)

    def values(self, runs: Path) -> Planned | None:
        """Return what is foreseen so far, also by a plan of the last day; None: nothing."""
        kept, file = None, kept_file(self._planned, runs)
        with suppress(OSError), files.open_private(file):  # of nobody else's making
            if time.time() - file.stat().st_mtime < _KEPT_S:
                kept = files.read_as(file, Planned)
        if self.start.time_s is None:
            return kept
        return replace(kept or Planned(), wait_s=max(0.0, self.start.time_s - self.asked_s))
