"""The LSF scheduler: what each question to it becomes in LSF's commands."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Allocation, JobPlace, Plan, Target
from hpcdist.schedulers.hosts import means_first_host, place_on_hosts, read_hosts
from hpcdist.schedulers.lsf import request, site
from hpcdist.schedulers.lsf.hosts import own_id
from hpcdist.schedulers.lsf.jobs import ask_jobs, ask_rows, bkill, parse_time
from hpcdist.schedulers.lsf.reasons import refused_hint
from hpcdist.schedulers.lsf.requeue import LsfRequeuer

_OF_A_JOB = re.compile(
    r"LSB_(?!SUB_|BJOBS_|BSUB_|DEFAULT|NTRIES)\w+|LS_JOBPID|LS_SUBCWD|LS_EXEC_T|HPCDIST_JOB_\w+"
)
"""Variables of a job that the caller may be part of: they would be taken for the new job's."""


class LsfScheduler(LsfRequeuer):
    """Runs as LSF's jobs, or within one that is interactive (bsub -Is)."""

    name = "lsf"
    title = "LSF"
    version_command = ("bsub", "-V")
    template = "lsf.sh.j2"
    warnings = ("SIGUSR2", "SIGINT", "SIGTERM")
    first_place = 1
    patterns = '%\\\n"'
    merges = ("-R",)
    allocation_variable = "LSB_JOBID"
    how_to_allocate = "bsub -Is -n 8 -R span[ptile=4] bash"
    stuck_hint = "their hosts may be down; bkill -r JOBID takes them from LSF's list"
    # At the run limit LSF leaves a job 10 minutes, where a site does not say otherwise; where it
    # ends a job sooner, the verdict on its last attempt is written.
    patience_s = 540.0
    kill_wait_s = 10.0

    check = staticmethod(site.check_queue)
    list_jobs = staticmethod(ask_jobs)
    kill = staticmethod(bkill)
    directives = staticmethod(request.directives)
    refused_hint = staticmethod(refused_hint)
    own_job_id = staticmethod(own_id)
    max_array_size = staticmethod(site.max_array_size)
    detect_site = staticmethod(site.detect_lsf)
    examine = staticmethod(site.examine)

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:  # noqa: ARG002 - the profile has it
        return {"launcher": plan.cluster.lsf.launcher, "is_step": target.allocation is not None}

    def submit_command(self, target: Target, script: str) -> list[str]:  # noqa: ARG002 - it is on the standard input
        return ["bsub"]

    def parse_submitted(self, text: str) -> str | None:
        found = re.search(r"Job <(\d+)> is submitted", text)
        return found[1] if found else None

    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:  # noqa: ARG002 - it sets none
        """Return the caller's environment, which LSF gives to the job, without another job's; what
        starts at once in an allocation keeps that one's."""
        if target.allocation is not None:
            return dict(before)
        is_in_job = target.continues is not None
        return {
            key: value
            for key, value in before.items()
            if not (_OF_A_JOB.fullmatch(key) or (is_in_job and means_first_host(key)))
        }

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        """Return battach of LSF 10.1, which starts one program without arguments in the place of a
        shell, as the user on that host of the job."""
        if shutil.which("battach") is None:
            return super().enter(run, host, command, is_terminal=is_terminal)
        script = run.launch_folder.resolve() / f"attach-{secrets.token_hex(4)}.sh"
        text = f'#!/bin/sh\n/bin/rm -f "$0"\nexec {shlex.join(command)}\n'
        files.write_whole(script, text.encode())
        script.chmod(stat.S_IRWXU)
        return ["battach", "-m", host, "-L", str(script), run.read_job_id() or ""]

    # Jobs that are interactive.

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        job_id = environment.get("LSB_JOBID")
        if not job_id:
            return None
        rows = [row for row in ask_rows([job_id]) if row.get("stat") == "RUN"]
        if not rows:
            raise UserError(
                f"LSB_JOBID is {job_id}, and LSF has no such job that runs",
                hint="leave --here out, or log in anew",
            )
        hosts = read_hosts(environment.get("LSB_MCPU_HOSTS", ""))
        end_s = parse_time(rows[0].get("finish_time", ""))
        gpus = [one for one in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        return Allocation(
            job_id=job_id,
            num_nodes=len(hosts),
            cpus=[host.slots for host in hosts],
            gpus_per_node=len(gpus),
            left_min=None if end_s is None else max(0.0, (end_s - time.time()) / 60),
        )

    # Within a job.

    def place(self) -> JobPlace:
        return place_on_hosts(super().place())


scheduler = LsfScheduler()
