"""What a partition has, as sinfo tells: a job that could never start is found before it waits."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

import msgspec

from hpcdist.base.errors import JobError, SchedulerError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.check import parse_minutes
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import run_command
from hpcdist.schedulers.resources import asks_for_gpus, cpus_per_node, time_limit_min

_TIMEOUT_S = 5.0
_FORMAT = "%P|%D|%c|%G|%l"
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:(,]+))?:(\d+)(?=\(|,|$)")


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are alike."""

    partition: str
    is_default: bool
    num_nodes: int
    cpus: int
    """Per node, at least."""
    gpus: dict[str, int]
    """GPUs per node by type; an empty name where the site gives none."""
    limit_min: float | None
    """Longest time limit in minutes; None: there is none."""


def ask_capacity() -> list[NodeGroup]:
    """The partitions' nodes; empty where sinfo does not answer: then sbatch will tell."""
    if shutil.which("sinfo") is None:
        return []
    try:
        done = run_command(["sinfo", "--noheader", f"--format={_FORMAT}"], timeout_s=_TIMEOUT_S)
    except SchedulerError:
        return []
    return parse_capacity(done.stdout)


def parse_capacity(text: str) -> list[NodeGroup]:
    """The lines of `sinfo --format=%P|%D|%c|%G|%l`."""
    rows = (line.split("|") for line in text.splitlines())
    return [
        NodeGroup(
            partition=row[0].rstrip("*"),
            is_default=row[0].endswith("*"),
            num_nodes=int(row[1]),
            cpus=int(row[2].rstrip("+")),
            gpus=parse_gpus(row[3]),
            limit_min=_limit_min(row[4]),
        )
        for row in rows
        if len(row) == 5 and row[1].isdecimal() and row[2].rstrip("+").isdecimal()
    ]


def parse_gpus(gres: str) -> dict[str, int]:
    """GPUs by type in sinfo's words: gpu:a100:4(S:0-1),gpu:2, or (null)."""
    found: dict[str, int] = {}
    for kind, number in _GPUS.findall(gres):
        found[kind] = found.get(kind, 0) + int(number)
    return found


def _limit_min(text: str) -> float | None:
    """A limit in sinfo's words in minutes; None where it is infinite, or not to be understood."""
    try:
        return parse_minutes(text, origin="sinfo")
    except UserError:
        return None


def check_capacity(job: JobSpec, cluster: ClusterProfile, groups: Sequence[NodeGroup]) -> None:
    """Raise JobError for what the partition can never give; an unknown one is left to sbatch."""
    theirs = _partition(cluster, groups)
    if not theirs:
        return
    name = theirs[0].partition
    _check_nodes(job, name, theirs)
    _check_cpus(job, cluster, name, theirs)
    if asks_for_gpus(job, cluster):
        _check_gpus(job, cluster, name, theirs)
    limit_min, allowed_min = time_limit_min(job, cluster), theirs[0].limit_min
    if limit_min is not None and allowed_min is not None and limit_min > allowed_min:
        raise JobError(
            f"resources.time_limit_min is {limit_min:g}, but partition {name} allows "
            f"{allowed_min:g} minutes",
            hint=f"set --time {allowed_min:g} or less, or name another partition with --partition",
        )


def _partition(cluster: ClusterProfile, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    if cluster.partition is None:
        return [group for group in groups if group.is_default]
    return [group for group in groups if group.partition == cluster.partition]


def _check_nodes(job: JobSpec, name: str, groups: Sequence[NodeGroup]) -> None:
    nodes, number = job.resources.nodes, sum(group.num_nodes for group in groups)
    if nodes > number:
        raise JobError(
            f"resources.nodes is {nodes}, but partition {name} has {number}",
            hint="ask for fewer with --nodes, or name another partition with --partition",
        )


def _check_cpus(
    job: JobSpec, cluster: ClusterProfile, name: str, groups: Sequence[NodeGroup]
) -> None:
    wanted, most = cpus_per_node(job, cluster), max(group.cpus for group in groups)
    if wanted <= most:
        return
    gpus = job.resources.gpus
    if wanted == gpus:  # one CPU per rank, the least there is
        raise JobError(
            f"resources.gpus is {gpus} per node, but the nodes of partition {name} have {most} "
            "CPUs at most",
            hint="ask for fewer with --gpus, or name another partition with --partition",
        )
    raise JobError(
        f"resources.cpus_per_gpu is {wanted // gpus}, with {gpus} ranks {wanted} CPUs per node, "
        f"but the nodes of partition {name} have {most} at most",
        hint="ask for fewer CPUs (the job's resources.cpus_per_gpu, or the profile's), or for "
        "fewer ranks with --gpus",
    )


def _check_gpus(
    job: JobSpec, cluster: ClusterProfile, name: str, groups: Sequence[NodeGroup]
) -> None:
    nodes, gpus = job.resources.nodes, job.resources.gpus
    counts = [(_usable_gpus(group, cluster.gpu_type), group.num_nodes) for group in groups]
    fitting = sum(number for found, number in counts if found >= gpus)
    if fitting >= nodes:
        return
    most = max(found for found, _ in counts)
    kind = f"{cluster.gpu_type} GPUs" if cluster.gpu_type else "GPUs"
    if most == 0:
        raise JobError(
            f"resources.gpus is {gpus}, but the nodes of partition {name} have no {kind}",
            hint="name another partition with --partition, or run on CPUs: --set launch.device=cpu",
        )
    raise JobError(
        f"resources.gpus is {gpus} on {nodes} nodes, but partition {name} has {fitting} nodes "
        f"with {gpus} {kind} or more; the most is {most} per node",
        hint="ask for fewer with --gpus and --nodes, or name another partition with --partition",
    )


def _usable_gpus(group: NodeGroup, kind: str | None) -> int:
    return sum(group.gpus.values()) if kind is None else group.gpus.get(kind, 0)
