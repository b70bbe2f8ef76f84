"""A job's request on a cluster, whatever the scheduler's words for it: the resources that the job
and the profile ask for together, what a site can never give, and the script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError
from hpcdist.base.files import shipped_folder
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import Target

if TYPE_CHECKING:
    import jinja2


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


# What a site can never give.


def check_time_limit(
    job: JobSpec, cluster: ClusterProfile, allowed_min: float | None, *, queue: str, other: str
) -> None:
    """Raise JobError for a longer time limit than `queue` allows; `other` is one more advice."""
    limit_min = time_limit_min(job, cluster)
    if limit_min is not None and allowed_min is not None and limit_min > allowed_min:
        raise JobError(
            f"resources.time_limit_min is {limit_min:g}, but {queue} allows {allowed_min:g} "
            "minutes",
            hint=f"set --time {allowed_min:g} or less, or {other}",
        )


# The script.


def render(
    template: str, job: JobSpec, target: Target, cluster: ClusterProfile, **values: Any
) -> str:
    """Fill a template of templates/; a value that is missing is an error.

    `values` are those that are the scheduler's own.
    """
    # One line, and nothing that ends or escapes a comment.
    name = "".join(c if c.isprintable() else " " for c in job.name)
    return _template(template).render(
        job_comment=" ".join(name.split()),
        num_nodes=job.resources.nodes,
        cwd=target.cwd,
        setup=cluster.setup,
        settings=cluster.environment | target.environment,
        python=cluster.python or sys.executable,
        submitit_folder=str(target.submitit_folder),
        own_folders=target.own_folders,
        **values,
    )


@cache  # a sweep renders the same template for every point
def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped_folder("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - the text is bash: values are quoted by the filter `quote`
    )
    environment.filters["quote"] = shlex.quote
    return environment.get_template(name)
