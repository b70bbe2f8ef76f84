"""The request of a job to PBS: the #PBS lines, how they come about, and the script. Pure.

The options are those of the man page qsub. One chunk is one node: `select=2:ncpus=4`, with
`place=scatter`, or PBS puts both on one host.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from hpcdist.base.errors import JobError, ProfileError
from hpcdist.cluster.channels import mail_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.rules import check_rules
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Dependency, LineMeaning, Target
from hpcdist.schedulers.pbs.commands import array_id
from hpcdist.schedulers.request import (
    NO_MEMORY_LINE,
    asks_for_gpus,
    check_folder,
    cpus_per_node,
    limit_line,
    mem_gb_per_node,
    no_gpus_line,
    product,
    ranks_and_cpus,
    render,
    source,
    time_limit_min,
)

INDEX = "^array_index^"
"""Stands for a job's place in the paths of an array."""
_LAUNCHER = "pbs_tmrsh {host} {command}"

_CPUS = "resources.cpus_per_gpu|cpus_per_gpu"
LINE_MEANINGS = (
    LineMeaning("#PBS -N ", "The run's id, by which qstat lists it."),
    LineMeaning("#PBS -q ", "", ["partition"]),
    LineMeaning("#PBS -A ", "", ["account"]),
    LineMeaning(
        "#PBS -l select=",
        "One chunk per node, with GPUs per node x CPUs per GPU as its CPUs; PBS's mb is 2**20 "
        "bytes.",
        ["resources.nodes", "resources.gpus", _CPUS, "resources.mem_gb|mem_gb", "constraint"],
    ),
    LineMeaning("#PBS -l place=scatter", "Each chunk on a host of its own."),
    LineMeaning("#PBS -l walltime=", "Time limit.", ["resources.time_limit_min|time_limit_min"]),
    LineMeaning("#PBS -r ", "", ["launch.requeue"]),
    LineMeaning("#PBS -j ", "PBS keeps the job's output and errors in one file."),
    LineMeaning("#PBS -o ", "PBS's own copy of the output, when the job has ended."),
    LineMeaning("#PBS -J ", "Runs of the sweep that differ in nothing here; %: --max-parallel."),
    LineMeaning("#PBS -W ", "Jobs that must have ended: --after, or --max-parallel."),
    LineMeaning(
        "printf -v HPCDIST_JOB_BEGIN", "When the job began: its time limit counts from then."
    ),
)
"""Lines of the script, and the keys that they come from."""


def directives(job: JobSpec, cluster: ClusterProfile, target: Target) -> list[str]:
    """Return the options of qsub, in a fixed order, each ready to stand behind #PBS.

    Raises ProfileError or JobError for what PBS cannot be asked for.
    """
    _check(cluster)
    report = "0" if target.array_size is None else INDEX
    values = {
        "-N": target.name,
        "-q": cluster.partition,
        "-A": cluster.account,
        "-l": _select(job, cluster),
        "-l ": "place=scatter" if job.resources.nodes > 1 else None,
        "-l  ": _walltime(job, cluster),
        "-r": "y" if job.launch.requeue else "n",
        "-j": "oe",
        "-o": f"{target.submitit_folder}/{report}_pbs.out",
        "-J": _array(target),
        "-W": _depend(target.dependencies),
        "-m": None if (address := mail_of(cluster.notify)) is None else "ae",
        "-M": address,
    }
    own = [f"{key.strip()} {shlex.quote(value)}" for key, value in values.items() if value]
    return [*own, *cluster.directives]


def _check(cluster: ClusterProfile) -> None:
    # Once more, for the directives of a profile for `auto` were checked as Slurm's.
    check_rules(
        {"scheduler": "pbs", "directives": cluster.directives}, lambda _: "the cluster profile"
    )
    if cluster.gpu_request == "gres":
        raise ProfileError(
            "the cluster profile: gpu_request is gres, which is a word of Slurm's",
            hint="for PBS leave it out, which asks for ngpus=N, or set it to none",
        )
    for key, value in (("qos", cluster.qos), ("gpu_type", cluster.gpu_type)):
        if value is not None:
            raise ProfileError(
                f"the cluster profile: {key} is {value}, and PBS has none",
                hint=f"leave {key} out; the site's own resources of a node stand in constraint, "
                "such as gpu_model=a100",
            )


def _select(job: JobSpec, cluster: ClusterProfile) -> str:
    parts = [str(job.resources.nodes), f"ncpus={cpus_per_node(job, cluster)}"]
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is not None:
        parts.append(f"mem={math.ceil(mem_gb * 1e9 / 2**20)}mb")
    if asks_for_gpus(job, cluster):
        parts.append(f"ngpus={job.resources.gpus}")
    if cluster.constraint is not None:
        parts.append(cluster.constraint)
    return f"select={':'.join(parts)}"


def _walltime(job: JobSpec, cluster: ClusterProfile) -> str | None:
    limit_min = time_limit_min(job, cluster)
    if limit_min is None:
        return None
    minutes, seconds = divmod(math.ceil(limit_min * 60), 60)
    return f"walltime={minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def _array(target: Target) -> str | None:
    if target.array_size is None:
        return None
    limit = f"%{target.max_parallel}" if target.max_parallel else ""
    return f"0-{target.array_size - 1}{limit}"


def _depend(dependencies: list[Dependency]) -> str | None:
    """Return what a job waits for. PBS cannot wait for a single job of an array, and takes one as
    ended well in which some have failed."""
    for one in dependencies:
        for job_id in one.job_ids:
            if "[" in job_id and one.kind != "afterany":
                raise JobError(
                    f"PBS cannot tell whether runs of the array {array_id(job_id)} ended well, so "
                    f"--after cannot wait for that ({one.kind})",
                    hint="--after any:... waits for the end of the array",
                )
    terms: dict[str, list[str]] = {}
    for one in dependencies:
        terms.setdefault(one.kind, []).extend(map(array_id, one.job_ids))
    texts = [":".join([kind, *dict.fromkeys(ids)]) for kind, ids in terms.items()]
    return f"depend={','.join(texts)}" if texts else None


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """Return CPUs, memory, GPUs and the time limit, and where each number comes from."""
    resources, mem_gb = job.resources, mem_gb_per_node(job, cluster)
    cpus = product(resources.nodes, cpus_per_node(job, cluster), what="CPU")
    scattered = ", place=scatter: each chunk on a host of its own" if resources.nodes > 1 else ""
    lines = [f"CPUs: {cpus} ({ranks_and_cpus(job, cluster)}): {_select(job, cluster)}{scattered}"]
    if mem_gb is None:
        lines.append(NO_MEMORY_LINE)
    else:
        lines.append(
            f"memory {mem_gb:g} GB per node (mem_gb, {source(resources.mem_gb, cluster.mem_gb)}), "
            f"for PBS's mb is 2**20 bytes; {mem_gb * resources.nodes:g} GB in all"
        )
    if asks_for_gpus(job, cluster):
        gpus = product(resources.nodes, resources.gpus, what="GPU")
        lines.append(f"GPUs: {gpus}: ngpus={resources.gpus} of each chunk")
    else:
        lines.append(no_gpus_line(job))
    walltime = _walltime(job, cluster)
    return [*lines, limit_line(job, cluster, walltime and f"-l {walltime}")]


def job_script(
    job: JobSpec, cluster: ClusterProfile, target: Target, *, environment: Mapping[str, str]
) -> str:
    """Return the script, whose options qsub is given; `environment` are variables that libraries
    read as they are loaded."""
    check_folder(target, ':,^%\\\n"', "PBS takes for a host, or for a pattern")
    return render(
        "pbs.sh.j2",
        job,
        target,
        cluster,
        directives=[] if target.allocation else directives(job, cluster, target),
        environment=environment,
        launcher=_LAUNCHER,
        is_step=target.allocation is not None,
    )
