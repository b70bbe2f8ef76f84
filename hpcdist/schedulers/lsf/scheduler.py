"""The LSF scheduler: what each question to it becomes in LSF's commands."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import stat
from collections.abc import Collection, Sequence

from hpcdist.base import files
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Accounting, Submission
from hpcdist.schedulers.base import Condition, JobPlace, Plan, Scheduler, Target, Task, former_lives
from hpcdist.schedulers.hosts import LIFE_VARIABLE, place_on_hosts
from hpcdist.schedulers.jobs import cancel_jobs, condition_of, find_jobs, note_jobs
from hpcdist.schedulers.lsf.bjobs import ask_jobs, submit_script
from hpcdist.schedulers.lsf.commands import bkill, lsf_id, submission_environment
from hpcdist.schedulers.lsf.doctor import LsfDoctor
from hpcdist.schedulers.lsf.hosts import own_id
from hpcdist.schedulers.lsf.request import (
    LINE_MEANINGS,
    explanation,
    job_script,
    notes_on,
    request_of,
)
from hpcdist.schedulers.lsf.requeue import LsfRequeuer
from hpcdist.schedulers.lsf.site import (
    ask_hosts,
    ask_queue,
    check_queue,
    detect_lsf,
    max_array_size,
)
from hpcdist.schedulers.request import lay_out, time_limit_min

_WARNINGS = ("SIGUSR2", "SIGINT", "SIGTERM")


class LsfScheduler(LsfRequeuer, LsfDoctor, Scheduler):
    """Runs as LSF's jobs."""

    name = "lsf"
    title = "LSF"
    version_command = ("bsub", "-V")
    has_queue = True
    mails = True
    takes_containers = True
    line_meanings = LINE_MEANINGS
    can_requeue = True
    # At the run limit LSF leaves a job 10 minutes, where a site does not say otherwise; where it
    # ends a job sooner, the verdict on its last attempt is written.
    patience_s = 540.0
    kill_wait_s = 10.0

    def plan(
        self,
        job: JobSpec,
        cluster: ClusterProfile,
        *,
        busy_gpus: Collection[str] = (),  # noqa: ARG002 - those of this machine
    ) -> Plan:
        request = request_of(job, cluster)
        check_queue(job, cluster, ask_queue(cluster.partition), ask_hosts())
        limit_min = time_limit_min(job, cluster)
        launch = lay_out(job, cluster, warning_signals=_WARNINGS, limit_min=limit_min)
        return Plan(launch=launch, notes=notes_on(request), cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        return explanation(job, plan.cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        return job_script(job, plan.cluster, target, environment=plan.launch.environment)

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        job_ids, said = _send(job, target, self.agents(runs), script)
        note_jobs(
            runs,
            job_ids,
            submission=Submission(scheduler=self.name),
            target=target,
            take_back=lambda: bkill(job_ids),
        )
        return said

    def submit_task(
        self, job: JobSpec, target: Target, task: Task, script: str
    ) -> tuple[str, list[str]]:
        (job_id,), said = _send(job, target, [task], script)
        return job_id, said

    def max_array_size(self) -> int:
        return max_array_size()

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        found = find_jobs(runs, ask_jobs)
        return {run.id: condition_of(run, sent, job, self.title) for run, sent, job in found}

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        submitted = [run for run in runs if run.read_submission()]
        if not submitted or shutil.which("bjobs") is None:
            return {}
        return {run.id: job.accounting() for run, _, job in find_jobs(submitted, ask_jobs) if job}

    def cancel(self, runs: Sequence[Run]) -> None:
        hint = "their hosts may be down; bkill -r JOBID takes them from LSF's list"
        cancel_jobs(runs, ask_jobs, kill=bkill, hint=hint)

    def enter(
        self,
        run: Run,
        host: str,
        command: Sequence[str],
        *,
        is_terminal: bool,  # noqa: ARG002 - battach makes one of its own
    ) -> list[str]:
        """Return battach of LSF 10.1, which starts one program without arguments in the place of a
        shell, as the user on that host of the job."""
        script = run.launch_folder.resolve() / f"attach-{secrets.token_hex(4)}.sh"
        text = f'#!/bin/sh\n/bin/rm -f "$0"\nexec {shlex.join(command)}\n'
        files.write_whole(script, text.encode())
        script.chmod(stat.S_IRWXU)
        return ["battach", "-m", host, "-L", str(script), lsf_id(run.read_job_id() or "")]

    def place(self) -> JobPlace:
        return place_on_hosts(super().place())

    def own_job_id(self) -> str:
        return own_id()

    def life(self) -> int:
        """Return the count of the run: LSB_RESTART does not say how often, and not every LSF sets
        it."""
        return former_lives() + int(os.environ.get(LIFE_VARIABLE) or 0)

    def detect_site(self) -> Site:
        return detect_lsf()


scheduler = LsfScheduler()


def _send(
    job: JobSpec, target: Target, tasks: Sequence[Task], script: str
) -> tuple[list[str], list[str]]:
    """Call bsub once; return the jobs' ids, and what LSF had to say."""
    from submitit.local.local import LocalJob

    from hpcdist.schedulers.submitting import ScriptExecutor

    said: list[str] = []

    def send() -> str:
        files.write_whole(target.script_file, script)
        job_id, lines = submit_script(script, target.name, environment=submission_environment())
        said.extend(lines)
        return job_id

    executor = ScriptExecutor(
        target.submitit_folder,
        job_class=LocalJob,
        num_tasks=job.resources.nodes,
        send=send,
        take_back=lambda ids: bkill([lsf_id(one) for one in ids]),
        array_from=None if target.array_size is None else 1,
    )
    return [lsf_id(one) for one in executor.submit_all(tasks)], said
