"""Finding out what a Slurm site offers: from the texts of sinfo, scontrol and sacctmgr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.check import parse_minutes
from hpcdist.schedulers.slurm.capacity import parse_gpus

_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l|%a")
"""Partition, nodes, CPUs, memory in MiB, gres, time limit, availability; one line for all nodes
of a partition that are alike."""

_GB_PER_MIB = 2**20 / 1e9
_NO_LIMIT = {"infinite", "unlimited", "n/a"}


class _Nodes(Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are alike: a line of sinfo."""

    partition: str
    is_default: bool
    count: int
    cpus: int
    mem_gb: float
    gpus: dict[str, int]
    """GPUs per node by type; "" for those without a type."""
    time_limit_min: float | None


def detect_slurm(user: str) -> Site:
    """Ask Slurm; raises SchedulerError where it does not answer."""
    partitions = parse_sinfo(ask(*_SINFO))
    accounts, notes = _accounts(user)
    return Site(
        scheduler="slurm",
        gpu_request="gpus-per-node"
        if has_gpus_per_node(ask("scontrol", "show", "config"))
        else "gres",
        partitions=tuple(partitions),
        accounts=accounts,
        notes=notes,
    )


def parse_sinfo(text: str) -> list[Partition]:
    """The partitions that are up, in sinfo's order."""
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == 6]
    nodes = [_nodes(fields) for fields in lines if fields[6] == "up" and int(fields[1]) > 0]
    names = list(dict.fromkeys(found.partition for found in nodes))
    nodes.sort(key=lambda found: names.index(found.partition))
    return [_partition(list(group)) for _, group in groupby(nodes, lambda found: found.partition)]


def parse_accounts(text: str) -> tuple[str, ...]:
    """The accounts of `sacctmgr --parsable2 show assoc format=account`, each once."""
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def has_gpus_per_node(config: str) -> bool:
    """Whether `scontrol show config` tells of the one plugin that knows --gpus-per-node."""
    return re.search(r"^SelectType\s*=\s*select/cons_tres\s*$", config, re.MULTILINE) is not None


def _accounts(user: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """And a note where the site does not tell: many have no accounts."""
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc")
    try:
        return parse_accounts(ask(*command, f"user={user}", "format=account")), ()
    except SchedulerError as error:
        return (), (f"your accounts are not known: {error.message}",)


def _nodes(fields: Sequence[str]) -> _Nodes:
    partition, count, cpus, mem_mib, gres, time_limit, _ = fields
    return _Nodes(
        partition=partition.removesuffix("*"),
        is_default=partition.endswith("*"),
        count=int(count),
        cpus=_leading_number(cpus),
        mem_gb=_leading_number(mem_mib) * _GB_PER_MIB,
        gpus=parse_gpus(gres),
        time_limit_min=(
            None if time_limit in _NO_LIMIT else parse_minutes(time_limit, origin="sinfo: limit")
        ),
    )


def _leading_number(text: str) -> int:
    """64, or the 64 of 64+, which says that some nodes have more."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def _partition(nodes: Sequence[_Nodes]) -> Partition:
    with_gpus = [found for found in nodes if found.gpus]
    counted = with_gpus or nodes
    return Partition(
        name=nodes[0].partition,
        is_default=nodes[0].is_default,
        num_nodes=sum(found.count for found in counted),
        cpus=min(found.cpus for found in counted),
        mem_gb=min(found.mem_gb for found in counted),
        gpus=min((sum(found.gpus.values()) for found in with_gpus), default=0),
        gpu_types=_types(with_gpus),
        time_limit_min=nodes[0].time_limit_min,
    )


def _types(nodes: Iterable[_Nodes]) -> tuple[str, ...]:
    """None where some GPUs have no type: a request with a type would leave them out."""
    types = list(dict.fromkeys(kind for found in nodes for kind in found.gpus))
    return () if "" in types else tuple(types)
