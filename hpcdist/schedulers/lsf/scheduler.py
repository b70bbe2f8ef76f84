"""The LSF scheduler: plan, script, submission, conditions, and the end on request."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.base import files
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan, Submission
from hpcdist.runs.verdict import cancelled_verdict
from hpcdist.schedulers import Condition, Plan, Target, Task
from hpcdist.schedulers.accounting import Accounting
from hpcdist.schedulers.asked import cpus_per_node, time_limit_min
from hpcdist.schedulers.known import (
    JobIndex,
    job_key,
    note_jobs,
    unsubmitted,
    wait_until_ended,
)
from hpcdist.schedulers.lsf.bjobs import ask_jobs, bkill
from hpcdist.schedulers.lsf.explanation import explanation
from hpcdist.schedulers.lsf.ids import array_id, lsf_id
from hpcdist.schedulers.lsf.queues import ask_hosts, ask_queue, check_queue, max_array_size
from hpcdist.schedulers.lsf.request import request_of
from hpcdist.schedulers.lsf.script import job_script
from hpcdist.schedulers.lsf.usage import ask_usage

if TYPE_CHECKING:
    from hpcdist.schedulers.lsf.plugin import PreparedLsfExecutor

_GONE_LIMIT_S = 180.0
"""SIGINT, SIGTERM and SIGKILL come 10 s after each other where a site sets nothing."""
_ACTIVE = ("pending", "running")
_KILLED = Condition(state="cancelled", reason="LSF killed its job, and does not start it again")


class LsfScheduler:
    """See the module."""

    name = "lsf"

    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        """Lay the ranks out over hosts that are not known yet.

        Raises JobError where bqueues or bhosts tell that the queue can never run the job, and
        ProfileError for what LSF cannot be asked.
        """
        request_of(job, cluster)
        check_queue(job, cluster, ask_queue(cluster.partition), ask_hosts())
        num_threads = cpus_per_node(job, cluster) // job.ranks_per_node
        launch = LaunchPlan(
            nodes=[NodePlan() for _ in range(job.resources.nodes)],
            device=job.launch.device,
            backend=job.launch.backend,
            num_threads=num_threads,
            environment={"OMP_NUM_THREADS": str(num_threads)},
            interface=cluster.interface,
            warning_signals=["SIGUSR2", "SIGINT", "SIGTERM"],
            limit_min=time_limit_min(job, cluster),
        )
        return Plan(launch=launch, cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        """Slots, memory, GPUs and the run limit, as bsub is asked for them."""
        return explanation(job, plan.cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        """The batch script; pure, and the same on a machine without LSF."""
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
        """Give the script to bsub, once."""
        executor, job_ids = _send(job, target, agents, script)
        note_jobs(
            runs,
            job_ids,
            submission=Submission(scheduler=self.name),
            target=target,
            take_back=lambda: executor.take_back(job_ids),
        )
        return executor.said

    def submit_task(
        self, job: JobSpec, target: Target, task: Callable[[], Any], script: str
    ) -> tuple[str, list[str]]:
        """Give the script of a job that is not a run to bsub."""
        executor, (job_id,) = _send(job, target, [task], script)
        return job_id, executor.said

    def max_array_size(self) -> int:
        """MAX_JOB_ARRAY_SIZE; LSF's default where nobody tells."""
        return max_array_size()

    def dependency_id(self, job_id: str) -> str:
        """123[4] is a part of 123."""
        return array_id(job_id)

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """One bjobs for all of them; SchedulerError where it does not answer."""
        submissions = {run.id: run.read_submission() for run in runs}
        known = JobIndex(ask_jobs(_asked(submissions.values())))
        return {run.id: _condition(run, submissions[run.id], known) for run in runs}

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        """One bjobs for all of them; nothing where LSF is not here.

        Raises SchedulerError where it does not answer.
        """
        submissions = {run.id: found for run in runs if (found := run.read_submission())}
        if not submissions or shutil.which("bjobs") is None:
            return {}
        jobs = {name: job_key(found) for name, found in submissions.items()}
        known = ask_usage([job_id for job_id, _ in jobs.values()])
        return {name: known[job] for name, job in jobs.items() if job in known}

    def cancel(self, runs: Sequence[Run]) -> None:
        """Have LSF end the jobs, and wait until they have ended.

        Raises SchedulerError where LSF does not answer, or the jobs do not end.
        """
        submissions = {run.id: run.read_submission() for run in runs}
        known = JobIndex(ask_jobs(_asked(submissions.values())))  # nothing may be half done
        jobs = [job for run in runs if (job := known.find(run, submissions[run.id])) is not None]
        for run in runs:
            run.ask_to_cancel()
        job_ids = sorted({job.job_id for job in jobs if job.condition().state in _ACTIVE})
        bkill(job_ids)
        wait_until_ended(
            job_ids,
            lambda: _living(job_ids),
            limit_s=_GONE_LIMIT_S,
            hint="their hosts may be down; bkill -r JOBID takes them from LSF's list",
        )
        for run in runs:
            run.write_verdict(cancelled_verdict())


scheduler = LsfScheduler()


def _send(
    job: JobSpec, target: Target, tasks: Sequence[Callable[[], Any]], script: str
) -> tuple[PreparedLsfExecutor, list[str]]:
    """One bsub call; what did it, and the jobs' ids."""
    from hpcdist.schedulers.lsf.plugin import PreparedLsfExecutor

    executor = PreparedLsfExecutor(target, script, job.resources.nodes)
    files.write_whole(target.script_file, script)
    return executor, [lsf_id(one) for one in executor.submit_all(tasks)]


def _asked(submissions: Any) -> list[str]:
    """The jobs to ask for; none, which is all of them, where one is known by its name only."""
    found = list(submissions)
    if not all(found):
        return []
    return sorted({job_key(submission)[0] for submission in found})


def _condition(run: Run, submission: Submission | None, known: JobIndex[Any]) -> Condition:
    job = known.find(run, submission)
    if job is not None:
        condition: Condition = job.condition()
        was_killed = condition.state == "failed" and _was_killed(run, job.exit_code)
        return _KILLED if was_killed else condition
    if submission is None:  # submitted a moment ago, or its submission was killed
        return unsubmitted(run, "LSF")
    if _was_killed(run, None):
        return _KILLED
    return Condition(state="lost", reason="LSF has forgotten its job")


def _was_killed(run: Run, exit_code: int | None) -> bool:
    """Whether it ended by a signal of LSF's that may have meant a requeue, and none came."""
    attempt = run.read_attempt_verdict(run.newest_attempt())
    return (
        attempt is not None
        and attempt.kind == "preempted"
        # 1 where the queue would start a job again for the run's own code.
        and exit_code in {None, attempt.exit_code_of_run, 1}
    )


def _living(job_ids: Sequence[str]) -> set[str]:
    return {job.job_id for job in ask_jobs(job_ids) if job.condition().state in _ACTIVE}
