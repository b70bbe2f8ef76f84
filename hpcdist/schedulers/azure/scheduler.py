"""The scheduler of Azure Machine Learning: what each question to it becomes."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, JobError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import show_bytes
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec, job_to_dict
from hpcdist.runs.publishing import fetch
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan, Submission
from hpcdist.schedulers.azure import jobs
from hpcdist.schedulers.azure.node import AzureNode
from hpcdist.schedulers.azure.request import (
    CODE,
    LINE_MEANINGS,
    check_profile,
    explanation,
    job_yaml,
)
from hpcdist.schedulers.azure.site import AzureDoctor, detect_azure
from hpcdist.schedulers.azure.storage import BlobFolder, keep_logs, log_folder, output_folder
from hpcdist.schedulers.azure.upload import write_code
from hpcdist.schedulers.base import Condition, Plan, Scheduler, Target
from hpcdist.schedulers.jobs import condition_of, end_jobs, note_jobs
from hpcdist.schedulers.request import time_limit_min

_JOB_FILE = "job.yml"


class AzureScheduler(AzureNode, AzureDoctor, Scheduler):
    """Runs as command jobs of a workspace."""

    name = "azure"
    title = "Azure"
    has_queue = True
    line_meanings = LINE_MEANINGS
    shares_files = False
    jobs_can_wait = False
    can_requeue = True
    longest_poll_s = 10.0  # with each question, what ranks have printed comes home

    def plan(
        self,
        job: JobSpec,
        cluster: ClusterProfile,
        *,
        busy_gpus: Collection[str] = (),  # noqa: ARG002 - those of this machine
    ) -> Plan:
        check_profile(cluster)
        _refuse_secrets(job)
        launch = LaunchPlan(
            nodes=[NodePlan() for _ in range(job.resources.nodes)],
            device=job.launch.device,
            backend=job.launch.backend,
            interface=cluster.interface,
            warning_signals=["SIGTERM"],
            limit_min=time_limit_min(job, cluster),
        )
        return Plan(launch=launch, notes=_notes(job), cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        return explanation(job, plan.cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        return job_yaml(job, plan.cluster, target)

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        (run,) = runs
        azure, name = jobs.workspace_of(run), jobs.name_of(run)
        jobs.check_compute(azure, job.resources.nodes)
        jobs.check_environment(azure)
        snapshot = Path(target.own_folders[-1]) if target.own_folders else None
        size = write_code(run, target.folder, snapshot)
        file = target.folder / _JOB_FILE
        files.write_whole(file, script)
        said = jobs.create(azure, file, name)
        shutil.rmtree(target.folder / CODE, ignore_errors=True)
        note_jobs(
            runs,
            [name],
            submission=Submission(scheduler=self.name),
            target=target,
            take_back=lambda: jobs.cancel(azure, [name]),
        )
        return [f"uploaded {show_bytes(size)} to the workspace {azure.workspace}", *said]

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Return what Azure says; what the nodes of a run have published is brought home first: its
        logs and events while it goes on, and its verdict once it has ended."""
        conditions = {}
        found = jobs.jobs_of(runs)
        begun = [(run, job) for run in runs if (job := found[run.id]) and job.has_nodes]
        with ThreadPoolExecutor(jobs.AT_ONCE) as pool:
            problems = list(pool.map(lambda one: self._bring(*one), begun))
        why_not = {run.id: why for (run, _), why in zip(begun, problems, strict=True)}
        for run in runs:
            job, why = found[run.id], why_not.get(run.id)
            condition = condition_of(run, run.read_submission(), job, self.title)
            if why is not None:
                reason = "; ".join(filter(None, [condition.reason, why]))
                condition = msgspec.structs.replace(condition, reason=reason)
            conditions[run.id] = condition
        return conditions

    def _bring(self, run: Run, job: jobs.AzureJob) -> str | None:
        """Fetch a run, and what Azure keeps of its output where it ended before an agent began;
        return why that cannot be."""
        try:
            fetch(run, self.source_of(run))
            if not (job.is_active or run.has_started()):
                keep_logs(run, log_folder(jobs.workspace_of(run), jobs.name_of(run)))
        except (OSError, HpcdistError) as error:
            why = files.reason(error) if isinstance(error, OSError) else error.message
            return f"its run directory cannot be brought here: {why}"
        return None

    def detect_site(self) -> Site:
        return detect_azure()

    def source_of(self, run: Run) -> BlobFolder:
        return output_folder(jobs.workspace_of(run), jobs.name_of(run))

    def cancel(self, runs: Sequence[Run]) -> None:
        for azure, theirs in jobs.by_workspace(runs).items():
            self._cancel(azure, theirs)

    def _cancel(self, azure: AzureOptions, runs: Sequence[Run]) -> None:
        names = [jobs.name_of(run) for run in runs]

        def list_living() -> set[str]:
            return {job.name for job in jobs.ask_jobs(azure, names) if job.is_active}

        end_jobs(
            runs,
            list_living(),
            kill=lambda names: jobs.cancel(azure, names),
            list_living=list_living,
            hint="Azure takes minutes to end a job on nodes that do not answer: see the studio",
        )


scheduler = AzureScheduler()


def _notes(job: JobSpec) -> list[str]:
    if getattr(job, "strategy", None) != "fsdp" or job.resources.nodes == 1:
        return []
    note = "fsdp saves its checkpoints in parts, one per node, and Azure's nodes share no disk: "
    return [f"{note}if the job is started again, it begins anew"]


def _refuse_secrets(job: JobSpec) -> None:
    """Raise JobError for values that look secret: who may read the workspace's storage could read
    them there."""
    values = job_to_dict(job)
    hidden = [key for key, value in Stars().value(values).items() if value != values[key]]
    if hidden:
        raise JobError(
            f"what looks like a secret stands in {' and '.join(hidden)}, and would be stored where "
            "all users of the workspace can read it",
            hint="have the program read it from the workspace's key vault, or from a datastore",
        )
