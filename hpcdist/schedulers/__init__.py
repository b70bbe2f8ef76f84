"""Where a run can go: one module per scheduler, and one line in `SCHEDULERS` for each."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan
from hpcdist.runs.verdict import State

SCHEDULERS = {
    "local": "hpcdist.schedulers.local",
    "slurm": "hpcdist.schedulers.slurm",
    "lsf": "hpcdist.schedulers.lsf",
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
    launch: LaunchPlan
    """How the agents lay the ranks out; stands in spec.json as `plan`."""
    cluster: ClusterProfile = ClusterProfile()
    """How the cluster wants to be asked."""


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that must have ended before a job may start."""

    kind: Literal["afterok", "afterany", "afternotok"]
    """Ended well, ended in whatever way, or failed."""
    job_ids: list[str]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What one script is for: one run, or all runs of an array."""

    name: str
    """What the scheduler calls the job: the id of the run, or of the sweep."""
    folder: Path
    """Takes script.sh, and submitit's files."""
    cwd: str
    """Where the ranks run."""
    environment: dict[str, str] = {}
    """Variables that say where things are."""
    array_size: int | None = None
    """Number of runs; None: one run, and no array."""
    max_parallel: int | None = None
    """So many runs of the array at one time; None: as many as there is room for."""
    dependencies: list[Dependency] = []
    """All of them must come true."""
    allocation: str | None = None
    """Id of the allocation in which the script is executed at once; None: it is submitted."""
    step_options: list[str] = []
    """What srun is told beyond what it is told in a batch job."""

    @property
    def script_file(self) -> Path:
        """What the scheduler is given."""
        return self.folder / "script.sh"

    @property
    def submitit_folder(self) -> Path:
        """Takes submitit's pickles, results and logs."""
        return self.folder / "submitit"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler says of a run that has no verdict."""

    state: State
    reason: str | None = None
    """Why it waits, or how it ended, in plain words."""
    expected_start_s: float | None = None
    """Unix time at which the scheduler expects to start it."""


Task: TypeAlias = Callable[[], Any]
"""What submitit executes on every node of a job."""


class Scheduler(Protocol):
    """What every scheduler's module offers as `scheduler`."""

    name: str

    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        """How `job` would run.

        Raises JobError or SchedulerError where the job cannot run there.
        """

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        """The arithmetic behind the script: a line per kind of resource, with where its numbers
        come from; pure."""

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        """The script that is executed; pure, and nothing of `target` need exist."""

    def submit(
        self,
        job: JobSpec,
        target: Target,
        runs: Sequence[Run],
        script: str,
        *,
        agents: Sequence[Task],
    ) -> list[str]:
        """Submit, and write each run's submission.json; on an error nothing runs, unless it is a
        SubmissionUnclearError: then the runs may be the scheduler's, and are found by their names.

        `runs` is one run, or those of the array in their order; `agents` are what each node of
        theirs executes, in the same order. Returns what the scheduler had to
        say, one sentence each.
        """

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Condition by run id, of runs that have no verdict yet; one question for all of them.

        A run without submission.json is being submitted, or its submission was killed.
        """

    def cancel(self, runs: Sequence[Run]) -> None:
        """End the runs; returns when no process of theirs is left."""


@runtime_checkable
class BatchScheduler(Scheduler, Protocol):
    """A scheduler with a queue: it holds jobs back until others have ended, and knows arrays."""

    def max_array_size(self) -> int:
        """How many runs one array may have."""

    def dependency_id(self, job_id: str) -> str:
        """What names all runs of the array that a run's `job_id` is part of; else the id itself."""

    def submit_task(
        self, job: JobSpec, target: Target, task: Callable[[], Any], script: str
    ) -> tuple[str, list[str]]:
        """Submit a job that is not a run: `task` is called on its one node.

        Returns the job's id, and what the scheduler had to say.
        """


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
