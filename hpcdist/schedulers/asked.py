"""What a job and a cluster profile ask for together, whatever the scheduler's words for it."""

from __future__ import annotations

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec


def cpus_per_node(job: JobSpec, cluster: ClusterProfile) -> int:
    """CPUs for one node's agent and ranks."""
    per_rank = job.resources.cpus_per_gpu or cluster.cpus_per_gpu or 1
    return per_rank * job.resources.gpus


def time_limit_min(job: JobSpec, cluster: ClusterProfile) -> float | None:
    """Minutes until the job is ended; None: as the site has it."""
    return job.resources.time_limit_min or cluster.time_limit_min


def mem_gb_per_node(job: JobSpec, cluster: ClusterProfile) -> float | None:
    """Memory per node in GB (10**9 bytes); None: as the site has it."""
    return job.resources.mem_gb or cluster.mem_gb


def asks_for_gpus(job: JobSpec, cluster: ClusterProfile) -> bool:
    """Whether GPUs are requested."""
    return job.launch.device != "cpu" and cluster.gpu_request != "none"


def source(of_job: float | None, of_profile: float | None) -> str:
    """Where a value came from, for which the job's word counts before the profile's."""
    if of_job:
        return "from the job"
    return "from the profile" if of_profile else "by default"
