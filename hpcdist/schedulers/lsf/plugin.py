"""LSF for submitit: `submitit.AutoExecutor(folder, cluster="lsf")`.

submitit finds the executor and the job environment by `entry_points`, where there is LSF. Its
generic parameters (nodes, tasks_per_node, cpus_per_task, gpus_per_node, mem_gb, timeout_min, name,
stderr_to_stdout) mean what they mean with Slurm; lsf_* parameters are the keys of a cluster profile
(lsf_partition, lsf_setup, ...), lsf_profile is the name of one in hpcdist.yaml, and
lsf_array_parallelism how many elements of an array may run at one time.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from submitit.core import core, job_environment, logger, utils

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.load import choose_cluster
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job import Flag
from hpcdist.job.spec import JobSpec, Launch, Resources
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.hosts import (
    HOSTS_VARIABLE,
    TASK_VARIABLE,
    TASKS_PER_NODE_VARIABLE,
    read_hosts,
)
from hpcdist.schedulers.lsf.bjobs import ListedJob, ask_jobs
from hpcdist.schedulers.lsf.commands import (
    bkill,
    brequeue,
    bsub,
    lsf_id,
    submission_environment,
)
from hpcdist.schedulers.lsf.hosts import own_id, own_index
from hpcdist.schedulers.lsf.request import FunctionTasks, job_script
from hpcdist.schedulers.submitting import ScriptExecutor

_GENERIC_PARAMETERS = {
    *("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"),
    *("tasks_per_node", "stderr_to_stdout"),
}
_NO_PARAMETERS = {"scheduler", "interface", "qos", "mem_gb", "time_limit_min"}
"""Keys of a profile that would have no effect: submitit has words of its own, or LSF has none."""
_STATES = {
    "pending": "PENDING",
    "running": "RUNNING",
    "done": "COMPLETED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
}
"""State of a run -> the word for it that submitit knows from Slurm."""
_TIMEOUT_MIN = 5
"""submitit's own default."""
_TIMEOUT_S = 60.0


class LsfInfoWatcher(core.InfoWatcher):
    """Asks bjobs for all jobs at once."""

    def __init__(self, delay_s: int = 60) -> None:
        super().__init__(delay_s)
        self._missing: set[str] = set()

    def update(self) -> None:
        """Ask bjobs; submitit's own call of a command has no time-out, and needs its exit code."""
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
        return self.get_info(job_id, mode=mode).get("State") or "UNKNOWN"

    def _note(self, job_id: str, job: ListedJob | None) -> None:
        if job is not None:
            self._missing.discard(job_id)
            state = _STATES.get(job.condition().state, "FAILED")
            self._info_dict[job_id] = {
                "JobID": job.job_id,
                "State": "UNKNOWN" if job.state in {"UNKWN", "ZOMBI"} else state,
                "NodeList": ",".join(job.nodes),
            }
        elif job_id in self._missing:
            self._info_dict[job_id] = {"JobID": lsf_id(job_id), "State": "FORGOTTEN"}
        else:  # a job of this moment may not be listed yet
            self._missing.add(job_id)


class LsfJob(core.Job[core.R]):
    """A job of LSF's; elements of arrays are called 123_4, as with Slurm."""

    watcher = LsfInfoWatcher(delay_s=600)

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002 - submitit's signature
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
    """The place of a task in an LSF job, and in an array, whose elements are numbered from 1."""

    USR_SIG = "USR2"  # what LSF sends at the run limit, whatever a user of Slurm has set
    _env = {"job_id": "LSB_JOBID", "global_rank": TASK_VARIABLE}  # noqa: RUF012 - as submitit has it

    @property
    def array_job_id(self) -> str | None:
        return self.raw_job_id if own_index() else None

    @property
    def array_task_id(self) -> str | None:
        return own_index() or None

    @property
    def num_tasks(self) -> int:
        return self.num_nodes * self._tasks_per_node

    @property
    def num_nodes(self) -> int:
        return len(self.hostnames)

    @property
    def node(self) -> int:
        return self.global_rank // self._tasks_per_node

    @property
    def local_rank(self) -> int:
        return self.global_rank % self._tasks_per_node

    @property
    def hostnames(self) -> list[str]:
        found = read_hosts(os.environ.get(HOSTS_VARIABLE, ""))
        return [host.name for host in found] or [self.hostname]

    @property
    def _tasks_per_node(self) -> int:
        return int(os.environ.get(TASKS_PER_NODE_VARIABLE) or 1)

    def _handle_signals(self, paths: Any, submission: Any) -> None:
        """Save at SIGINT too what has a checkpoint method: LSF preempts and kills by it alike, and
        the function goes on from there where LSF starts the job again."""
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


class LsfExecutor(core.Executor):
    """submitit's executor for LSF; the module's docstring has its parameters."""

    job_class = LsfJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ) -> None:
        """`max_num_timeout` is how often a function with a checkpoint method is requeued at the
        run limit; `python` the command that starts Python for the tasks, as bash reads it."""
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self.python = python

    @classmethod
    def affinity(cls) -> int:
        return -1 if shutil.which("bsub") is None else 2  # after Slurm, where both are there

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"profile", "array_parallelism", *ClusterProfile.__struct_fields__} - _NO_PARAMETERS

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = self._valid_parameters() | _GENERIC_PARAMETERS
        if unknown := sorted(kwargs.keys() - known):
            raise ValueError(f"Unavailable parameter(s): {unknown}\nThere are: {sorted(known)}")
        parameters = self.parameters | kwargs
        is_for_arrays = "%a" in str(self.folder)
        self._script(parameters, 2 if is_for_arrays else None)  # what is wrong is said now
        self.parameters.update(kwargs)  # AutoExecutor's are the same object

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        number = len(delayed_submissions)
        array_size = number if number > 1 else None
        timeout_min = int(self.parameters.get("timeout_min", _TIMEOUT_MIN))
        for delayed in delayed_submissions:
            delayed.set_timeout(timeout_min, self.max_num_timeout)
        script = self._script(self.parameters, array_size)
        self._shared_folder.mkdir(parents=True, exist_ok=True)
        executor = ScriptExecutor(
            self.folder,
            job_class=LsfJob,
            num_tasks=_tasks_per_node(self.parameters) * int(self.parameters.get("nodes", 1)),
            send=lambda: self._send(script, executor.pickles),
            take_back=lambda ids: bkill([lsf_id(one) for one in ids]),
            array_from=None if array_size is None else 1,
            has_own_names=True,
        )
        jobs = executor._internal_process_submissions(list(delayed_submissions))  # noqa: SLF001 - as submitit calls it
        jobs[0].paths.submission_file.write_text(script)  # one for an array
        return jobs

    def _send(self, script: str, pickles: Sequence[Path]) -> str:
        try:
            _check_size(pickles, self.max_pickle_size_gb)
            job_id, _ = bsub(script, environment=submission_environment())
        except (CommandFailedError, RuntimeError):  # after a time-out there may be a job
            for path in pickles:
                path.unlink(missing_ok=True)
            raise
        return job_id

    def _script(self, parameters: Mapping[str, Any], array_size: int | None) -> str:
        """Return the script; raise ValueError for a name or folder that the job cannot have."""
        name = parameters.get("name", "submitit")
        if "[" in name:
            raise ValueError(f"Parameter 'name' is {name!r}: LSF takes [ for an array's numbers")
        _ = utils.JobPaths(self.folder, job_id="0" if array_size is None else "0_1").folder
        if "%t" in str(self.folder):
            raise ValueError(f"{self.folder}: the folder holds %t, and all tasks share one")
        target = _SubmititTarget(
            name=name,
            folder=self._shared_folder,
            cwd=os.getcwd(),
            array_size=array_size,
            max_parallel=parameters.get("array_parallelism"),
        )
        per_node = _tasks_per_node(parameters)
        # A task stands where hpcdist has a rank: GPUs are counted apart.
        job = JobSpec(
            name=name,
            workload="submitit",
            resources=Resources(
                nodes=parameters.get("nodes", 1),
                gpus=per_node,
                cpus_per_gpu=parameters.get("cpus_per_task"),
                mem_gb=parameters.get("mem_gb"),
                time_limit_min=int(parameters.get("timeout_min", _TIMEOUT_MIN)),
            ),
            launch=Launch(device="auto" if parameters.get("gpus_per_node") else "cpu"),
        )
        functions = FunctionTasks(
            folder=str(self.folder),
            per_node=per_node,
            python=self.python,
            stderr_to_stdout=bool(parameters.get("stderr_to_stdout")),
        )
        cluster = _cluster(parameters)
        return job_script(job, cluster, target, environment={}, functions=functions)

    @property
    def _shared_folder(self) -> Path:
        """Return the part of the folder without %j and the like."""
        return Path(utils.JobPaths.get_first_id_independent_folder(self.folder))


class _SubmititTarget(Target, frozen=True, kw_only=True):
    @property
    def submitit_folder(self) -> Path:
        return self.folder  # submitit was told one for everything


def _check_size(pickles: Sequence[Path], limit_gb: float) -> None:
    size_gb = sum(path.stat().st_size for path in pickles) / 1024**3
    if size_gb > limit_gb:
        raise RuntimeError(
            f"{len(pickles)} functions with their arguments are {size_gb:.3g} GB as pickles, more "
            f"than {limit_gb} GB: pass paths instead, or set executor.max_pickle_size_gb"
        )


def _tasks_per_node(parameters: Mapping[str, Any]) -> int:
    return int(parameters.get("tasks_per_node") or 1)


def _cluster(parameters: Mapping[str, Any]) -> ClusterProfile:
    flags = {
        key: Flag(name=f"lsf_{key}", value=value, text=str(value))
        for key, value in parameters.items()
        if key in ClusterProfile.__struct_fields__ and key not in _NO_PARAMETERS
    }
    _, loaded = choose_cluster("lsf", parameters.get("profile"), flags)
    # A host's GPUs are filled in here: they are not as many as its tasks.
    number, lsf = str(parameters.get("gpus_per_node") or 0), loaded.profile.lsf
    gpu = lsf.gpu and lsf.gpu.replace("{gpus}", number)
    gpu_rusage = lsf.gpu_rusage and lsf.gpu_rusage.replace("{gpus}", number)
    return replace(loaded.profile, lsf=replace(lsf, gpu=gpu, gpu_rusage=gpu_rusage))
