"""The Slurm scheduler: what each question to it becomes in Slurm's commands."""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.machine.containers import RUNTIMES
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting, Submission
from hpcdist.runs.verdict import Verdict
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
from hpcdist.schedulers.jobs import (
    JobIndex,
    condition_if_forgotten,
    end_jobs,
    job_key,
    note_jobs,
    note_known,
    unsubmitted,
)
from hpcdist.schedulers.request import check_folder, cpus_per_node, lay_out, render
from hpcdist.schedulers.requeue import Decision
from hpcdist.schedulers.slurm import directives, site, steps
from hpcdist.schedulers.slurm.accounting import ask_usage, expand_nodes
from hpcdist.schedulers.slurm.doctor import SlurmDoctor
from hpcdist.schedulers.slurm.queue import (
    ask_accounting,
    ask_nodes_of_job,
    ask_queue,
    decide,
    own_job_id,
    scancel,
    show_job,
    with_lost_node,
)
from hpcdist.schedulers.steps import is_step

if TYPE_CHECKING:
    from hpcdist.schedulers.slurm.submitting import Sbatch

_WARNINGS = ("SIGUSR2", "SIGTERM")
_ACTIVE = ("pending", "running")
_ENTER_S = 60
_OWN_JOB_TIMEOUT_S = 10.0
"""Limit of one call from within a job; what fails is tried again."""
_TAKEN_OUT = Condition(
    state="cancelled", reason="Slurm took it out of its array before it started (scancel)"
)
_NO_BOOKS = re.compile(r"accounting storage is disabled", re.IGNORECASE)


class SlurmScheduler(SlurmDoctor, Scheduler):
    """Runs as Slurm's jobs, or as steps of an allocation."""

    name = "slurm"
    title = "Slurm"
    version_command = ("sbatch", "--version")
    has_queue = True
    mails = True
    takes_containers = True
    container_runtimes = RUNTIMES
    allocation_variable = "SLURM_JOB_ID"
    can_requeue = True
    line_meanings = directives.LINE_MEANINGS

    def plan(
        self,
        job: JobSpec,
        cluster: ClusterProfile,
        *,
        busy_gpus: Collection[str] = (),  # noqa: ARG002 - those of this machine
    ) -> Plan:
        site.check_capacity(job, cluster, site.ask_nodes())
        return Plan(launch=lay_out(job, cluster, warning_signals=_WARNINGS), cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        return directives.explanation(job, plan.cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        cluster = plan.cluster
        check_folder(target, "%\\\n", "Slurm takes for a pattern")  # and so does submitit
        return render(
            "slurm.sh.j2",
            job,
            target,
            cluster,
            name=target.name,
            directives=[] if target.allocation else directives.directives(job, cluster, target),
            step_options=target.step_options,
            environment=plan.launch.environment,
            cpus_per_node=cpus_per_node(job, cluster),
            output=directives.log_pattern(target, "%t"),
        )

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        # The name is asked for while sbatch makes the caller wait anyway.
        with ThreadPoolExecutor(1) as background:
            cluster = background.submit(site.ask_cluster)
            sent, job_ids = _send(job, target, self.agents(runs), script)
        note_jobs(
            runs,
            job_ids,
            submission=Submission(
                scheduler=self.name,
                step=sent.is_step,
                process=sent.process,
                cluster=cluster.result(),
            ),
            target=target,
            take_back=lambda: sent.take_back(job_ids),
        )
        return sent.said

    def submit_task(
        self, job: JobSpec, target: Target, task: Task, script: str
    ) -> tuple[str, list[str]]:
        sent, (job_id,) = _send(job, target, [task], script)
        return job_id, sent.said

    def max_array_size(self) -> int:
        return site.ask_max_array_size()

    def find_allocation(self, environment: Mapping[str, str]) -> steps.SlurmAllocation | None:
        return steps.find_allocation(environment)

    def plan_step(self, job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> Plan:
        assert isinstance(allocation, steps.SlurmAllocation)
        steps.check_allocation(job, cluster, allocation)
        return Plan(
            launch=lay_out(job, cluster, warning_signals=_WARNINGS),
            cluster=cluster,
            allocation=allocation.job_id,
            step_options=steps.step_options(job, cluster, allocation),
        )

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Ask squeue once, sacct once where squeue does not know all of them any more, and scontrol
        once where neither does, for they may be another cluster's.

        Raises SchedulerError where squeue does not answer.
        """
        found = steps.step_conditions([run for run in runs if is_step(run)])
        jobs = [run for run in runs if run.id not in found]
        found |= _job_conditions(jobs) if jobs else {}
        missing = [run for run in runs if found[run.id].state == "lost"]
        elsewhere = site.conditions_elsewhere(missing)
        for run in missing:
            submission = run.read_submission()
            if submission is not None and not is_step(run) and run.id not in elsewhere:
                found[run.id] = condition_if_forgotten(run, submission, self.title)
        return found | elsewhere

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        """Ask sacct once; return nothing where there is none, or it keeps no books.

        Raises SchedulerError where it does not answer.
        """
        submissions = {run.id: found for run in runs if (found := run.read_submission())}
        if not submissions or shutil.which("sacct") is None:
            return {}
        jobs = {name: job_key(found) for name, found in submissions.items()}
        since_s = min(one.submitted_s for one in submissions.values())
        try:
            known = ask_usage([job_id for job_id, _ in jobs.values()], since_s=since_s)
        except CommandFailedError as error:
            if _NO_BOOKS.search(error.said):
                return {}
            raise
        return {name: known[job] for name, job in jobs.items() if job in known}

    def cancel(self, runs: Sequence[Run]) -> None:
        """Have Slurm end the jobs, and wait until their processes are gone.

        Raises SchedulerError where Slurm does not answer, or the jobs do not end.
        """
        queue = JobIndex(ask_queue())  # where Slurm does not answer, nothing may be half done
        in_allocations = [run for run in runs if is_step(run)]
        jobs = {
            run.id: found
            for run in runs
            if run not in in_allocations and (found := queue.find_all(run, run.read_submission()))
        }
        elsewhere = site.conditions_elsewhere(
            run for run in runs if queue.find(run, run.read_submission()) is None
        )
        for name, condition in elsewhere.items():
            raise SchedulerError(
                f"run {name} cannot be cancelled here: {condition.reason}",
                hint="cancel it from a login node of its cluster",
            )
        for run in in_allocations:
            run.ask_to_cancel()
            steps.cancel_step(run)
        end_jobs(
            runs,
            {job.job_id for found in jobs.values() for job in found},
            kill=scancel,
            list_living=lambda: {
                job.job_id for job in ask_queue() if job.condition().state in _ACTIVE
            },
            hint="their nodes may be down; see: scontrol show job JOBID",
        )

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return a step that shares what the job has: slurm.schedmd.com/srun.html, --overlap (from
        Slurm 20.11 on). Without a number of its own it gets the GPUs of the job, as that says."""
        return [
            *("srun", f"--jobid={run.read_job_id()}", "--overlap", f"--nodelist={host}"),
            *("--nodes=1", "--ntasks=1", "--cpu-bind=none", f"--immediate={_ENTER_S}"),
            *(["--pty"] if is_terminal else []),
            *command,
        ]

    def place(self) -> JobPlace:
        """Return the place as srun tells it (slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT
        VARIABLES)."""
        place = super().place()
        return msgspec.structs.replace(
            place,
            num_nodes=_number(os.environ.get("SLURM_STEP_NUM_NODES")),
            host=os.environ.get("SLURMD_NODENAME") or place.host,
            cpus=_number(os.environ.get("SLURM_CPUS_PER_TASK")),
        )

    def own_job_id(self) -> str:
        return own_job_id()

    def life(self) -> int:
        """Return the count of the run, by SLURM_RESTART_COUNT, which Slurm sets from the first
        requeue on."""
        return former_lives() + _restarts()

    def decide(self, verdict: Verdict) -> Decision:
        said = show_job(own_job_id(), timeout_s=_OWN_JOB_TIMEOUT_S)
        decision = decide(verdict, said, life=_restarts())
        if decision.cause != "requeue or preemption":
            return decision
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
        states = ask_nodes_of_job(nodes, timeout_s=_OWN_JOB_TIMEOUT_S)
        return with_lost_node(decision, states, expand_nodes(nodes))

    def requeue(self, run: Run) -> None:  # noqa: ARG002 - the job is known by the environment
        run_command(["scontrol", "requeue", own_job_id()], timeout_s=_OWN_JOB_TIMEOUT_S)

    def detect_site(self) -> Site:
        return site.detect_slurm(getpass.getuser())


scheduler = SlurmScheduler()


def _restarts() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _send(
    job: JobSpec, target: Target, tasks: Sequence[Task], script: str
) -> tuple[Sbatch, list[str]]:
    """Call sbatch once, or start a step; return what did it, and the jobs' ids."""
    from hpcdist.schedulers.slurm.submitting import Sbatch, Step

    sent = Step(target, script) if target.allocation else Sbatch(target, script)
    return sent, sent.submit(tasks, num_nodes=job.resources.nodes)


def _job_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """Return the condition of jobs by squeue, of those that it has forgotten by sacct: lost where
    accounting is off or does not know them.

    Of an element of an array that is cancelled before it starts neither says anything any more.
    """
    queued = ask_queue()
    queue = JobIndex(queued)
    found: dict[str, Condition] = {}
    forgotten: list[tuple[Run, Submission]] = []
    for run in runs:
        submission = run.read_submission()
        if (job := queue.find(run, submission)) is not None:
            note_known(run)
            found[run.id] = job.condition()
        elif submission is None:  # submitted a moment ago, or its submission was killed
            found[run.id] = unsubmitted(run, "Slurm")
        else:
            forgotten.append((run, submission))
    if not forgotten or shutil.which("sacct") is None:
        return found | {run.id: Condition(state="lost") for run, _ in forgotten}
    job_ids = {job_key(submission)[0] for _, submission in forgotten}
    since_s = min(submission.submitted_s for _, submission in forgotten)
    try:
        accounted = ask_accounting(job_ids, since_s=since_s)
    except SchedulerError as error:
        keeps_books = not _NO_BOOKS.search(getattr(error, "said", ""))
        if keeps_books:  # which may know the end, when they are open again
            reason = f"squeue has forgotten its job, and {error.message}"
            unknown = Condition(state="unknown", reason=reason)
            return found | {run.id: unknown for run, _ in forgotten}
        return found | {run.id: Condition(state="lost") for run, _ in forgotten}
    known = JobIndex(accounted)
    arrays = {_array_of(job.job_id, job.name) for job in (*queued, *accounted)} - {None}
    for run, submission in forgotten:
        if (job := known.find(run, submission)) is not None:
            found[run.id] = job.condition()
        else:
            is_out = _array_of(*job_key(submission)) in arrays and not run.has_started()
            found[run.id] = _TAKEN_OUT if is_out else Condition(state="lost")
    return found


def _array_of(job_id: str, name: str) -> tuple[str, str] | None:
    """Return id and name of the array that a job is an element of; None for another job."""
    array, is_element, _ = job_id.partition("_")
    return (array, name) if is_element else None
