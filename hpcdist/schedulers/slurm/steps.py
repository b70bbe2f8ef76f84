"""Runs that are steps of an allocation: what the allocation of a shell (salloc) has, what a step in
it asks for, what state it is in, and ending it.

The allocation is the user's, and stays whatever becomes of the run.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hpcdist.base.errors import JobError, SchedulerError, UserError
from hpcdist.base.polling import poll
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.machine.process import is_alive, works_in
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Allocation, Condition
from hpcdist.schedulers.request import cpus_per_node, time_limit_min
from hpcdist.schedulers.slurm.directives import MIB_PER_GB, slurm_time
from hpcdist.schedulers.slurm.queue import TIMEOUT_S, job_fields, scancel, show_job
from hpcdist.schedulers.steps import check_gpus, conditions_of, signal_script, submission_of

_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_POLL_S = 0.5
_GONE_LIMIT_S = 180.0
_KILL_AFTER_S = 10.0


class SlurmAllocation(Allocation, frozen=True, kw_only=True):
    """Nodes that Slurm has given already."""

    cpus: list[int]
    """CPUs of it by node."""
    gpus_per_node: int = 0
    mem_mib_per_node: float | None = None
    """None where the site does not account for memory."""


def find_allocation(environment: Mapping[str, str]) -> SlurmAllocation | None:
    """Return the allocation of the shell with this environment; None: it is in none.

    Raises UserError where it has ended, SchedulerError where Slurm does not answer.
    """
    job_id = environment.get("SLURM_JOB_ID")
    if not job_id:
        return None
    try:
        said = show_job(job_id)
    except CommandFailedError as error:
        raise _ended(job_id, error.said) from None
    state = job_fields(said).get("JobState", "unknown")
    if state not in {"RUNNING", "SUSPENDED"}:
        raise _ended(job_id, f"its state is {state}")
    return parse_allocation(job_id, said, environment)


def parse_allocation(job_id: str, said: str, environment: Mapping[str, str]) -> SlurmAllocation:
    """Read `scontrol --oneliner show job`, and what salloc and srun set for their commands."""
    fields = job_fields(said)
    tres = fields.get("AllocTRES") or fields.get("TRES", "")
    found = dict(pair.split("=", 1) for pair in tres.split(",") if "=" in pair)
    nodes = re.match(r"\d+", fields.get("NumNodes", ""))
    num_nodes = int(nodes[0]) if nodes else 1
    cpus = [
        int(number)
        for number, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", "")
        )
        for _ in range(int(times or 1))
    ]
    mem = re.fullmatch(r"([\d.]+)([KMGT]?)", found.get("mem", ""))
    # Not every site accounts for the GPUs that were given; then it is known what was asked for.
    per_node, per_job = (_count_gpus(fields.get(f"TresPer{what}", "")) for what in ("Node", "Job"))
    return SlurmAllocation(
        job_id=job_id,
        num_nodes=num_nodes,
        cpus=cpus or [int(found.get("cpu", num_nodes)) // num_nodes] * num_nodes,
        gpus_per_node=(
            int(found.get("gres/gpu", 0)) // num_nodes
            or per_node
            or per_job // num_nodes
            or _gpus_of_shell(environment)
        ),
        mem_mib_per_node=float(mem[1]) * _MIB[mem[2] or "M"] / num_nodes if mem else None,
    )


def check_allocation(job: JobSpec, cluster: ClusterProfile, allocation: SlurmAllocation) -> None:
    """Raise JobError for what the allocation does not have: srun would wait for it, or fail."""
    resources = job.resources
    where = f"allocation {allocation.job_id}"
    if resources.nodes > allocation.num_nodes:
        raise JobError(
            f"resources.nodes is {resources.nodes}, but {where} has {allocation.num_nodes}",
            hint=f"ask for --nodes {allocation.num_nodes} or fewer, or get more with salloc",
        )
    wanted_gb, has_mib = resources.mem_gb, allocation.mem_mib_per_node
    if wanted_gb is not None and has_mib and _mib_of_gb(wanted_gb) > has_mib:
        raise JobError(
            f"resources.mem_gb is {wanted_gb:g}, but {where} has {has_mib / MIB_PER_GB:.3g} GB per "
            "node",
            hint="ask for less, or get more: salloc --mem=N",
        )
    cpus = cpus_per_node(job, cluster)
    fitting = sum(number >= cpus for number in allocation.cpus)
    if fitting < resources.nodes:
        raise JobError(
            f"resources.gpus is {resources.gpus}, which takes {cpus} CPUs on each node, but "
            f"{where} has {', '.join(map(str, sorted(set(allocation.cpus))))} per node",
            hint="ask for fewer with --gpus, or get more: salloc --cpus-per-task=N",
        )
    how_to_get = "get GPUs with salloc --gpus-per-node=N"
    check_gpus(job, allocation.gpus_per_node, where, how_to_get=how_to_get)


def step_options(job: JobSpec, cluster: ClusterProfile, allocation: SlurmAllocation) -> list[str]:
    """Return what srun is told beyond what it is told in a batch job.

    A step that names no memory or GPUs takes all of the allocation's, and no other step can start
    beside it.
    """
    options = ["--exact"]
    mem_mib = _step_memory(job, cluster, allocation)
    if mem_mib is not None:
        options.append(f"--mem={mem_mib}M")
    if allocation.gpus_per_node:
        wants = job.launch.device != "cpu"
        options.append(f"--gres=gpu:{job.resources.gpus}" if wants else "--gres=none")
    limit_min = time_limit_min(job, cluster)
    if limit_min is not None:  # a longer one than the allocation's ends with the allocation
        options.append(f"--time={slurm_time(limit_min)}")
    return options


def _step_memory(job: JobSpec, cluster: ClusterProfile, allocation: SlurmAllocation) -> int | None:
    """Return MiB per node: as the job says, or its profile, else the share of its CPUs.

    A profile is written for whole jobs, and may say more than this allocation has: srun would wait
    for ever.
    """
    has_mib = allocation.mem_mib_per_node
    if job.resources.mem_gb is not None:
        return _mib_of_gb(job.resources.mem_gb)
    if cluster.mem_gb is not None:
        wanted_mib = _mib_of_gb(cluster.mem_gb)
        return min(wanted_mib, math.floor(has_mib)) if has_mib else wanted_mib
    if not has_mib:
        return None
    share = cpus_per_node(job, cluster) / min(allocation.cpus)
    return math.floor(has_mib * min(share, 1.0)) or None


def _mib_of_gb(gigabytes: float) -> int:
    return math.ceil(gigabytes * MIB_PER_GB)


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


def _ended(job_id: str, why: str) -> UserError:
    return UserError(
        f"allocation {job_id}, which SLURM_JOB_ID names, cannot be used: {why}",
        hint="leave its shell with exit, and get another with salloc",
    )


# Runs in an allocation.


def step_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """Return the condition by run id, from the process that runs srun; on other hosts from squeue.

    Raises SchedulerError where squeue is needed and does not answer.
    """
    return conditions_of(
        runs,
        list_running=lambda _: _steps(),
        waits=lambda run: f"its step starts, or waits for room in allocation {run.read_job_id()}",
    )


def cancel_step(run: Run) -> None:
    """End the run's step, and wait until nothing of it is left.

    Raises SchedulerError where Slurm does not answer, or the step does not end.
    """
    kill_s = time.monotonic() + _KILL_AFTER_S
    asked: set[str] = set()

    def end() -> bool | None:
        step, process = _steps().get(run.id), submission_of(run).process
        if step is not None and step not in asked:
            asked.add(step)
            with suppress(CommandFailedError):  # it has ended by itself
                scancel([step])
        elif step is None:
            is_there = process is not None and is_alive(process)
            if process is None or not (is_there and works_in(process.pid, run.path)):
                return True
            # srun waits for room, or has nothing left to wait for.
            is_asked = time.monotonic() < kill_s
            signal_script(process, signal.SIGTERM if is_asked else signal.SIGKILL)
        return None

    if poll(end, interval_s=_POLL_S, limit_s=_GONE_LIMIT_S) is None:
        raise SchedulerError(
            f"step {_steps().get(run.id) or 'of the run'} has not ended within {_GONE_LIMIT_S:g} s",
            hint="its nodes may be down; see: squeue --steps",
        )


def _steps() -> dict[str, str]:
    """Return the running steps of this user: id by name, which for runs is theirs."""
    argv = ["squeue", "--steps", "--me", "--noheader", "--format=%i|%j"]
    lines = run_command(argv, timeout_s=TIMEOUT_S).stdout.splitlines()
    rows = (line.strip().partition("|") for line in lines)
    return {name: step for step, bar, name in rows if bar}
