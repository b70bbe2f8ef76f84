"""The options of sbatch for a job, how they come about, and the environment that sbatch is called
with. Pure.

Every option is described at slurm.schedmd.com/sbatch.html; those of 20.11 and newer are used.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping

from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec, warning_before_s
from hpcdist.schedulers.base import LineMeaning, Target
from hpcdist.schedulers.request import (
    NO_MEMORY_LINE,
    asks_for_gpus,
    cpus_per_node,
    limit_line,
    mem_gb_per_node,
    no_gpus_line,
    product,
    ranks_and_cpus,
    source,
    time_limit_min,
)

_Options = dict[str, str | None]
"""Option of sbatch -> its value; None for one that takes none."""
MIB_PER_GB = 1e9 / 2**20
_KEPT = frozenset(("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_JWT"))
_NEVER = frozenset(
    f"SBATCH_{name}"
    for name in (
        *("ARRAY_INX", "REQUEUE", "NO_REQUEUE", "WAIT", "JOB_NAME", "OUTPUT", "ERROR", "INPUT"),
        *("OPEN_MODE", "SIGNAL", "EXPORT", "GET_USER_ENV", "IGNORE_PBS", "WAIT_ALL_NODES"),
    )
)
"""They would make another job of it than the one that is tracked."""
_ALTERNATIVES = (
    frozenset(f"SBATCH_MEM_PER_{what}" for what in ("NODE", "CPU", "GPU")),
    frozenset(
        f"SBATCH_{name}"
        for name in ("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GRES")
    ),
)
"""Variables that contradict each other: where the script has one, none of the others counts."""
_DIRECTIVE = re.compile(r"^#SBATCH --([a-z-]+)", re.MULTILINE)
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "job-name": "SBATCH_JOB_NAME",
    "mem": "SBATCH_MEM_PER_NODE",
    "time": "SBATCH_TIMELIMIT",
    "no-requeue": "SBATCH_NO_REQUEUE",
}
"""Options whose variable is not SBATCH_ with their name (slurm.schedmd.com/sbatch.html, INPUT
ENVIRONMENT VARIABLES)."""


_CPUS = "resources.cpus_per_gpu|cpus_per_gpu"
_LIMIT = "resources.time_limit_min|time_limit_min"
LINE_MEANINGS = (
    LineMeaning("#SBATCH --job-name=", "The run's id, by which squeue lists it."),
    LineMeaning("#SBATCH --partition=", "", ["partition"]),
    LineMeaning("#SBATCH --account=", "", ["account"]),
    LineMeaning("#SBATCH --qos=", "", ["qos"]),
    LineMeaning("#SBATCH --constraint=", "", ["constraint"]),
    LineMeaning("#SBATCH --nodes=", "", ["resources.nodes"]),
    LineMeaning("#SBATCH --ntasks-per-node=", "One agent per node, which forks the node's ranks."),
    LineMeaning(
        "#SBATCH --cpus-per-task=",
        "CPUs of the agent, which are those of its ranks: GPUs per node x CPUs per GPU.",
        ["resources.gpus", _CPUS],
    ),
    LineMeaning("#SBATCH --gres=", "GPUs per node.", ["resources.gpus", "gpu_request", "gpu_type"]),
    LineMeaning(
        "#SBATCH --gpus-per-node=", "GPUs per node.", ["resources.gpus", "gpu_request", "gpu_type"]
    ),
    LineMeaning(
        "#SBATCH --mem=", "Memory per node; sbatch's M is 2**20 bytes.", ["resources.mem_gb|mem_gb"]
    ),
    LineMeaning("#SBATCH --time=", "Time limit, as D-HH:MM:SS.", [_LIMIT]),
    LineMeaning(
        "#SBATCH --signal=",
        "Slurm sends SIGUSR2 so many seconds before the time limit, and the ranks save a "
        "checkpoint; at most a quarter of the limit.",
        ["launch.warning_s", _LIMIT],
    ),
    LineMeaning("#SBATCH --requeue", "", ["launch.requeue"]),
    LineMeaning("#SBATCH --no-requeue", "", ["launch.requeue"]),
    LineMeaning("#SBATCH --output=", "The job's own output, before and around that of the ranks."),
    LineMeaning("#SBATCH --open-mode=", "A requeued job adds to its output."),
    LineMeaning(
        "#SBATCH --array=", "Runs of the sweep that differ in nothing here; %: --max-parallel."
    ),
    LineMeaning("#SBATCH --dependency=", "Jobs that must have ended: --after, or --max-parallel."),
    LineMeaning("#SBATCH --kill-on-invalid-dep=", "A job that would wait in vain ends."),
    LineMeaning("srun ", "Slurm starts one agent on each node, as a step of the job."),
    LineMeaning('if [ "$ended"', "If srun has failed:"),
    LineMeaning('exit "$ended"', "The job's exit code is srun's."),
    LineMeaning("begin=", "The length of the job's output so far, to find what srun adds."),
)
"""Lines of the script, and the keys that they come from."""


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[str]:
    """Return the options of sbatch, in a fixed order, each ready to stand behind #SBATCH."""
    options: _Options = {"job-name": target.name}
    for name in ("partition", "account", "qos", "constraint"):
        if (value := getattr(cluster, name)) is not None:
            options[name] = value
    options |= _resource_options(job, cluster) | _end_options(job, cluster)
    if (address := mail_of(cluster.notify)) is not None:  # of an array one, at its end
        options |= {"mail-type": "END,FAIL"} | ({"mail-user": address} if address else {})
    options |= {"output": log_pattern(target, "0"), "open-mode": "append"}
    if target.array_size is not None:
        limit = f"%{target.max_parallel}" if target.max_parallel else ""
        options["array"] = f"0-{target.array_size - 1}{limit}"
    if target.dependencies:
        named = [":".join([one.kind, *one.job_ids]) for one in target.dependencies]
        options["dependency"] = ",".join(named)
        # Without it, a job whose dependency can never come true would wait for ever.
        options["kill-on-invalid-dep"] = "yes"
    own = [
        f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        for name, value in options.items()
    ]
    return [*own, *cluster.directives]


def log_pattern(target: Target, task: str) -> str:
    """Return where submitit looks for the output of a task; %t is its number in srun."""
    job = "%j" if target.array_size is None else "%A_%a"
    return f"{target.submitit_folder}/{job}_{task}_log.out"


def slurm_time(minutes: float) -> str:
    """Return a duration as sbatch reads it: D-HH:MM:SS, rounded up to seconds."""
    seconds = math.ceil(minutes * 60)
    days, rest = divmod(seconds, 24 * 3600)
    hours, rest = divmod(rest, 3600)
    return f"{days}-{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"


def _resource_options(job: JobSpec, cluster: ClusterProfile) -> _Options:
    options: _Options = {
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


def _end_options(job: JobSpec, cluster: ClusterProfile) -> _Options:
    options: _Options = {}
    limit_min = time_limit_min(job, cluster)
    if limit_min is not None:
        options["time"] = slurm_time(limit_min)
    # Slurm looks at limits every 30 s or so, and may warn up to 60 s earlier than asked.
    options["signal"] = f"USR2@{math.ceil(warning_before_s(job.launch, limit_min))}"
    options["requeue" if job.launch.requeue else "no-requeue"] = None
    return options


# The same in lines that people can check by hand.


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """Return CPUs, memory, GPUs and the time limit, and where each number comes from."""
    resources = job.resources
    options = _resource_options(job, cluster) | _end_options(job, cluster)

    def asked(*names: str) -> str:
        return " ".join(f"--{name}={options[name]}" for name in names if name in options)

    cpus = product(resources.nodes, int(options["cpus-per-task"] or 0), what="CPU")
    counted = asked("nodes", "ntasks-per-node", "cpus-per-task")
    lines = [f"CPUs: {cpus} ({ranks_and_cpus(job, cluster)}; one agent per node): {counted}"]
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        lines.append(NO_MEMORY_LINE)
    else:
        lines.append(
            f"memory {mem_gb:g} GB per node (mem_gb, "
            f"{source(resources.mem_gb, cluster.mem_gb)}): {asked('mem')}, because "
            f"Slurm's M is 2**20 bytes; {mem_gb * resources.nodes:g} GB in all"
        )
    if asks_for_gpus(job, cluster):
        gpus = product(resources.nodes, resources.gpus, what="GPU")
        request = asked("gres", "gpus-per-node")
        lines.append(f"GPUs: {gpus} (gpu_request: {cluster.gpu_request}): {request}")
    else:
        lines.append(no_gpus_line(job))
    limit = asked("time", "signal") if "time" in options else None
    return [*lines, limit_line(job, cluster, limit)]


# The environment of sbatch.


def submission_environment(before: Mapping[str, str], script: str) -> dict[str, str]:
    """Return the caller's environment, without what would change the job unseen.

    Variables win over directives in sbatch, so those of the script's own directives are left out:
    what `hpcdist render` shows is what counts. Variables of a job that this shell is part of would
    be taken for the new job's.
    """
    named = {
        _VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}")
        for name in _DIRECTIVE.findall(script)
    }
    left_out = _NEVER.union(named, *(group for group in _ALTERNATIVES if group & named))
    return {
        name: value
        for name, value in before.items()
        if name not in left_out and (name in _KEPT or not name.startswith("SLURM_"))
    }
