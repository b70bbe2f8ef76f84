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
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from submitit.core import core, utils

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.load import choose_cluster
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job import Flag
from hpcdist.job.spec import JobSpec, Launch, Resources
from hpcdist.machine.command import CommandFailedError
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.lsf.bjobs import bkill
from hpcdist.schedulers.lsf.bsub import send, submission_environment
from hpcdist.schedulers.lsf.ids import lsf_id
from hpcdist.schedulers.lsf.script import FunctionTasks, job_script
from hpcdist.schedulers.lsf.submitit_job import LsfJob
from hpcdist.schedulers.submitting import ScriptExecutor

_GENERIC_PARAMETERS = frozenset(
    (
        *("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node"),
        *("tasks_per_node", "stderr_to_stdout"),
    )
)
_NO_PARAMETERS = frozenset({"scheduler", "interface", "qos", "mem_gb", "time_limit_min"})
"""Keys of a profile that would have no effect: submitit has words of its own, or LSF has none."""


class _FunctionsExecutor(ScriptExecutor):
    """Others may submit to the same folder at this moment, and jobs of the same name."""

    def __init__(
        self, executor: LsfExecutor, script: str, *, num_tasks: int, array_from: int | None
    ) -> None:
        super().__init__(
            executor.folder,
            job_class=LsfJob,
            num_tasks=num_tasks,
            send=self._bsub,
            take_back=lambda ids: bkill([lsf_id(one) for one in ids]),
            array_from=array_from,
        )
        self._script = script
        self._max_pickle_size_gb = executor.max_pickle_size_gb

    def pickle_path(self, folder: Path, place: int) -> Path:
        return folder / f"{uuid.uuid4().hex}-{place}.pkl"

    def check_pickles(self, pickles: Sequence[Path]) -> None:
        self._pickles = pickles
        size_gb = sum(path.stat().st_size for path in pickles) / 1024**3
        if size_gb > self._max_pickle_size_gb:
            _remove(pickles)
            raise RuntimeError(
                f"{len(pickles)} functions with their arguments are {size_gb:.3g} GB as pickles, "
                f"more than {self._max_pickle_size_gb} GB: pass paths instead, or set "
                "executor.max_pickle_size_gb"
            )

    def _bsub(self) -> str:
        try:
            job_id, _ = send(self._script, environment=submission_environment())
        except CommandFailedError:  # after a time-out there may be a job
            _remove(self._pickles)
            raise
        return job_id


class LsfExecutor(core.Executor):
    """submitit's executor for LSF; see the module for its parameters."""

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
        """Found by itself where bsub is there; after Slurm, where both are."""
        return -1 if shutil.which("bsub") is None else 2

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
        for delayed in delayed_submissions:
            delayed.set_timeout(_timeout_min(self.parameters), self.max_num_timeout)
        script = self._script(self.parameters, array_size)
        self._shared_folder.mkdir(parents=True, exist_ok=True)
        executor = _FunctionsExecutor(
            self,
            script,
            num_tasks=_tasks_per_node(self.parameters) * int(self.parameters.get("nodes", 1)),
            array_from=None if array_size is None else 1,
        )
        jobs = executor._internal_process_submissions(list(delayed_submissions))  # noqa: SLF001 - as submitit calls it
        jobs[0].paths.submission_file.write_text(script)  # one for an array
        return jobs

    def _script(self, parameters: Mapping[str, Any], array_size: int | None) -> str:
        cluster = self._cluster(parameters)
        return job_script(
            _job_spec(parameters),
            cluster,
            self._target(parameters, array_size),
            environment={},
            functions=FunctionTasks(
                folder=self._folder_pattern(array_size),
                per_node=_tasks_per_node(parameters),
                python=self.python,
                stderr_to_stdout=bool(parameters.get("stderr_to_stdout")),
            ),
        )

    def _target(self, parameters: Mapping[str, Any], array_size: int | None) -> Target:
        name = parameters.get("name", "submitit")
        if "[" in name:
            raise ValueError(f"Parameter 'name' is {name!r}: LSF takes [ for an array's numbers")
        return _SubmititTarget(
            name=name,
            folder=self._shared_folder,
            cwd=os.getcwd(),
            array_size=array_size,
            max_parallel=parameters.get("array_parallelism"),
        )

    def _cluster(self, parameters: Mapping[str, Any]) -> ClusterProfile:
        flags = {
            key: Flag(name=f"lsf_{key}", value=value, text=str(value))
            for key, value in parameters.items()
            if key in ClusterProfile.__struct_fields__ and key not in _NO_PARAMETERS
        }
        _, loaded = choose_cluster("lsf", parameters.get("profile"), flags)
        cluster = _with_gpus(loaded.profile, parameters.get("gpus_per_node") or 0)
        if "{host}" not in cluster.lsf.launcher and _tasks_per_node(parameters) > 1:
            raise ProfileError(
                f"the cluster profile: lsf.launcher ({cluster.lsf.launcher}) starts one task on "
                f"every host, and tasks_per_node is {_tasks_per_node(parameters)}",
                hint="start the further ones from within the function",
            )
        return cluster

    def _folder_pattern(self, array_size: int | None) -> str:
        """Wrong is what nobody could fill in when the job is there."""
        _ = utils.JobPaths(self.folder, job_id="0" if array_size is None else "0_1").folder
        if "%t" in str(self.folder):
            raise ValueError(f"{self.folder}: the folder holds %t, and all tasks share one")
        return str(self.folder)

    @property
    def _shared_folder(self) -> Path:
        """The part of the folder without %j and the like."""
        return Path(utils.JobPaths.get_first_id_independent_folder(self.folder))


class _SubmititTarget(Target, frozen=True, kw_only=True):
    """Everything is in the one folder that submitit was told."""

    @property
    def submitit_folder(self) -> Path:
        return self.folder


def _job_spec(parameters: Mapping[str, Any]) -> JobSpec:
    """Here GPUs and tasks are counted apart: a task stands where hpcdist has a rank."""
    return JobSpec(
        name=parameters.get("name", "submitit"),
        workload="submitit",
        resources=Resources(
            nodes=parameters.get("nodes", 1),
            gpus=_tasks_per_node(parameters),
            cpus_per_gpu=parameters.get("cpus_per_task"),
            mem_gb=parameters.get("mem_gb"),
            time_limit_min=_timeout_min(parameters),
        ),
        launch=Launch(device="auto" if parameters.get("gpus_per_node") else "cpu"),
    )


def _timeout_min(parameters: Mapping[str, Any]) -> int:
    return int(parameters.get("timeout_min", 5))  # submitit's own default


def _tasks_per_node(parameters: Mapping[str, Any]) -> int:
    return int(parameters.get("tasks_per_node") or 1)


def _with_gpus(cluster: ClusterProfile, number: int) -> ClusterProfile:
    """A host's GPUs filled in, which are not as many as its tasks."""
    lsf = cluster.lsf
    filled = {
        key: value and value.replace("{gpus}", str(number))
        for key, value in (
            ("gpu", lsf.gpu),
            ("gpu_rusage", lsf.gpu_rusage),
            ("launcher", lsf.launcher),
        )
    }
    return replace(cluster, lsf=replace(lsf, **filled))


def _remove(pickles: Sequence[Path]) -> None:
    for path in pickles:
        path.unlink(missing_ok=True)
