"""LSF for submitit: `submitit.AutoExecutor(folder, cluster="lsf")`, and what hpcdist submits by.

submitit finds the executor and the job environment by the entry points of the group `submitit`. Its
generic parameters (nodes, tasks_per_node, cpus_per_task, gpus_per_node, mem_gb, timeout_min, name)
mean what they mean with Slurm; lsf_* parameters are the keys of a cluster profile (lsf_partition,
lsf_setup, ...), and lsf_profile is the name of one in hpcdist.yaml.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from submitit.core import core, job_environment, logger

from hpcdist.cluster.choose import choose_cluster
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.errors import SchedulerError
from hpcdist.job import Flag
from hpcdist.launch.lsf_hosts import (
    HOSTS_VARIABLE,
    TASK_VARIABLE,
    TASKS_PER_NODE_VARIABLE,
    job_hosts,
)
from hpcdist.schedulers import Target
from hpcdist.schedulers.lsf.bjobs import ask_jobs, bkill, brequeue
from hpcdist.schedulers.lsf.bsub import bsub, send, submission_environment
from hpcdist.schedulers.lsf.ids import lsf_id, own_id
from hpcdist.schedulers.lsf.script import FUNCTIONS, job_script
from hpcdist.schedulers.prepared import PreparedSubmission
from hpcdist.spec import JobSpec, Launch, Resources

_STATES = {
    "PEND": "PENDING",
    "PSUSP": "PENDING",
    "WAIT": "PENDING",
    "RUN": "RUNNING",
    "USUSP": "RUNNING",
    "SSUSP": "RUNNING",
    "UNKWN": "UNKNOWN",
    "ZOMBI": "UNKNOWN",
    "DONE": "COMPLETED",
    "EXIT": "FAILED",
}
"""LSF's states -> those that submitit knows from Slurm."""
_BREQUEUE_TIMEOUT_S = 60.0
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
"""In a job's name, blanks break bjobs' columns, and brackets make an array of it."""
_DEFAULT_TIMEOUT_MIN = 5  # submitit's own
_GENERIC_PARAMETERS = frozenset(
    (
        *("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"),
        *("tasks_per_node", "stderr_to_stdout"),
    )
)


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

    def _note(self, job_id: str, job: Any) -> None:
        if job is not None:
            self._missing.pop(job_id, None)
            self._info_dict[job_id] = {
                "JobID": job.job_id,
                "State": _STATES.get(job.stat, "UNKNOWN"),
            }
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


class LsfJobEnvironment(job_environment.JobEnvironment):
    """What a task of an LSF job knows of its place."""

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

    def _requeue(self, countdown: int) -> None:
        brequeue(own_id(), timeout_s=_BREQUEUE_TIMEOUT_S)
        logger.get_logger().info(f"Requeued job {own_id()} ({countdown} remaining timeouts)")


class PreparedLsfExecutor(PreparedSubmission, core.Executor):
    """Gives a script to bsub, and what it is to do to the job."""

    job_class = LsfJob
    first_task = 1

    def take_back(self, job_ids: Sequence[str]) -> None:
        """End what was submitted: nobody would know of it."""
        bkill([lsf_id(one) for one in job_ids])

    def _submit_script(self) -> str:
        job_id, self.said = bsub(
            self._script, self._target.name, environment=submission_environment()
        )
        return job_id


class _FunctionsExecutor(PreparedLsfExecutor):
    """Here several submissions may share a folder, also at one time, and a name: so a job of which
    bsub does not tell cannot be known by its name."""

    def _submit_script(self) -> str:
        job_id, self.said = send(self._script, environment=submission_environment())
        return job_id

    def _unnamed_pickle(self, folder: Path, task: int) -> Path:  # noqa: ARG002 - the same for all
        return folder / f"{uuid.uuid4().hex}.pkl"


class LsfExecutor(core.Executor):
    """submitit's executor for LSF; see the module for its parameters."""

    job_class = LsfJob

    def __init__(
        self, folder: str | Path, max_num_timeout: int = 3, python: str | None = None
    ) -> None:
        """`max_num_timeout` is how often a function with a checkpoint method is requeued at the
        run limit; `python` the interpreter of the jobs, by default this one."""
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.python = python

    @classmethod
    def affinity(cls) -> int:
        """Found by itself where bsub is there; after Slurm, where both are."""
        return -1 if shutil.which("bsub") is None else 2

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"profile", *ClusterProfile.__struct_fields__}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = self._valid_parameters() | _GENERIC_PARAMETERS
        if unknown := sorted(kwargs.keys() - known):
            raise ValueError(f"Unavailable parameter(s): {unknown}\nThere are: {sorted(known)}")
        parameters = self.parameters | kwargs
        self._script(parameters, self._target(parameters, 1))  # what is wrong is said now
        self.parameters = parameters

    def _internal_process_submissions(self, delayed_submissions: list[Any]) -> list[Any]:
        target = self._target(self.parameters, len(delayed_submissions))
        num_tasks = _tasks_per_node(self.parameters) * self.parameters.get("nodes", 1)
        for delayed in delayed_submissions:
            timeout_min = self.parameters.get("timeout_min", _DEFAULT_TIMEOUT_MIN)
            delayed.set_timeout(timeout_min, self.max_num_timeout)
        self.folder.mkdir(parents=True, exist_ok=True)
        script = self._script(self.parameters, target)
        executor = _FunctionsExecutor(target, script, num_tasks)
        jobs = executor._internal_process_submissions(delayed_submissions)  # noqa: SLF001 - as submitit calls it
        for job in jobs[:1]:  # one file for an array
            job.paths.submission_file.write_text(script)
        return jobs

    def _target(self, parameters: Mapping[str, Any], number: int) -> Target:
        return _SubmititTarget(
            name=_NOT_IN_NAMES.sub("_", parameters.get("name", "submitit")),
            folder=self.folder,
            cwd=os.getcwd(),
            array_size=number if number > 1 else None,
        )

    def _script(self, parameters: Mapping[str, Any], target: Target) -> str:
        tasks_per_node = _tasks_per_node(parameters)
        num_gpus = parameters.get("gpus_per_node") or 0
        job = JobSpec(
            name=target.name,
            workload="submitit",
            resources=Resources(
                nodes=parameters.get("nodes", 1),
                gpus=tasks_per_node,
                cpus_per_gpu=parameters.get("cpus_per_task", 1),
                mem_gb=parameters.get("mem_gb"),
                time_limit_min=parameters.get("timeout_min", _DEFAULT_TIMEOUT_MIN),
            ),
            launch=Launch(device="auto" if num_gpus else "cpu"),
        )
        return job_script(
            job,
            _with_gpus(self._cluster(parameters), num_gpus),
            target,
            environment={},
            entry=FUNCTIONS,
            tasks_per_node=tasks_per_node,
        )

    def _cluster(self, parameters: Mapping[str, Any]) -> ClusterProfile:
        flags = {
            key: Flag(name=f"lsf_{key}", value=value, text=str(value))
            for key, value in parameters.items()
            if key in ClusterProfile.__struct_fields__
        }
        _, loaded = choose_cluster("lsf", parameters.get("profile"), flags)
        profile = loaded.profile
        return profile if self.python is None else replace(profile, python=self.python)


class _SubmititTarget(Target, frozen=True, kw_only=True):
    """Everything is in the one folder that submitit was told."""

    @property
    def submitit_folder(self) -> Path:
        return self.folder


def _tasks_per_node(parameters: Mapping[str, Any]) -> int:
    return int(parameters.get("tasks_per_node") or 1)


def _with_gpus(cluster: ClusterProfile, number: int) -> ClusterProfile:
    """Here GPUs and tasks are counted apart: a host's GPUs are filled in."""
    lsf = cluster.lsf
    filled = {
        key: value and value.replace("{gpus}", str(number))
        for key, value in (("gpu", lsf.gpu), ("gpu_rusage", lsf.gpu_rusage))
    }
    return replace(cluster, lsf=replace(lsf, **filled))
