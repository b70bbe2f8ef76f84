"""How a scheduler was asked for what a job needs, in lines that people can check by hand."""

from __future__ import annotations

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.asked import cpus_per_node, source, time_limit_min


def product(nodes: int, per_node: int, *, what: str) -> str:
    """`2 nodes x 8 slots (...) = 16 slots`, of one node without the multiplication."""
    if nodes == 1:
        return f"1 node with {counted(per_node, what)}"
    return f"{nodes} nodes x {counted(per_node, what)} = {counted(nodes * per_node, what)}"


def counted(number: float, noun: str) -> str:
    """A number with its noun."""
    return f"{number:g} {noun}" if number == 1 else f"{number:g} {noun}s"


def ranks_and_cpus(job: JobSpec, cluster: ClusterProfile) -> str:
    """Why a node has so many CPUs: `2 ranks x cpus_per_gpu 4, from the profile`."""
    number = job.resources.gpus
    per_gpu = cpus_per_node(job, cluster) // number
    noun = "rank" if job.gpus_per_rank == 1 else "GPU"
    where = source(job.resources.cpus_per_gpu, cluster.cpus_per_gpu)
    return f"{counted(number, noun)} x cpus_per_gpu {per_gpu}, {where}"


def limit_line(job: JobSpec, cluster: ClusterProfile, option: str | None) -> str:
    """The time limit, and what happens when it is reached; `option` is how it is asked for."""
    minutes = time_limit_min(job, cluster)
    end = "goes on as another attempt" if job.launch.requeue else "ends with exit code 75"
    then = f"before the job is ended its ranks save a checkpoint, and the run {end}"
    if minutes is None or option is None:
        return f"time limit: the site's, for time_limit_min is unset; {then}"
    where = source(job.resources.time_limit_min, cluster.time_limit_min)
    return f"time limit {in_words(minutes)} (time_limit_min, {where}): {option}; {then}"


def in_words(minutes: float) -> str:
    """Whole hours in hours, else minutes."""
    return f"{minutes / 60:g} h" if minutes >= 60 and minutes % 60 == 0 else f"{minutes:g} min"


def no_gpus_line(job: JobSpec) -> str:
    """Why no GPUs are asked for."""
    why = "launch.device is cpu" if job.launch.device == "cpu" else "gpu_request is none"
    return f"GPUs: not asked for ({why})"


def no_memory_line() -> str:
    """Why no memory is asked for."""
    return "memory: what the site gives, for mem_gb is unset"
