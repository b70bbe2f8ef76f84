"""The layout of ranks over this machine's CPUs and GPUs, and the same in words."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import islice

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import format_ranges, number_of
from hpcdist.job.spec import JobSpec
from hpcdist.machine.cpus import share_cpus, threads_per_rank, usable_cpus
from hpcdist.machine.gpus import Gpu, list_gpus, why_not_used
from hpcdist.machine.memory import free_bytes
from hpcdist.machine.ports import local_addresses, ports_are_free
from hpcdist.runs.spec import LaunchPlan, NodePlan, threads_of_user
from hpcdist.schedulers.request import product

_AGENT_BYTES = 300e6
_RANK_BYTES = 100e6
"""Least memory of an agent with its forkserver, and of a forked rank, before any model or data."""


def lay_out(job: JobSpec, busy_gpus: Collection[str] = ()) -> LaunchPlan:
    """Lay the ranks out over this machine, without the GPUs of these UUIDs.

    Raises JobError where the machine has not enough memory or GPUs, or no free port.
    """
    _check_memory(job.resources.nodes, job.ranks_per_node)
    _check_ports(job)
    gpus = [] if job.launch.device == "cpu" else list_gpus()
    if gpus:
        launch = _on_gpus(job, [gpu for gpu in gpus if gpu.uuid not in busy_gpus])
    else:
        if job.launch.device == "cuda":
            raise JobError(
                "launch.device is cuda, but this machine shows no GPU "
                f"({why_not_used() or 'NVML and the driver of AMD find none'})",
                hint="use launch.device=auto or cpu, or submit to a cluster with GPUs",
            )
        if job.launch.backend == "nccl":
            raise JobError(
                "launch.backend is nccl, which needs GPUs, and this machine shows none",
                hint="use launch.backend=auto or gloo",
            )
        launch = _on_cpus(job)
    return launch


def _on_cpus(job: JobSpec) -> LaunchPlan:
    cpus, num_nodes, per_node = usable_cpus(), job.resources.nodes, job.ranks_per_node
    num_ranks = num_nodes * per_node
    shares = share_cpus(cpus, num_ranks, per_share=job.cpus_per_rank)
    num_threads = threads_of_user(os.environ) or threads_per_rank(
        len(cpus), num_ranks, cpus_per_rank=job.cpus_per_rank
    )
    return LaunchPlan(
        nodes=[
            NodePlan(address=address, rank_cpus=shares[node * per_node : (node + 1) * per_node])
            for node, address in enumerate(islice(local_addresses(), num_nodes))
        ],
        device="cpu",
        backend="gloo",
        num_threads=num_threads,
        environment={"OMP_NUM_THREADS": str(num_threads)},
        warning_signals=["SIGUSR2"],
        enforces_limits=True,
        interface="lo",
    )


def _on_gpus(job: JobSpec, gpus: Sequence[Gpu]) -> LaunchPlan:
    on_cpus = _on_cpus(job)
    per_node = job.resources.gpus
    if job.gpus_per_rank != 1:  # a rank that can drive several takes what there is
        per_node = min(per_node, max(sum(gpu.is_idle for gpu in gpus), 1))
    chosen = choose_gpus(gpus, job.resources.nodes * per_node)
    nodes = [
        msgspec.structs.replace(
            node, gpus=[gpu.uuid for gpu in chosen[index * per_node : (index + 1) * per_node]]
        )
        for index, node in enumerate(on_cpus.nodes)
    ]
    backend = "nccl" if job.launch.backend == "auto" else job.launch.backend
    return msgspec.structs.replace(on_cpus, nodes=nodes, device="cuda", backend=backend)


def choose_gpus(gpus: Sequence[Gpu], number: int) -> list[Gpu]:
    """Return so many idle GPUs; busy ones are never taken.

    Raises JobError that says what is free and who holds the rest.
    """
    idle = [gpu for gpu in gpus if gpu.is_idle]
    if len(idle) >= number:
        return idle[:number]
    busy = "; ".join(
        f"GPU {gpu.index} ({gpu.name}): {gpu.used_bytes / 1e9:.1f} of {gpu.total_bytes / 1e9:.1f} "
        f"GB in use by {', '.join(gpu.holders) or 'a process that cannot be seen from here'}"
        for gpu in gpus
        if not gpu.is_idle
    )
    free = ", ".join(f"GPU {gpu.index}" for gpu in idle) or "none"
    raise JobError(
        f"{number} GPUs are asked for (nodes x gpus), {len(idle)} of {len(gpus)} are idle: {free}"
        + (f"; in use: {busy}" if busy else ""),
        hint="ask for fewer with --nodes and --gpus, or run on the CPUs: --set launch.device=cpu",
    )


def notes(job: JobSpec, launch: LaunchPlan) -> list[str]:
    """Return what the user should know of a layout on the CPUs."""
    if launch.device == "cuda":
        return []
    why = "as launch.device says"
    if job.launch.device != "cpu":
        why = why_not_used() or "no GPU here"
    ranks = number_of(job.num_ranks, "rank")
    threads = launch.num_threads
    each = "1 thread" if threads == 1 else f"up to {threads} threads"
    return [f"{why}: {ranks} on {len(usable_cpus())} CPUs, {each} each, with gloo"]


def _check_memory(nodes: int, ranks_per_node: int) -> None:
    needed = nodes * _AGENT_BYTES + nodes * ranks_per_node * _RANK_BYTES
    available = free_bytes()
    if needed > available:
        raise JobError(
            f"{nodes} nodes x {ranks_per_node} gpus are {nodes * ranks_per_node} ranks on this "
            f"machine: they need at least {needed / 1e9:.0f} GB of memory, "
            f"{available / 1e9:.0f} GB are free",
            hint="ask for fewer with --nodes and --gpus",
        )


def _check_ports(job: JobSpec) -> None:
    needed = 1 if job.resources.nodes == 1 else 2  # the ranks' store; where the agents meet
    port_range = job.launch.port_range
    if port_range and port_range[0] > port_range[1]:
        raise JobError(
            f"launch.port_range is {port_range[0]} to {port_range[1]}: the first port comes after "
            "the last",
            hint=f"write it as [{port_range[1]},{port_range[0]}]",
        )
    if not ports_are_free(next(local_addresses()), port_range, needed):
        chosen = f"{port_range[0]} to {port_range[1]}" if port_range else "not set"
        raise JobError(
            f"launch.port_range is {chosen}: fewer than {number_of(needed, 'port')} of it are free "
            "on this machine",
            hint="name a wider range, such as --set launch.port_range=[20000,29999]",
        )


# In lines that people can check by hand.


def explain(job: JobSpec, launch: LaunchPlan) -> list[str]:
    """Return the ranks, and the CPUs and GPUs that each gets."""
    size = product(job.resources.nodes, job.ranks_per_node, what="rank")
    threads = launch.num_threads
    each = f", {number_of(threads, 'thread')} each (OMP_NUM_THREADS)" if threads else ""
    return [
        f"ranks: {size}, on {launch.device} with {launch.backend}{each}",
        *(f"node {number}: {_share(node)}" for number, node in enumerate(launch.nodes)),
    ]


def _share(node: NodePlan) -> str:
    shares = [f"CPUs {format_ranges(sorted(cpus))}" for cpus in node.rank_cpus or []]
    if node.gpus:
        num_ranks = len(shares) or len(node.gpus)
        each = max(1, len(node.gpus) // num_ranks)
        shares = [
            " and ".join([*node.gpus[rank * each : (rank + 1) * each], *shares[rank : rank + 1]])
            for rank in range(num_ranks)
        ]
    text = "; ".join(f"rank {rank}: {share}" for rank, share in enumerate(shares))
    return f"{node.address}; {text}" if node.address else text
