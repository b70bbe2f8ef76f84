"""The arithmetic behind bsub's options, in lines that people can check by hand. Pure."""

from __future__ import annotations

import re

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.requirement import fill
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.lsf.request import Request, further_directives, request_of
from hpcdist.schedulers.resources import (
    asks_for_gpus,
    counted,
    limit_line,
    mem_gb_per_node,
    no_gpus_line,
    no_memory_line,
    product,
    ranks_and_cpus,
    source,
)

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_UNITS = {"KB": "KB", "MB": "MB", "GB": "GB", "suffix": "MB"}


def explanation(job: JobSpec, cluster: ClusterProfile) -> list[str]:
    """Return slots, memory, GPUs and the run limit, and where each number comes from.

    Raises ProfileError, as the request does.
    """
    request = request_of(job, cluster)
    limit = None if request.limit is None else f"-W {request.limit}"
    return [
        _slots(job, cluster, request),
        _memory(job, cluster, request),
        _gpus(job, cluster, request),
        *_required(cluster, request),
        limit_line(job, cluster, limit),
    ]


def _slots(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    size = product(request.nodes, request.slots_per_node, what="slot")
    asked = f"-n {request.slots}"
    if request.nodes > 1:
        asked += f", span[ptile={request.slots_per_node}]"
    elif request.slots > 1:
        asked += ", span[hosts=1]"
    return f"slots: {size} ({ranks_and_cpus(job, cluster)}): {asked}"


def _memory(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    if request.mem is None:
        return no_memory_line()
    per = cluster.lsf.mem_per
    shares = {"slot": request.slots, "host": request.nodes, "job": 1}
    asked = f"rusage[mem={request.mem}]"
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return (
            f"memory {request.mem} per {per} (the profile's directives; lsf.mem_per: {per}): "
            f"{asked}; {_times(request.mem, shares[per])} in all"
        )
    where = source(job.resources.mem_gb, cluster.mem_gb)
    return (
        f"memory {mem_gb:g} GB per node (mem_gb, {where}){_shared(cluster, request)}: {asked}; "
        f"{mem_gb * request.nodes:g} GB in all"
    )


def _shared(cluster: ClusterProfile, request: Request) -> str:
    lsf = cluster.lsf
    number = (request.mem or "").removesuffix("MB")
    unit = _UNITS[lsf.mem_unit]
    if lsf.mem_per == "slot":
        sign = f" / {counted(request.slots_per_node, 'slot')}"
    elif lsf.mem_per == "job":
        sign = f" x {counted(request.nodes, 'node')}"
    else:
        sign = ""
    bare = "" if lsf.mem_unit == "suffix" else f", lsf.mem_unit: {lsf.mem_unit}"
    return f"{sign} = {number} {unit} per {lsf.mem_per} (lsf.mem_per: {lsf.mem_per}{bare})"


def _times(amount: str, number: int) -> str:
    """Return 40 GB for 5GB times 8; what is no plain amount stays a product."""
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        return f"{number} x {amount}"
    return f"{float(match[1]) * number:g} {match[2]}".rstrip()


def _gpus(job: JobSpec, cluster: ClusterProfile, request: Request) -> str:
    if not asks_for_gpus(job, cluster):
        return no_gpus_line(job)
    size = product(request.nodes, job.resources.gpus, what="GPU")
    if request.gpu is not None:
        return f'GPUs: {size} (lsf.gpu, counted per host): -gpu "{request.gpu}"'
    template = cluster.lsf.gpu_rusage
    if template is None:
        return f"GPUs: {size}; not asked for, for lsf.gpu is null: the queue must give them"
    asked = fill(template, gpus=job.resources.gpus)
    return f"GPUs: {size} (lsf.gpu_rusage): rusage[{asked}]"


def _required(cluster: ClusterProfile, request: Request) -> list[str]:
    """Return the one string, where the profile has put more into it than memory and GPUs."""
    words = ["constraint"] if cluster.constraint is not None else []
    if further_directives(cluster) != cluster.directives:
        words.append("the profile's directives")
    if not words:
        return []
    return [f'in one string, with {" and ".join(words)}: -R "{request.requirement}"']
