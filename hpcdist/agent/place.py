"""The place of an agent in its job, as the scheduler tells it through the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from hpcdist.schedulers.lsf.own_job import HOSTS_VARIABLE, job_hosts


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Which node of its job an agent is."""

    node_rank: int
    num_nodes: int | None = None
    """Nodes of the job; None where the scheduler does not say."""
    host: str
    """What the scheduler calls the node; its host name where it does not say."""
    cpus: int | None = None
    """CPUs that the job has on the node; None where the scheduler does not say."""


def find_place(node_rank: int, environment: Mapping[str, str]) -> JobPlace:
    """The place from Slurm's variables where they are (srun sets them for each task:
    slurm.schedmd.com/srun.html, OUTPUT ENVIRONMENT VARIABLES), from the hosts of an LSF job where
    that is known, else from the host alone."""
    if hosts := job_hosts(environment.get(HOSTS_VARIABLE, "")):
        host = hosts[min(node_rank, len(hosts) - 1)]
        return JobPlace(node_rank=node_rank, num_nodes=len(hosts), host=host.name, cpus=host.slots)
    return JobPlace(
        node_rank=node_rank,
        num_nodes=_number(environment.get("SLURM_STEP_NUM_NODES")),
        host=environment.get("SLURMD_NODENAME") or socket.gethostname(),
        cpus=_number(environment.get("SLURM_CPUS_PER_TASK")),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
