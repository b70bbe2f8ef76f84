"""A cluster profile: how jobs are asked for on one cluster, as a typed and frozen value.

Profiles stand in hpcdist.yaml, of the project or of the user; the line under a field says what the
key means.
"""

from __future__ import annotations

from typing import Literal

from hpcdist.spec import Count, Positive, Section


class ClusterProfile(Section, frozen=True, kw_only=True):
    """One cluster, or one way to use it."""

    scheduler: Literal["auto", "slurm", "lsf", "local"] = "auto"
    """slurm, lsf, local, or auto: the one that answers."""
    partition: str | None = None
    """Partition (Slurm) or queue (LSF); unset: the site's default."""
    account: str | None = None
    """Account, or project, that is charged."""
    qos: str | None = None
    """Quality of service (Slurm)."""
    constraint: str | None = None
    """Features that the nodes must have (Slurm)."""
    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How GPUs are asked for: --gpus-per-node=N, --gres=gpu:N, or none, where nodes have no GPUs or
    are given whole."""
    gpu_type: str | None = None
    """Type of the GPUs, as in --gres=gpu:a100:2; unset: any."""
    cpus_per_gpu: Count | None = None
    """CPUs per rank where the job says nothing; unset: 1."""
    mem_gb: Positive | None = None
    """Memory per node in GB (10**9 bytes) where the job says nothing; unset: the site's default."""
    time_limit_min: Positive | None = None
    """Time limit in minutes where the job says nothing; unset: the site's default."""
    setup: list[str] = []  # noqa: RUF012 - msgspec gives every struct its own
    """Lines of bash that every job runs first: module load, source venv/bin/activate."""
    environment: dict[str, str] = {}  # noqa: RUF012 - msgspec gives every struct its own
    """Environment variables for every job."""
    interface: str | None = None
    """Network interface for gloo and NCCL; unset: the one by which node 0 is reached."""
    directives: list[str] = []  # noqa: RUF012 - msgspec gives every struct its own
    """Further options for the scheduler, such as --exclusive, one per item."""
    python: str | None = None
    """Interpreter that runs the job; unset: the one that submits."""
