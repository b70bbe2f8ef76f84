"""The allocation of a shell (salloc), and what a step in it asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hpcdist.base.errors import UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError
from hpcdist.schedulers.base import Allocation
from hpcdist.schedulers.request import cpus_per_node, time_limit_min
from hpcdist.schedulers.slurm.site import MIB_PER_GB, job_fields, show_job, slurm_time

_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def ask_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of the shell with this environment; None: it is in none.

    Raises UserError where it has ended, SchedulerError where Slurm does not answer.
    """
    job_id = environment.get("SLURM_JOB_ID")
    if not job_id:
        return None
    try:
        said = show_job(job_id)
        state = job_fields(said).get("JobState", "unknown")
        why = "" if state in {"RUNNING", "SUSPENDED"} else f"its state is {state}"
    except CommandFailedError as error:
        said, why = "", error.said
    if why:
        raise UserError(
            f"allocation {job_id}, which SLURM_JOB_ID names, cannot be used: {why}",
            hint="leave its shell with exit, and get another with salloc",
        )
    return parse_allocation(job_id, said, environment)


def parse_allocation(job_id: str, said: str, environment: Mapping[str, str]) -> Allocation:
    """Read `scontrol --oneliner show job`, and what salloc and srun set for their commands."""
    fields = job_fields(said)
    tres = fields.get("AllocTRES") or fields.get("TRES", "")
    found = dict(pair.split("=", 1) for pair in tres.split(",") if "=" in pair)
    nodes = re.match(r"\d+", fields.get("NumNodes", ""))
    num_nodes = int(nodes[0]) if nodes else 1
    per_node = environment.get("SLURM_JOB_CPUS_PER_NODE", "")  # 4(x2),2
    cpus = [
        int(number)
        for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node)
        for _ in range(int(times or 1))
    ]
    mem = re.fullmatch(r"([\d.]+)([KMGT]?)", found.get("mem", ""))
    mem_mib = float(mem[1]) * _MIB[mem[2] or "M"] / num_nodes if mem else None
    # Not every site accounts for the GPUs that were given; then it is known what was asked for.
    asked, asked_in_all = (_count_gpus(fields.get(f"TresPer{one}", "")) for one in ("Node", "Job"))
    return Allocation(
        job_id=job_id,
        num_nodes=num_nodes,
        cpus=cpus or [int(found.get("cpu", num_nodes)) // num_nodes] * num_nodes,
        gpus_per_node=(
            int(found.get("gres/gpu", 0)) // num_nodes
            or asked
            or asked_in_all // num_nodes
            or _gpus_of_shell(environment)
        ),
        mem_gb_per_node=None if mem_mib is None else mem_mib / MIB_PER_GB,
    )


def step_options(job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> list[str]:
    """Return what srun is told beyond what it is told in a batch job: a step that names no memory
    or GPUs takes all of the allocation's, and no other step can start beside it."""
    options, has_gb = ["--exact"], allocation.mem_gb_per_node
    if job.resources.mem_gb is not None:
        options.append(f"--mem={math.ceil(job.resources.mem_gb * MIB_PER_GB)}M")
    elif cluster.mem_gb is not None:
        # A profile is written for whole jobs: srun would wait for ever for more than there is.
        mem_mib = math.ceil(cluster.mem_gb * MIB_PER_GB)
        most_mib = mem_mib if has_gb is None else round(has_gb * MIB_PER_GB, 3) // 1
        options.append(f"--mem={int(min(mem_mib, most_mib))}M")
    elif has_gb is not None:
        share = min(cpus_per_node(job, cluster) / min(allocation.cpus), 1.0)
        if mem_mib := int(round(has_gb * MIB_PER_GB * share, 3)):
            options.append(f"--mem={mem_mib}M")
    if allocation.gpus_per_node:
        wants = job.launch.device != "cpu"
        options.append(f"--gres=gpu:{job.resources.gpus}" if wants else "--gres=none")
    limit_min = time_limit_min(job, cluster)
    if limit_min is not None:  # a longer one than the allocation's ends with the allocation
        options.append(f"--time={slurm_time(limit_min)}")
    return options


def _count_gpus(words: str) -> int:
    """Count gres:gpu:a100:2,gres:gpu as Slurm 22 says it, or gres/gpu:a100:2,gres/gpu:1 as 24."""
    parts = [re.split("[:/=]", word.removeprefix("gres")) for word in words.split(",")]
    numbers = [one[-1] for one in parts if one[:2] == ["", "gpu"]]
    return sum(int(number) if number.isdecimal() else 1 for number in numbers)


def _gpus_of_shell(environment: Mapping[str, str]) -> int:
    """Return GPUs per node as salloc and srun tell their commands (man salloc, OUTPUT ENVIRONMENT
    VARIABLES): a number, or one by type such as a100:2, and the indices of this node's."""
    words = environment.get("SLURM_GPUS_PER_NODE") or environment.get("SLURM_GPUS_ON_NODE") or ""
    if words:
        return sum(int(number) for number in re.findall(r"(\d+)(?=,|$|\()", words))
    return len([index for index in environment.get("SLURM_JOB_GPUS", "").split(",") if index])
