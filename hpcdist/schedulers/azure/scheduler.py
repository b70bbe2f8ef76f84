"""The scheduler of Azure Machine Learning: what each question to it becomes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.azure.request import check_profile, explanation, job_yaml
from hpcdist.schedulers.base import Condition, Plan, Scheduler, Target, Task
from hpcdist.schedulers.request import time_limit_min

_NOT_YET = "this version of hpcdist renders jobs for Azure, and does not submit them"


class AzureScheduler(Scheduler):
    """Runs as command jobs of a workspace."""

    name = "azure"
    title = "Azure"
    has_queue = True

    def plan(
        self,
        job: JobSpec,
        cluster: ClusterProfile,
        *,
        busy_gpus: Collection[str] = (),  # noqa: ARG002 - those of this machine
    ) -> Plan:
        check_profile(cluster)
        launch = LaunchPlan(
            nodes=[NodePlan() for _ in range(job.resources.nodes)],
            device=job.launch.device,
            backend=job.launch.backend,
            interface=cluster.interface,
            warning_signals=["SIGTERM"],
            limit_min=time_limit_min(job, cluster),
        )
        return Plan(launch=launch, cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        return explanation(job, plan.cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        return job_yaml(job, plan.cluster, target)

    def submit(
        self,
        job: JobSpec,  # noqa: ARG002 - not yet
        target: Target,  # noqa: ARG002
        runs: Sequence[Run],  # noqa: ARG002
        script: str,  # noqa: ARG002
        *,
        agents: Sequence[Task],  # noqa: ARG002
    ) -> list[str]:
        raise SchedulerError(_NOT_YET)

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:  # noqa: ARG002 - not yet
        raise SchedulerError(_NOT_YET)

    def cancel(self, runs: Sequence[Run]) -> None:  # noqa: ARG002 - not yet
        raise SchedulerError(_NOT_YET)


scheduler = AzureScheduler()
