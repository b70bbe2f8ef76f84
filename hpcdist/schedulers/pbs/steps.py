"""Runs in the job of a shell, as `qsub -I` gives one: what the job has, what state such a run is
in, and ending it.

PBS knows nothing of them: the process that starts their agents is all there is.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdist.base.errors import JobError, SchedulerError, UserError
from hpcdist.base.polling import poll
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.machine.process import is_alive
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Allocation, Condition
from hpcdist.schedulers.pbs.commands import TIMEOUT_S, number_of_job
from hpcdist.schedulers.pbs.hosts import read_nodefile
from hpcdist.schedulers.pbs.qstat import HEAD, ask_jobs, parse_blocks, parse_seconds, parse_time
from hpcdist.schedulers.request import cpus_per_node, time_limit_min
from hpcdist.schedulers.steps import check_gpus, conditions_of, signal_script, submission_of

_CPUS_OF_HOST = re.compile(r"([^/+]+)/\d+(?:\*(\d+))?")
_GPUS = re.compile(r"\bngpus=(\d+)")
_POLL_S = 0.5
_KILL_AFTER_S = 15.0
_GONE_LIMIT_S = 60.0


class PbsAllocation(Allocation, frozen=True, kw_only=True):
    """Hosts that PBS has given already."""

    cpus: list[int]
    """CPUs of it by host."""
    gpus_per_node: int = 0
    left_min: float | None = None
    """Time until PBS ends it; None: there is no limit."""


def find_allocation(environment: Mapping[str, str]) -> PbsAllocation | None:
    """Return the job of the shell with this environment; None: it is in none.

    Raises UserError where it has ended, or this is no host of it; SchedulerError where PBS does
    not answer.
    """
    job_id = environment.get("PBS_JOBID")
    if not job_id:
        return None
    try:
        said = run_command(["qstat", "-f", job_id], timeout_s=TIMEOUT_S).stdout
    except CommandFailedError as error:
        raise _unusable(job_id, error.said) from None
    values = next(iter(parse_blocks(said, HEAD).values()), {})
    state = values.get("job_state", "unknown")
    if state != "R":
        raise _unusable(job_id, f"its state is {state}")
    try:
        hosts = read_nodefile(Path(environment.get("PBS_NODEFILE", "")))
    except OSError as error:
        said = f"PBS_NODEFILE cannot be read: {error.strerror}"
        raise _unusable(job_id, said) from None
    return parse_allocation(job_id, values, hosts, now_s=time.time())


def parse_allocation(
    job_id: str, values: Mapping[str, str], hosts: Sequence[str], *, now_s: float
) -> PbsAllocation:
    """Read a job's attributes; a host of several chunks has the CPUs of all of them."""
    attributes = defaultdict(str, values)
    cpus: Counter[str] = Counter()
    for host, number in _CPUS_OF_HOST.findall(attributes["exec_host"]):
        cpus[host] += int(number or 1)
    # exec_host may have the short names of hosts.
    by_host = [cpus[host] or cpus[host.partition(".")[0]] or 1 for host in hosts]
    gpus = sum(map(int, _GPUS.findall(attributes["exec_vnode"])))
    begin_s = parse_time(attributes["stime"])
    limit_s = parse_seconds(attributes["Resource_List.walltime"])
    left_s = None if limit_s is None or begin_s is None else begin_s + limit_s - now_s
    return PbsAllocation(
        job_id=number_of_job(job_id),
        num_nodes=len(hosts),
        cpus=by_host,
        gpus_per_node=gpus // max(1, len(hosts)),
        left_min=None if left_s is None else max(0.0, left_s) / 60,
    )


def check_allocation(job: JobSpec, cluster: ClusterProfile, allocation: PbsAllocation) -> None:
    """Raise JobError for what the job of the shell does not have."""
    resources, where = job.resources, f"job {allocation.job_id}"
    if resources.nodes > allocation.num_nodes:
        raise JobError(
            f"resources.nodes is {resources.nodes}, but {where} has {allocation.num_nodes}",
            hint=f"ask for --nodes {allocation.num_nodes} or fewer, or get more: qsub -I -l "
            f"select={resources.nodes}:ncpus=N -l place=scatter",
        )
    cpus = cpus_per_node(job, cluster)
    # The first hosts are taken: others may be missing a chunk's CPUs.
    fewest = min(allocation.cpus[: resources.nodes])
    if cpus > fewest:
        raise JobError(
            f"resources.gpus is {resources.gpus}, which takes {cpus} CPUs on each node, but "
            f"{where} has {fewest}",
            hint=f"ask for fewer with --gpus, or get more: qsub -I -l select=N:ncpus={cpus}",
        )
    how_to_get = "get GPUs: qsub -I -l select=N:ngpus=N"
    check_gpus(job, allocation.gpus_per_node, where, how_to_get=how_to_get)


def step_limit_min(
    job: JobSpec, cluster: ClusterProfile, allocation: PbsAllocation
) -> float | None:
    """Return the minutes of the run: what it asks for, and no more than its job has left."""
    limits = (time_limit_min(job, cluster), allocation.left_min)
    return min((one for one in limits if one is not None), default=None)


def _unusable(job_id: str, why: str) -> UserError:
    return UserError(
        f"job {job_id}, which PBS_JOBID names, cannot be used: {why}",
        hint="leave its shell with exit, and get another with qsub -I",
    )


# Runs in such a job.


def step_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """Return the condition by run id, from the process that starts the agents; on other hosts from
    the job that it is in. Raises SchedulerError where PBS is asked and does not answer."""
    return conditions_of(
        runs,
        list_running=_in_running_jobs,
        waits=lambda run: f"its agents start in job {run.read_job_id()}",
    )


def _in_running_jobs(runs: Sequence[Run]) -> set[str]:
    jobs = {run.id: str(run.read_job_id()) for run in runs}
    running = {one.job_id for one in ask_jobs([*jobs.values()]) if one.state == "R"}
    return {name for name, job_id in jobs.items() if job_id in running}


def cancel_step(run: Run) -> None:
    """End the run, and wait until nothing of it is left on this host.

    Raises SchedulerError where it was started on another host, or does not end.
    """
    run.ask_to_cancel()
    process = submission_of(run).process
    if process is None:
        return
    if is_alive(process) is None:
        raise SchedulerError(
            f"run {run.id} runs in job {run.read_job_id()}, and was started on another host",
            hint=f"cancel it there, or end the job with all that runs in it: qdel "
            f"{run.read_job_id()}",
        )
    if is_alive(process):
        signal_script(process, signal.SIGTERM)
    if _has_ended_within(run, _KILL_AFTER_S):
        return
    signal_script(process, signal.SIGKILL)
    if not _has_ended_within(run, _GONE_LIMIT_S):
        raise SchedulerError(
            f"process {process.pid} of run {run.id} has not ended within {_GONE_LIMIT_S:g} s",
            hint="its host may be down",
        )


def _has_ended_within(run: Run, limit_s: float) -> bool:
    process = submission_of(run).process
    assert process is not None
    is_over = poll(lambda: not is_alive(process) or None, interval_s=_POLL_S, limit_s=limit_s)
    return bool(is_over)
