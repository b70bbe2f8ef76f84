"""What sbatch is asked for: a job, a cluster profile and a target in, options out. Pure.

Every option is described at slurm.schedmd.com/sbatch.html; those of 20.11 and newer are used.
"""

from __future__ import annotations

import math
import shlex

from hpcdist.base.errors import RunDirectoryError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec, warning_before_s
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.resources import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    time_limit_min,
)

_PATTERN_SIGNS = ("%", "\\", "\n")
MIB_PER_GB = 1e9 / 2**20


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[str]:
    """The options of sbatch, in a fixed order, each ready to stand behind #SBATCH."""
    options = {
        "job-name": target.name,
        **_placement(cluster),
        **resource_options(job, cluster),
        **end_options(job, cluster),
        **_files(target),
        **_array(target),
        **_dependencies(target.dependencies),
    }
    own = [
        f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        for name, value in options.items()
    ]
    return [*own, *cluster.directives]


def log_pattern(target: Target, task: str) -> str:
    """Where submitit looks for the output of a task; %t stands for its number in srun."""
    job = "%j" if target.array_size is None else "%A_%a"
    return f"{target.submitit_folder}/{job}_{task}_log.out"


def check_folder(target: Target) -> None:
    """Raise RunDirectoryError for a path in which Slurm and submitit see a pattern."""
    found = next((sign for sign in _PATTERN_SIGNS if sign in str(target.folder)), None)
    if found is not None:
        raise RunDirectoryError(
            f"{target.folder}: the path holds {found!r}, which Slurm takes for a pattern",
            hint="name another folder with --runs or HPCDIST_RUNS",
        )


def slurm_time(minutes: float) -> str:
    """A duration as sbatch reads it: D-HH:MM:SS, rounded up to seconds."""
    seconds = math.ceil(minutes * 60)
    days, rest = divmod(seconds, 24 * 3600)
    hours, rest = divmod(rest, 3600)
    return f"{days}-{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


def _placement(cluster: ClusterProfile) -> dict[str, str | None]:
    wanted = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def resource_options(job: JobSpec, cluster: ClusterProfile) -> dict[str, str | None]:
    """Nodes, CPUs, GPUs and memory."""
    options: dict[str, str | None] = {
        "nodes": str(job.resources.nodes),
        "ntasks-per-node": "1",  # the agent, which forks the ranks
        "cpus-per-task": str(cpus_per_node(job, cluster)),
    }
    if asks_for_gpus(job, cluster):
        kind = f"{cluster.gpu_type}:" if cluster.gpu_type else ""
        number = job.resources.gpus
        if cluster.gpu_request == "gres":
            options["gres"] = f"gpu:{kind}{number}"
        else:
            options["gpus-per-node"] = f"{kind}{number}"
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is not None:
        options["mem"] = f"{math.ceil(mem_gb * MIB_PER_GB)}M"  # sbatch's M is 2**20 bytes
    return options


def end_options(job: JobSpec, cluster: ClusterProfile) -> dict[str, str | None]:
    """How long the job may run, when it is warned, and what follows."""
    options: dict[str, str | None] = {}
    limit_min = time_limit_min(job, cluster)
    if limit_min is not None:
        options["time"] = slurm_time(limit_min)
    options["signal"] = f"USR2@{warning_s(job, limit_min)}"
    options["requeue" if job.launch.requeue else "no-requeue"] = None
    return options


def warning_s(job: JobSpec, limit_min: float | None) -> int:
    """How long before the limit the agents are warned, in whole seconds.

    Slurm looks at limits every 30 s or so, and may warn up to 60 s earlier than asked.
    """
    return math.ceil(warning_before_s(job.launch, limit_min))


def _files(target: Target) -> dict[str, str | None]:
    return {"output": log_pattern(target, "0"), "open-mode": "append"}


def _array(target: Target) -> dict[str, str | None]:
    if target.array_size is None:
        return {}
    limit = f"%{target.max_parallel}" if target.max_parallel else ""
    return {"array": f"0-{target.array_size - 1}{limit}"}


def _dependencies(dependencies: list[Dependency]) -> dict[str, str | None]:
    if not dependencies:
        return {}
    text = ",".join(":".join([one.kind, *one.job_ids]) for one in dependencies)
    # Without it, a job whose dependency can never come true would wait for ever.
    return {"dependency": text, "kill-on-invalid-dep": "yes"}
