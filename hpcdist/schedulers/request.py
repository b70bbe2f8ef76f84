"""A job's request on a cluster, whatever the scheduler's words for it: the resources that the job
and the profile ask for together, what a site can never give, and the script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError, RunDirectoryError
from hpcdist.base.files import shipped_folder
from hpcdist.base.text import number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import LineMeaning, Target

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


def source(of_job: float | None, of_profile: float | None) -> str:
    """Return where a value came from; the job's counts before the profile's."""
    if of_job:
        return "from the job"
    return "from the profile" if of_profile else "by default"


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
    why = "launch.device is cpu" if job.launch.device == "cpu" else "gpu_request is none"
    return f"GPUs: not asked for ({why})"


NO_MEMORY_LINE = "memory: what the site gives, for mem_gb is unset"


# The script.


_CPUS = "resources.cpus_per_gpu|cpus_per_gpu"
LINE_MEANINGS = (
    LineMeaning("# hpcdist: ", "The job's name."),
    LineMeaning("#!", "The shell that executes the script."),
    LineMeaning("set -euo pipefail", "From here on, a command that fails ends the script."),
    LineMeaning("trap - ERR", "The profile's lines end here."),
    LineMeaning(
        "cd ", "The ranks' working directory: where you submit, or the same place in the snapshot."
    ),
    LineMeaning(
        "export OMP_NUM_THREADS=", "CPU threads of each rank: as many as it has CPUs.", [_CPUS]
    ),
    LineMeaning(
        "export HPCDIST_SUBMIT_DIR=", "The directory that you submit from, for the ranks to know."
    ),
    LineMeaning("export PYTHONPATH=", "Your PYTHONPATH, with folders of the snapshot in it."),
    LineMeaning(
        "export SUBMITIT_", "The scheduler, for submitit, by which agents find each other."
    ),
)
"""The meanings of lines in scripts of every scheduler; comments say the rest."""


def check_folder(target: Target, signs: str, taken_for: str) -> None:
    """Raise RunDirectoryError for a path with one of the signs, which are taken for something."""
    sign = next((sign for sign in signs if sign in str(target.folder)), None)
    if sign is not None:
        raise RunDirectoryError(
            f"{target.folder}: the path holds {sign!r}, which {taken_for}",
            hint="name another folder with --runs or HPCDIST_RUNS",
        )


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
