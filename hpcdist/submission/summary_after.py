"""--summary-after: a small job that writes the summary once all jobs of a submission have ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec, Launch, Resources
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Dependency, Scheduler, Target, Task

_TIME_LIMIT_MIN = 10.0
_MEM_GB = 2.0
_FOLDER = "summary-job"


MakeTask: TypeAlias = Callable[[list[str], str], Task]
"""Makes what the job executes, of the run directories and the folder for the summary."""


@dataclass(frozen=True, kw_only=True)
class SummaryJob:
    """The job that writes the summary of runs into a folder."""

    scheduler: Scheduler
    cluster: ClusterProfile
    folder: Path
    """The run's or the sweep's; its name is the first part of the job's."""

    @property
    def job(self) -> JobSpec:
        """One node, one CPU, no GPU."""
        return JobSpec(
            name=f"summary of {self.folder.name}",
            workload="summary",
            resources=Resources(cpus_per_gpu=1, time_limit_min=_TIME_LIMIT_MIN),
            launch=Launch(device="cpu"),
        )

    def target(self, job_ids: Sequence[str]) -> Target:
        """What its script is for; `job_ids` are those that must have ended."""
        return Target(
            name=f"{self.folder.name}.summary",
            folder=self.folder / _FOLDER,
            cwd=os.getcwd(),
            dependencies=[Dependency(kind="afterany", job_ids=list(job_ids))],
        )

    def script(self, target: Target) -> str:
        """What is submitted."""
        mem_gb = self.cluster.mem_gb and min(self.cluster.mem_gb, _MEM_GB)
        cluster = msgspec.structs.replace(self.cluster, mem_gb=mem_gb)
        return self.scheduler.render(self.job, target, self.scheduler.plan(self.job, cluster))

    def submit(
        self, runs: Sequence[Run], job_ids: Sequence[str], make_task: MakeTask
    ) -> tuple[str, list[str]]:
        """Submit it; returns its job id, and what the scheduler had to say.

        Raises SchedulerError.
        """
        target = self.target(job_ids)
        target.submitit_folder.mkdir(parents=True, exist_ok=True)
        task = make_task([str(run.path) for run in runs], str(self.folder))
        return self.scheduler.submit_task(self.job, target, task, self.script(target))
