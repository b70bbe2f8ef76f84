"""The PBS scheduler: what each question to it becomes in PBS's commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import call_command
from hpcdist.runs.run import Run
from hpcdist.runs.seal import PLACEHOLDER
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import (
    Accounting,
    Condition,
    JobPlace,
    Plan,
    Scheduler,
    Target,
    Task,
)
from hpcdist.schedulers.hosts import LIFE_VARIABLE, place_on_hosts
from hpcdist.schedulers.jobs import cancel_jobs, condition_of, find_jobs, note_jobs
from hpcdist.schedulers.pbs.commands import (
    TIMEOUT_S,
    array_id,
    pbs_id,
    qdel,
    qsub,
    with_environment,
)
from hpcdist.schedulers.pbs.doctor import PbsDoctor
from hpcdist.schedulers.pbs.qstat import ask_jobs
from hpcdist.schedulers.pbs.request import explanation, job_script
from hpcdist.schedulers.pbs.requeue import PbsRequeuer
from hpcdist.schedulers.pbs.site import ask_max_array_size, ask_queues, check_queue, detect_pbs
from hpcdist.schedulers.request import lay_out, time_limit_min

_WARNINGS = ("SIGTERM",)


class PbsScheduler(PbsRequeuer, PbsDoctor, Scheduler):
    """Runs as PBS's jobs."""

    name = "pbs"
    title = "PBS"
    version_command = ("qsub", "--version")
    has_queue = True
    takes_containers = True
    can_requeue = True

    def plan(
        self,
        job: JobSpec,
        cluster: ClusterProfile,
        *,
        busy_gpus: Collection[str] = (),  # noqa: ARG002 - those of this machine
    ) -> Plan:
        check_queue(job, cluster, ask_queues())
        limit_min = time_limit_min(job, cluster)
        launch = lay_out(job, cluster, warning_signals=_WARNINGS, limit_min=limit_min)
        return Plan(launch=launch, cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        return explanation(job, plan.cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        return job_script(job, plan.cluster, target, environment=plan.launch.environment)

    def submit(
        self,
        job: JobSpec,
        target: Target,
        runs: Sequence[Run],
        script: str,
        *,
        agents: Sequence[Task],
    ) -> list[str]:
        job_ids, said = _send(job, target, agents, script)
        note_jobs(
            runs,
            job_ids,
            submission=Submission(scheduler=self.name),
            target=target,
            take_back=lambda: qdel(job_ids),
        )
        return [*said, *_dropped(target, job_ids)]

    def submit_task(
        self, job: JobSpec, target: Target, task: Task, script: str
    ) -> tuple[str, list[str]]:
        (job_id,), said = _send(job, target, [task], script)
        return job_id, said

    def answers(self) -> bool:
        """Return whether PBS is here: TORQUE and Grid Engine have a qsub, too."""
        try:
            done = call_command(self.version_command, timeout_s=TIMEOUT_S)
        except SchedulerError:
            return False
        return done.returncode == 0 and "pbs_version" in done.stdout

    def find_allocation(self, environment: Mapping[str, str]) -> None:
        """Refuse a shell within a job."""
        if "PBS_JOBID" in environment:
            raise UserError(
                "--here is not supported with PBS yet", hint="submit a job: leave out --here"
            )

    def max_array_size(self) -> int:
        return ask_max_array_size()

    def dependency_id(self, job_id: str) -> str:
        return array_id(job_id)

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        found = find_jobs(runs, ask_jobs)
        return {run.id: condition_of(run, sent, job, self.title) for run, sent, job in found}

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        submitted = [run for run in runs if run.read_submission()]
        if not submitted or shutil.which("qstat") is None:
            return {}
        return {run.id: job.accounting() for run, _, job in find_jobs(submitted, ask_jobs) if job}

    def cancel(self, runs: Sequence[Run]) -> None:
        hint = "their hosts may be down; qdel -W force JOBID takes them from PBS's list"
        cancel_jobs(runs, ask_jobs, kill=qdel, hint=hint)

    def place(self) -> JobPlace:
        return place_on_hosts(super().place())

    def life(self) -> int:
        """Return the count of the run: no variable of PBS's tells, and a new job counts anew."""
        return int(os.environ.get(LIFE_VARIABLE) or 0)

    def detect_site(self) -> Site:
        return detect_pbs()


scheduler = PbsScheduler()


def _send(
    job: JobSpec, target: Target, tasks: Sequence[Task], script: str
) -> tuple[list[str], list[str]]:
    """Call qsub once; return the jobs' ids, and what PBS had to say."""
    from submitit.local.local import LocalJob

    from hpcdist.schedulers.submitting import ScriptExecutor

    said: list[str] = []

    def send(seal: str) -> str:
        sealed = with_environment(script.replace(PLACEHOLDER, seal), target.submitit_folder)
        files.write_whole(target.script_file, sealed)
        job_id, lines = qsub(target.script_file, sealed, target.name, ask=ask_jobs)
        said.extend(lines)
        return job_id.removesuffix("[]")

    executor = ScriptExecutor(
        target.submitit_folder,
        job_class=LocalJob,
        num_tasks=job.resources.nodes,
        send=send,
        take_back=lambda ids: qdel([pbs_id(one) for one in ids]),
        array_from=None if target.array_size is None else 0,
    )
    return [pbs_id(one) for one in executor.submit_all(tasks)], said


def _dropped(target: Target, job_ids: Sequence[str]) -> list[str]:
    """Return what PBS keeps to itself: that it has removed a job at once, as what it was to follow
    has ended otherwise by now."""
    if not target.dependencies:
        return []
    try:
        jobs = ask_jobs(job_ids)
    except SchedulerError:  # status tells it, too
        return []
    return [f"{job.job_id}: {job.condition().reason}" for job in jobs[:1] if not job.is_active]
