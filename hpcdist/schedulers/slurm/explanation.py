"""The arithmetic behind sbatch's options, in lines that people can check by hand. Pure."""

from __future__ import annotations

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.resources import (
    asks_for_gpus,
    limit_line,
    mem_gb_per_node,
    no_gpus_line,
    no_memory_line,
    product,
    ranks_and_cpus,
    source,
)
from hpcdist.schedulers.slurm.directives import end_options, resource_options


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """CPUs, memory, GPUs and the time limit, and where each number comes from."""
    resources, end = resource_options(job, cluster), end_options(job, cluster)
    return [
        _cpus(job, cluster, resources),
        _memory(job, cluster, resources),
        _gpus(job, cluster, resources),
        limit_line(job, cluster, _asked(end, "time", "signal") if "time" in end else None),
    ]


_Options = dict[str, str | None]


def _asked(options: _Options, *names: str) -> str:
    return " ".join(f"--{name}={options[name]}" for name in names if name in options)


def _cpus(job: JobSpec, cluster: ClusterProfile, options: _Options) -> str:
    size = product(job.resources.nodes, int(options["cpus-per-task"] or 0), what="CPU")
    asked = _asked(options, "nodes", "ntasks-per-node", "cpus-per-task")
    return f"CPUs: {size} ({ranks_and_cpus(job, cluster)}; one agent per node): {asked}"


def _memory(job: JobSpec, cluster: ClusterProfile, options: _Options) -> str:
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return no_memory_line()
    where = source(job.resources.mem_gb, cluster.mem_gb)
    return (
        f"memory {mem_gb:g} GB per node (mem_gb, {where}): {_asked(options, 'mem')}, for Slurm's M "
        f"is 2**20 bytes; {mem_gb * job.resources.nodes:g} GB in all"
    )


def _gpus(job: JobSpec, cluster: ClusterProfile, options: _Options) -> str:
    if not asks_for_gpus(job, cluster):
        return no_gpus_line(job)
    size = product(job.resources.nodes, job.resources.gpus, what="GPU")
    asked = _asked(options, "gres", "gpus-per-node")
    return f"GPUs: {size} (gpu_request: {cluster.gpu_request}): {asked}"
