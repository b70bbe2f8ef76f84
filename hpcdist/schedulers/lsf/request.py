"""What a job asks of LSF, as values: slots, GPUs, memory, the one -R string. Pure.

bsub's options are described at www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub.
"""

from __future__ import annotations

import math

import msgspec

from hpcdist.base.errors import ProfileError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.requirement import (
    fill,
    merge_requirements,
    parse_requirement,
    requirement_of,
    rusage_value,
    write_requirement,
)
from hpcdist.cluster.rules import check_rules
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.resources import (
    asks_for_gpus,
    cpus_per_node,
    mem_gb_per_node,
    time_limit_min,
)

_PER_GB = {"suffix": 1e3, "KB": 1e6, "MB": 1e3, "GB": 1.0}
"""Unit of rusage[mem=...] -> how many are a GB of hpcdist (10**9 bytes).

LSF's own MB may be 2**20 bytes: the job then has up to 5 % more than it asked for (7 % where the
unit is GB), and never less.
"""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What bsub is asked for."""

    nodes: int
    slots_per_node: int
    by_nodes: bool
    """Whole hosts are asked for (-nnodes), not slots."""
    gpu: str | None
    """Value of -gpu."""
    requirement: str
    """Value of -R; empty: nothing is required."""
    own_sections: list[str]
    """The sections of it that hold something of hpcdist's own, not of the profile's directives."""
    mem: str | None
    """What is asked for per slot, host or job, as LSF reads it."""
    limit: str | None
    """Value of -W."""

    @property
    def slots(self) -> int:
        """Over all hosts."""
        return self.nodes * self.slots_per_node


def request_of(job: JobSpec, cluster: ClusterProfile) -> Request:
    """What `job` asks for on `cluster`; ProfileError for what LSF cannot be asked."""
    _check(cluster)
    by_nodes = "-nnodes" in cluster.lsf.options
    own = _requirement(job, cluster, by_nodes=by_nodes)
    merged = merge_requirements([*_from_directives(cluster), own])
    limit_min = time_limit_min(job, cluster)
    return Request(
        nodes=job.resources.nodes,
        slots_per_node=cpus_per_node(job, cluster),
        by_nodes=by_nodes,
        gpu=None if by_nodes else _gpu(job, cluster),
        requirement=write_requirement(merged),
        own_sections=list(own),
        mem=None if by_nodes else rusage_value(merged.get("rusage", ""), "mem"),
        limit=None if limit_min is None else lsf_time(limit_min),
    )


def lsf_time(minutes: float) -> str:
    """A duration as bsub -W reads it: HH:MM, rounded up, and never with seconds."""
    hours, rest = divmod(math.ceil(minutes), 60)
    return f"{hours:02d}:{rest:02d}"


def mem_text(job: JobSpec, cluster: ClusterProfile) -> str | None:
    """The memory for one slot, host or job, as the site means it, rounded up; None: unset."""
    mem_gb = mem_gb_per_node(job, cluster)
    if mem_gb is None:
        return None
    unit = cluster.lsf.mem_unit
    share = {"slot": 1 / cpus_per_node(job, cluster), "host": 1, "job": job.resources.nodes}
    # Without the rounding, the noise of a division would become a unit more.
    number = math.ceil(round(mem_gb * _PER_GB[unit] * share[cluster.lsf.mem_per], 6))
    return f"{number}MB" if unit == "suffix" else str(number)


def further_directives(cluster: ClusterProfile) -> list[str]:
    """The profile's directives without their -R, which is merged with hpcdist's own."""
    return [line for line in cluster.directives if requirement_of(line) is None]


def _check(cluster: ClusterProfile) -> None:
    """A profile for `auto` is checked as Slurm's: here it is known to be for LSF."""
    values = {"scheduler": "lsf", "directives": cluster.directives}
    check_rules(values, lambda _: "the cluster profile")
    if cluster.gpu_request == "gres":
        raise ProfileError(
            "the cluster profile: gpu_request is gres, which is a word of Slurm's",
            hint="for LSF leave it out, or set it to none; lsf.gpu says how GPUs are asked for",
        )
    if cluster.qos is not None:
        raise ProfileError(
            f"the cluster profile: qos is {cluster.qos}, and LSF has none",
            hint="leave qos out; a service class of LSF is a directive: -sla NAME",
        )


def _requirement(job: JobSpec, cluster: ClusterProfile, *, by_nodes: bool) -> dict[str, str]:
    """The sections of our own; where whole hosts are asked for, all that they have is the job's."""
    found: dict[str, str] = {}
    if cluster.constraint is not None:
        found["select"] = _selected(cluster.constraint)
    if by_nodes:
        return found
    slots = cpus_per_node(job, cluster)
    if job.resources.nodes > 1:
        found["span"] = f"ptile={slots}"
    elif slots > 1:
        found["span"] = "hosts=1"
    mem, gpus = mem_text(job, cluster), _gpu_rusage(job, cluster)
    terms = [f"mem={mem}" if mem else None, gpus]
    if usages := [term for term in terms if term]:
        found["rusage"] = ":".join(usages)
    return found


def _selected(constraint: str) -> str:
    if any(sign in constraint for sign in '[]{}"\\'):
        raise ProfileError(
            f"the cluster profile: constraint is {constraint}, which cannot stand in select[...]",
            hint="write what stands between the brackets, such as: gpu32gb && model==XeonE5",
        )
    return constraint


def _from_directives(cluster: ClusterProfile) -> list[dict[str, str]]:
    texts = (requirement_of(line) for line in cluster.directives)
    return [parse_requirement(text) for text in texts if text is not None]


def _gpu(job: JobSpec, cluster: ClusterProfile) -> str | None:
    template = cluster.lsf.gpu
    if not asks_for_gpus(job, cluster):
        return None
    if cluster.lsf.gpu_rusage is not None or template is None:
        if cluster.gpu_type is not None:
            raise _untyped(cluster)
        return None
    text = fill(template, gpus=job.resources.gpus)
    if cluster.gpu_type is None:
        return text
    if "gmodel=" in text:
        raise _untyped(cluster)
    return f"{text}:gmodel={cluster.gpu_type}"


def _untyped(cluster: ClusterProfile) -> ProfileError:
    if cluster.lsf.gpu_rusage is not None:
        where = f"lsf.gpu_rusage ({cluster.lsf.gpu_rusage})"
    else:
        where = f"lsf.gpu ({cluster.lsf.gpu or 'null'})"
    return ProfileError(
        f"the cluster profile: gpu_type is {cluster.gpu_type}, for which {where} has no place",
        hint="gpu_type becomes gmodel= of -gpu: leave gpu_type out, or lsf.gpu without gmodel=; "
        "hosts are chosen with constraint",
    )


def _gpu_rusage(job: JobSpec, cluster: ClusterProfile) -> str | None:
    template = cluster.lsf.gpu_rusage
    if template is None or not asks_for_gpus(job, cluster):
        return None
    return fill(template, gpus=job.resources.gpus)
