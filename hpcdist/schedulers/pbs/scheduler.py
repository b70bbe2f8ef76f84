"""The PBS scheduler: what each question to it becomes in PBS's commands."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import call_command
from hpcdist.machine.process import ProcessId
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting, Submission
from hpcdist.schedulers.base import (
    Allocation,
    Condition,
    JobPlace,
    Plan,
    Scheduler,
    Target,
    Task,
    former_lives,
)
from hpcdist.schedulers.hosts import LIFE_VARIABLE, place_on_hosts
from hpcdist.schedulers.jobs import cancel_jobs, condition_of, find_jobs, note_jobs
from hpcdist.schedulers.pbs import steps
from hpcdist.schedulers.pbs.commands import (
    TIMEOUT_S,
    array_id,
    pbs_id,
    qdel,
    qsub,
    write_environment,
)
from hpcdist.schedulers.pbs.doctor import PbsDoctor
from hpcdist.schedulers.pbs.hosts import own_id
from hpcdist.schedulers.pbs.qstat import ask_jobs
from hpcdist.schedulers.pbs.request import LINE_MEANINGS, explanation, job_script
from hpcdist.schedulers.pbs.requeue import PbsRequeuer
from hpcdist.schedulers.pbs.site import ask_max_array_size, ask_queues, check_queue, detect_pbs
from hpcdist.schedulers.request import lay_out, time_limit_min
from hpcdist.schedulers.steps import is_step, signal_script, start_script

_WARNINGS = ("SIGTERM",)


class PbsScheduler(PbsRequeuer, PbsDoctor, Scheduler):
    """Runs as PBS's jobs."""

    name = "pbs"
    title = "PBS"
    version_command = ("qsub", "--version")
    has_queue = True
    mails = True
    takes_containers = True
    line_meanings = LINE_MEANINGS
    allocation_variable = "PBS_JOBID"
    how_to_allocate = "qsub -I -l select=2 -l place=scatter"
    can_requeue = True
    kill_wait_s = 10.0

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

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        sent = _Sent(target)
        job_ids = sent.submit(job, self.agents(runs), script)
        note_jobs(
            runs,
            job_ids,
            submission=Submission(
                scheduler=self.name, step=target.allocation is not None, process=sent.process
            ),
            target=target,
            take_back=lambda: sent.take_back(job_ids),
        )
        return [*sent.said, *_dropped(target, job_ids)]

    def submit_task(
        self, job: JobSpec, target: Target, task: Task, script: str
    ) -> tuple[str, list[str]]:
        sent = _Sent(target)
        (job_id,) = sent.submit(job, [task], script)
        return job_id, sent.said

    def answers(self) -> bool:
        """Return whether PBS is here: TORQUE and Grid Engine have a qsub, too."""
        try:
            done = call_command(self.version_command, timeout_s=TIMEOUT_S)
        except SchedulerError:
            return False
        return done.returncode == 0 and "pbs_version" in done.stdout

    def allocation(self, environment: Mapping[str, str]) -> steps.PbsAllocation | None:
        return steps.find_allocation(environment)

    def plan_step(self, job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> Plan:
        assert isinstance(allocation, steps.PbsAllocation)
        steps.check_allocation(job, cluster, allocation)
        limit_min = steps.step_limit_min(job, cluster, allocation)
        launch = lay_out(job, cluster, warning_signals=_WARNINGS, limit_min=limit_min)
        return Plan(launch=launch, cluster=cluster, allocation=allocation.job_id)

    def max_array_size(self) -> int:
        return ask_max_array_size()

    def dependency_id(self, job_id: str) -> str:
        return array_id(job_id)

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        found = steps.step_conditions([run for run in runs if is_step(run)])
        jobs = [run for run in runs if run.id not in found]
        for run, sent, job in find_jobs(jobs, ask_jobs) if jobs else ():
            found[run.id] = condition_of(run, sent, job, self.title)
        return found

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        submitted = [run for run in runs if run.read_submission()]
        if not submitted or shutil.which("qstat") is None:
            return {}
        return {run.id: job.accounting() for run, _, job in find_jobs(submitted, ask_jobs) if job}

    def cancel(self, runs: Sequence[Run]) -> None:
        hint = "their hosts may be down; qdel -W force JOBID takes them from PBS's list"
        for run in filter(is_step, runs):
            steps.cancel_step(run)
        cancel_jobs(runs, ask_jobs, kill=qdel, hint=hint)

    def place(self) -> JobPlace:
        return place_on_hosts(super().place())

    def own_job_id(self) -> str:
        return own_id()

    def life(self) -> int:
        """Return the count of the run: no variable of PBS's tells, and a new job counts anew."""
        return former_lives() + int(os.environ.get(LIFE_VARIABLE) or 0)

    def detect_site(self) -> Site:
        return detect_pbs()


scheduler = PbsScheduler()


class _Sent:
    """A script, given to qsub once, or started at once in the job of this shell."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.said: list[str] = []
        """Lines that PBS printed besides the job's id."""
        self.process: ProcessId | None = None
        """The process that was started here."""

    def submit(self, job: JobSpec, tasks: Sequence[Task], script: str) -> list[str]:
        """Return the jobs' ids. Raises SchedulerError."""
        from submitit.local.local import LocalJob

        from hpcdist.schedulers.submitting import ScriptExecutor

        def send() -> str:
            write_environment(self._target.submitit_folder)
            files.write_whole(self._target.script_file, script)
            return self._start(script) if self._target.allocation else self._qsub(script)

        executor = ScriptExecutor(
            self._target.submitit_folder,
            job_class=LocalJob,
            num_tasks=job.resources.nodes,
            send=send,
            take_back=lambda ids: self.take_back([pbs_id(one) for one in ids]),
            array_from=None if self._target.array_size is None else 0,
        )
        return [pbs_id(one) for one in executor.submit_all(tasks)]

    def take_back(self, job_ids: Sequence[str]) -> None:
        """End what was submitted: nobody would know of it. The job of a shell stays."""
        if self._target.allocation is None:
            qdel(job_ids)
        elif self.process is not None:
            signal_script(self.process, signal.SIGKILL)

    def _qsub(self, script: str) -> str:
        job_id, lines = qsub(self._target.folder, script, self._target.name, ask=ask_jobs)
        self.said.extend(lines)
        return job_id.removesuffix("[]")

    def _start(self, script: str) -> str:
        job_id = str(self._target.allocation)
        log = self._target.submitit_folder / f"{job_id}_0_log.out"
        self.process = start_script(script, log=log, environment=os.environ)
        return job_id


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
