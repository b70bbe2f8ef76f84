"""An LSF job as submitit sees it: from outside by bjobs, and from inside by its environment."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from submitit.core import core, job_environment, logger

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import run_command
from hpcdist.schedulers.lsf import jobs
from hpcdist.schedulers.lsf.bjobs import ask_jobs, bkill, brequeue
from hpcdist.schedulers.lsf.ids import lsf_id, own_id
from hpcdist.schedulers.lsf.own_job import (
    HOSTS_VARIABLE,
    TASK_VARIABLE,
    TASKS_PER_NODE_VARIABLE,
    job_hosts,
)

_STATES = {
    "pending": "PENDING",
    "running": "RUNNING",
    "done": "COMPLETED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
}
"""State of a run -> the word for it that submitit knows from Slurm."""
_UNREACHABLE = frozenset({"UNKWN", "ZOMBI"})
_TIMEOUT_S = 60.0


class LsfInfoWatcher(core.InfoWatcher):
    """Asks bjobs for all jobs at once."""

    def __init__(self, delay_s: int = 60) -> None:
        super().__init__(delay_s)
        self._missing: dict[str, int] = {}

    def update(self) -> None:
        """As submitit's, whose own call of a command has no time-out, and needs its exit code."""
        asked = self._registered - self._finished
        if not asked:
            return
        self._num_calls += 1
        try:
            found = {job.job_id: job for job in ask_jobs([lsf_id(one) for one in asked])}
        except SchedulerError as error:
            logger.get_logger().warning(f"bjobs did not answer, states may be old: {error}")
        else:
            for job_id in asked:
                self._note(job_id, found.get(lsf_id(job_id)))
        self._last_status_check = time.time()
        self._finished |= {one for one in asked if self.is_done(one, mode="cache")}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """In submitit's words."""
        return self.get_info(job_id, mode=mode).get("State") or "UNKNOWN"

    def _note(self, job_id: str, job: jobs.LsfJob | None) -> None:
        if job is not None:
            self._missing.pop(job_id, None)
            state = _submitit_state(job)
            info = {"JobID": job.job_id, "State": state, "NodeList": ",".join(job.hosts)}
            self._info_dict[job_id] = info
            return
        # A job of this moment may not be listed yet; one that is missing again is forgotten.
        self._missing[job_id] = self._missing.get(job_id, 0) + 1
        if self._missing[job_id] > 1:
            self._info_dict[job_id] = {"JobID": lsf_id(job_id), "State": "FORGOTTEN"}


class LsfJob(core.Job[core.R]):
    """A job of LSF's; elements of arrays are called 123_4, as with Slurm."""

    watcher = LsfInfoWatcher(delay_s=600)

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002 - submitit's signature
        """bkill; with `check`, its refusal is an error."""
        try:
            bkill([lsf_id(self.job_id)])
        except SchedulerError:
            if check:
                raise

    def _interrupt(self, timeout: bool = False) -> None:  # noqa: FBT001, FBT002 - submitit's
        """Send what LSF sends at the run limit, or, without `timeout`, when it preempts."""
        name = LsfJobEnvironment.USR_SIG if timeout else "INT"
        run_command(["bkill", "-s", name, lsf_id(self.job_id)], timeout_s=_TIMEOUT_S)


class LsfJobEnvironment(job_environment.JobEnvironment):
    """What a task of an LSF job knows of its place."""

    USR_SIG = "USR2"  # what LSF sends at the run limit, whatever a user of Slurm has set
    _env = {"job_id": "LSB_JOBID", "global_rank": TASK_VARIABLE}  # noqa: RUF012 - as submitit has it

    @property
    def array_job_id(self) -> str | None:
        """LSB_JOBINDEX is 0 where there is no array."""
        return None if self.array_task_id is None else self.raw_job_id

    @property
    def array_task_id(self) -> str | None:
        """From 1 on."""
        index = os.environ.get("LSB_JOBINDEX", "0")
        return None if index in {"", "0"} else index

    @property
    def num_tasks(self) -> int:
        """Over all hosts."""
        return self.num_nodes * self._tasks_per_node

    @property
    def num_nodes(self) -> int:
        """Hosts of the job."""
        return len(self.hostnames)

    @property
    def node(self) -> int:
        """Place of this host in the job's list."""
        return self.global_rank // self._tasks_per_node

    @property
    def local_rank(self) -> int:
        """Among the tasks of this host."""
        return self.global_rank % self._tasks_per_node

    @property
    def hostnames(self) -> list[str]:
        """As LSF names them."""
        found = job_hosts(os.environ.get(HOSTS_VARIABLE, ""))
        return [host.name for host in found] or [self.hostname]

    @property
    def _tasks_per_node(self) -> int:
        return int(os.environ.get(TASKS_PER_NODE_VARIABLE) or 1)

    def _handle_signals(self, paths: Any, submission: Any) -> None:
        """LSF preempts and kills by SIGINT alike: what has a checkpoint method is saved, and goes
        on from there where LSF starts the job again."""
        super()._handle_signals(paths, submission)
        if self.global_rank == 0 and hasattr(submission.function, "checkpoint"):
            handler = job_environment.SignalHandler(self, paths, submission)
            signal.signal(signal.SIGINT, handler.checkpoint_and_exit)

    def _requeue(self, countdown: int) -> None:
        # brequeue ends this job by SIGINT too, and all is saved: a second time it would be without
        # the count of run limits.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        brequeue(own_id(), timeout_s=_TIMEOUT_S)
        logger.get_logger().info(f"Requeued job {own_id()} ({countdown} remaining timeouts)")


def _submitit_state(job: jobs.LsfJob) -> str:
    if job.stat in _UNREACHABLE:
        return "UNKNOWN"
    return _STATES.get(job.condition().state, "FAILED")
