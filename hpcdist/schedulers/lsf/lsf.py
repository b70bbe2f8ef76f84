"""The LSF scheduler: what each question to it becomes in LSF's commands, and starting a job again
from within: by `brequeue`, or as another job where that is refused.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back. A job
whose first host is lost is LSF's to start again (-r): a brequeue would end it for good.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdist.base import files
from hpcdist.base.errors import SubmissionUnclearError, UserError
from hpcdist.base.polling import poll
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import (
    CommandFailedError,
    CommandTimeoutError,
    call_command,
    failure_of,
)
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Allocation, JobPlace, Plan, Target
from hpcdist.schedulers.batch import Batch, submit_anew
from hpcdist.schedulers.hosts import (
    FIRST_END_VARIABLE,
    KILLED,
    means_first_host,
    place_on_hosts,
    read_hosts,
)
from hpcdist.schedulers.lsf import request, site
from hpcdist.schedulers.lsf.hosts import own_id, own_index
from hpcdist.schedulers.lsf.jobs import ask_jobs, ask_rows, bkill, parse_time, refused_hint
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError, RequeueUnclearError

_OF_A_JOB = re.compile(
    r"LSB_(?!SUB_|BJOBS_|BSUB_|DEFAULT|NTRIES)\w+|LS_JOBPID|LS_SUBCWD|LS_EXEC_T|HPCDIST_JOB_\w+"
)
"""Variables of a job that the caller may be part of: they would be taken for the new job's."""
_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""
_END_IS_KNOWN_S = 10.0
"""Time in which the program on the first host tells the others that its command has ended."""
_LOSS_IS_KNOWN_S = 60.0
"""Time for which LSF may call a lost host ok, and give it to jobs; it was 35 s."""
_POLL_S = 1.0
_DOWN = re.compile(r"LSF is down|not responding|cannot connect|time ?out", re.IGNORECASE)


class Lsf(Batch):
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
    launcher_advice = "name another in the profile, such as lsf.launcher: ssh {host} {command}"
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

    def __init__(self) -> None:
        self._is_unclear = False
        """LSF may have heard a request that it did not answer: one more could be the run twice."""

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
        of_a_job = _OF_A_JOB if target.allocation is None else re.compile(r"HPCDIST_JOB_\w+")
        return {
            key: value
            for key, value in before.items()
            if not of_a_job.fullmatch(key)
            and not (target.continues is not None and means_first_host(key))
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

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the run limit, and the loss of a host, by a requeue; never a kill."""
        end: str | None = ""
        if verdict.kind == "agent_lost" and verdict.node == 0:
            # The program that starts the agents outlives the first host's; where it is silent, too,
            # that host is gone.
            file = Path(os.environ.get(FIRST_END_VARIABLE, ""))
            poll(lambda: file.is_file() or None, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S)
            end = file.read_text() if file.is_file() else None
        if verdict.kind == "preempted" or end == KILLED:
            return Decision(sequel="open", cause="kill or requeue")
        if end is None:
            return Decision(sequel="leave", cause="nothing")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> None:
        """Call brequeue, which ends this job's processes, and queues it again; submit the run as
        another job where LSF refuses."""
        end = run.read_attempt_verdict(run.newest_attempt())
        if end is not None and end.try_elsewhere:  # the job would be given the lost host once more
            poll(
                lambda: (
                    run.cancel_file.exists()
                    or run.verdict_file.exists()
                    or end.host not in site.ask_hosts()
                    or None
                ),
                interval_s=5 * _POLL_S,
                limit_s=_LOSS_IS_KNOWN_S,
            )
        try:
            done = call_command(["brequeue", own_id()], timeout_s=_TIMEOUT_S)
        except CommandTimeoutError as error:
            self._is_unclear = True
            raise RequeueUnclearError(f"LSF may start it again, or not: {error.message}") from None
        if done.returncode == 0 or self._is_unclear:
            return
        refusal = failure_of(done)
        if _DOWN.search(refusal.said):
            raise refusal
        try:
            submit_anew(self, run, as_element=True, change=_go_on)
        except SubmissionUnclearError:
            self._is_unclear = True
            raise
        except CommandFailedError as error:
            if _DOWN.search(error.said):
                raise
            raise RequeueRefusedError(f"{refusal.message}; {error.message}") from None


scheduler = Lsf()


def _go_on(script: str) -> str:
    """Return the script without the jobs that it waited for, as one element of its array."""
    script = re.sub(r"^#BSUB (?:-w|-ti)\b.*\n", "", script, flags=re.MULTILINE)
    line = rf'#BSUB -J "\1[{own_index()}]"' if own_index() else r"#BSUB -J \1"
    return re.sub(r'^#BSUB -J "?([^"\[\n]+).*$', line, script, count=1, flags=re.MULTILINE)
