"""Where a run can go: one module per scheduler, and one line in `SCHEDULERS` for each."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from hpcdist.errors import SchedulerError
from hpcdist.run import Run
from hpcdist.spec import JobSpec
from hpcdist.verdict import State

SCHEDULERS = {
    "local": "hpcdist.schedulers.local",
}
"""Scheduler -> module with a `scheduler` object."""

DETECTION = (
    ("slurm", ("sbatch", "--version")),
    ("lsf", ("bsub", "-V")),
)
"""`auto` takes the first whose command answers: sites that moved to Slurm keep LSF wrappers."""

_DETECTION_TIMEOUT_S = 10.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a scheduler would run a job: made without any effect."""

    notes: list[str] = []
    """What the user should know, one sentence each."""
    details: dict[str, Any] = {}
    """What the agents need to know, as it goes into spec.json."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the processes of a run find what is the user's."""

    cwd: str
    """Their working directory."""
    environment: dict[str, str] = {}
    """Variables that say where things are."""


class Scheduler(Protocol):
    """What every scheduler's module offers as `scheduler`."""

    name: str

    def plan(self, job: JobSpec) -> Plan:
        """How `job` would run.

        Raises JobError or SchedulerError where the job cannot run there.
        """

    def render(self, job: JobSpec, run: Run, plan: Plan, place: Place) -> str:
        """The script that is executed; pure, and `run` need not exist."""

    def submit(self, job: JobSpec, run: Run, script: str) -> None:
        """Submit, and write submission.json; on an error nothing runs."""

    def states(self, runs: Sequence[Run]) -> dict[str, State]:
        """State by run id, of runs that have no verdict yet; one question for all of them.

        A run without submission.json is being submitted, or its submission was killed.
        """

    def cancel(self, run: Run) -> None:
        """End the run; returns when no process of it is left."""


def load_scheduler(name: str) -> Scheduler:
    """The scheduler called `name`; SchedulerError where this version has none."""
    if name not in SCHEDULERS:
        raise SchedulerError(
            f"this version of hpcdist cannot submit to {name}",
            hint="run it on this machine with --local",
        )
    scheduler: Scheduler = importlib.import_module(SCHEDULERS[name]).scheduler
    return scheduler


def detect_scheduler() -> str:
    """The scheduler of this machine: slurm where sbatch answers, lsf where bsub does."""
    for name, command in DETECTION:
        if shutil.which(command[0]) and _answers(command):
            return name
    raise SchedulerError(
        "no scheduler was found: neither sbatch (Slurm) nor bsub (LSF) answers",
        hint="run it on this machine with --local, or go to a login node of the cluster",
    )


def _answers(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DETECTION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
