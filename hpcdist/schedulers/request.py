"""The resources that a job and a cluster profile ask for together, whatever the scheduler's words
for them."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.text import number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.spec import LaunchPlan, NodePlan


def cpus_per_node(job: JobSpec, cluster: ClusterProfile) -> int:
    """Return the CPUs for one node's agent and ranks."""
    per_rank = job.resources.cpus_per_gpu or cluster.cpus_per_gpu or 1
    return per_rank * job.resources.gpus


def time_limit_min(job: JobSpec, cluster: ClusterProfile) -> float | None:
    """Return the minutes until the job is ended; None: as the site has it."""
    return job.resources.time_limit_min or cluster.time_limit_min


def mem_gb_per_node(job: JobSpec, cluster: ClusterProfile) -> float | None:
    """Return the memory per node in GB (10**9 bytes); None: as the site has it."""
    return job.resources.mem_gb or cluster.mem_gb


def asks_for_gpus(job: JobSpec, cluster: ClusterProfile) -> bool:
    """Return whether GPUs are requested."""
    return job.launch.device != "cpu" and cluster.gpu_request != "none"


def lay_out(
    job: JobSpec,
    cluster: ClusterProfile,
    *,
    warning_signals: Sequence[str],
    limit_min: float | None = None,
) -> LaunchPlan:
    """Lay the ranks out over nodes that are alike, and not known yet."""
    num_threads = cpus_per_node(job, cluster) // job.ranks_per_node
    return LaunchPlan(
        nodes=[NodePlan() for _ in range(job.resources.nodes)],
        device=job.launch.device,
        backend=job.launch.backend,
        num_threads=num_threads,
        environment={"OMP_NUM_THREADS": str(num_threads)},
        interface=cluster.interface,
        warning_signals=list(warning_signals),
        limit_min=limit_min,
    )


def source(of_job: float | None, of_profile: float | None) -> str:
    """Return where a value came from; the job's counts before the profile's."""
    if of_job:
        return "from the job"
    return "from the profile" if of_profile else "by default"


# In lines that people can check by hand.


def product(nodes: int, per_node: int, *, what: str) -> str:
    """Return `2 nodes x 8 slots = 16 slots`; of one node, no multiplication."""
    if nodes == 1:
        return f"1 node with {number_of(per_node, what)}"
    return f"{nodes} nodes x {number_of(per_node, what)} = {number_of(nodes * per_node, what)}"


def ranks_and_cpus(job: JobSpec, cluster: ClusterProfile) -> str:
    """Return why a node has so many CPUs: `2 ranks x cpus_per_gpu 4, from the profile`."""
    number = job.resources.gpus
    per_gpu = cpus_per_node(job, cluster) // number
    noun = "rank" if job.gpus_per_rank == 1 else "GPU"
    where = source(job.resources.cpus_per_gpu, cluster.cpus_per_gpu)
    return f"{number_of(number, noun)} x cpus_per_gpu {per_gpu}, {where}"


def limit_line(job: JobSpec, cluster: ClusterProfile, option: str | None) -> str:
    """Return the time limit, and what happens when it is reached; `option` asks for it."""
    minutes = time_limit_min(job, cluster)
    end = "goes on as another attempt" if job.launch.requeue else "ends with exit code 75"
    then = f"before the job is ended its ranks save a checkpoint, and the run {end}"
    if minutes is None or option is None:
        return f"time limit: the site's, for time_limit_min is unset; {then}"
    where = source(job.resources.time_limit_min, cluster.time_limit_min)
    is_whole = minutes >= 60 and minutes % 60 == 0
    limit = f"{minutes / 60:g} h" if is_whole else f"{minutes:g} min"
    return f"time limit {limit} (time_limit_min, {where}): {option}; {then}"


def no_gpus_line(job: JobSpec) -> str:
    """Return why no GPUs are asked for."""
    why = "launch.device is cpu" if job.launch.device == "cpu" else "gpu_request is none"
    return f"GPUs: not asked for ({why})"


def no_memory_line() -> str:
    """Return why no memory is asked for."""
    return "memory: what the site gives, for mem_gb is unset"
