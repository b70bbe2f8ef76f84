"""The site: its partitions, as sinfo tells, and its configuration, as scontrol does.

A job that could never start is found before it waits.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from hpcdist.base.errors import JobError, SchedulerError, UserError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.check import parse_minutes
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import run_command
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.resources import asks_for_gpus, cpus_per_node, time_limit_min

DEFAULT_MAX_ARRAY_SIZE = 1001
"""slurm.schedmd.com/slurm.conf.html, MaxArraySize."""

_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l|%a")
"""Partition, nodes, CPUs, memory in MiB, gres, time limit, availability; one line for all nodes
of a partition that are alike."""
_SINFO_TIMEOUT_S = 5.0
_CONFIG_TIMEOUT_S = 10.0
_GPUS = re.compile(r"(?:^|,)gpu(?::([^:(,]+))?:(\d+)(?=\(|,|$)")
_GB_PER_MIB = 2**20 / 1e9


class NodeGroup(Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are alike: a line of sinfo."""

    partition: str
    is_default: bool
    is_up: bool
    num_nodes: int
    cpus: int
    """Per node."""
    mem_gb: float
    """Per node."""
    gpus: dict[str, int]
    """GPUs per node by type; an empty name where the site gives none."""
    limit_min: float | None
    """Longest time limit in minutes; None: there is none."""


def parse_nodes(text: str) -> list[NodeGroup]:
    """Return the lines of sinfo in the form that is asked for."""
    rows = (line.split("|") for line in text.splitlines())
    return [
        NodeGroup(
            partition=row[0].removesuffix("*"),
            is_default=row[0].endswith("*"),
            is_up=row[6] == "up",
            num_nodes=int(row[1]),
            cpus=_leading_number(row[2]),
            mem_gb=_leading_number(row[3]) * _GB_PER_MIB,
            gpus=parse_gpus(row[4]),
            limit_min=_limit_min(row[5]),
        )
        for row in rows
        if len(row) == 7 and row[1].isdecimal()
    ]


def _leading_number(text: str) -> int:
    """Return 64, or the 64 of 64+, which says that some nodes have more."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def parse_gpus(gres: str) -> dict[str, int]:
    """GPUs by type in sinfo's words: gpu:a100:4(S:0-1),gpu:2, or (null)."""
    found: dict[str, int] = {}
    for kind, number in _GPUS.findall(gres):
        found[kind] = found.get(kind, 0) + int(number)
    return found


def _limit_min(text: str) -> float | None:
    """Return a limit in sinfo's words in minutes; None: infinite, or not to be understood."""
    try:
        return parse_minutes(text, origin="sinfo")
    except UserError:
        return None


# Whether a job can ever run.


def ask_nodes() -> list[NodeGroup]:
    """Ask for the partitions' nodes; none where sinfo does not answer: then sbatch will tell."""
    if shutil.which("sinfo") is None:
        return []
    try:
        return parse_nodes(run_command(_SINFO, timeout_s=_SINFO_TIMEOUT_S).stdout)
    except SchedulerError:
        return []


def check_capacity(job: JobSpec, cluster: ClusterProfile, groups: Sequence[NodeGroup]) -> None:
    """Raise JobError for what the partition can never give; an unknown one is left to sbatch."""
    theirs = _asked_for(cluster, groups)
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


def _asked_for(cluster: ClusterProfile, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
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


# A first hpcdist.yaml.


def detect_slurm(user: str) -> Site:
    """Ask Slurm what it offers; raises SchedulerError where it does not answer."""
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
    """Return the partitions that are up, in sinfo's order."""
    nodes = [group for group in parse_nodes(text) if group.is_up and group.num_nodes > 0]
    names = list(dict.fromkeys(group.partition for group in nodes))
    nodes.sort(key=lambda group: names.index(group.partition))
    return [_partition(list(found)) for _, found in groupby(nodes, lambda group: group.partition)]


def parse_accounts(text: str) -> tuple[str, ...]:
    """Return the accounts of `sacctmgr --parsable2 show assoc format=account`, each once."""
    return tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))


def has_gpus_per_node(config: str) -> bool:
    """Return whether `scontrol show config` tells of the plugin that knows --gpus-per-node."""
    return _setting(config, "SelectType") == "select/cons_tres"


def _accounts(user: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the accounts, and a note where the site does not tell: many have none."""
    command = ("sacctmgr", "--noheader", "--parsable2", "show", "assoc")
    try:
        return parse_accounts(ask(*command, f"user={user}", "format=account")), ()
    except SchedulerError as error:
        return (), (f"your accounts are not known: {error.message}",)


def _partition(nodes: Sequence[NodeGroup]) -> Partition:
    with_gpus = [found for found in nodes if found.gpus]
    counted = with_gpus or nodes
    return Partition(
        name=nodes[0].partition,
        is_default=nodes[0].is_default,
        num_nodes=sum(found.num_nodes for found in counted),
        cpus=min(found.cpus for found in counted),
        mem_gb=min(found.mem_gb for found in counted),
        gpus=min((sum(found.gpus.values()) for found in with_gpus), default=0),
        gpu_types=_types(with_gpus),
        time_limit_min=nodes[0].limit_min,
    )


def _types(nodes: Iterable[NodeGroup]) -> tuple[str, ...]:
    """Return no types where some GPUs have none: a request with a type would leave them out."""
    types = list(dict.fromkeys(kind for found in nodes for kind in found.gpus))
    return () if "" in types else tuple(types)


# The configuration.


def ask_config() -> str:
    """Return the lines `Name = value`; nothing where scontrol does not answer."""
    try:
        return run_command(["scontrol", "show", "config"], timeout_s=_CONFIG_TIMEOUT_S).stdout
    except SchedulerError:
        return ""


def _setting(config: str, name: str) -> str | None:
    """Return the value of one name in the lines of `scontrol show config`."""
    found = re.search(rf"^{name}\s*=\s*(\S+)\s*$", config, re.MULTILINE)
    return found[1] if found else None


def parse_max_array_size(config: str) -> int:
    """Return MaxArraySize, the number of indices that an array may have: the highest is one less.

    Where scontrol does not answer, it is Slurm's default: then sbatch will tell.
    """
    value = _setting(config, "MaxArraySize") or ""
    return int(value) if value.isdecimal() else DEFAULT_MAX_ARRAY_SIZE


def parse_cluster(config: str) -> str | None:
    """Return ClusterName."""
    return _setting(config, "ClusterName")


class ClusterQuestion:
    """Asks for the cluster's name in the background, while sbatch makes the caller wait anyway."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        self._name = ask_cluster()

    def answer(self) -> str | None:
        """Return the name; None where scontrol does not tell."""
        self._thread.join()
        return self._name


def ask_cluster() -> str | None:
    """Return the name of the cluster that Slurm's commands talk to; None where it is not known."""
    return parse_cluster(ask_config())


def conditions_elsewhere(runs: Iterable[Run]) -> dict[str, Condition]:
    """Return the condition of the runs that this cluster cannot know: sites with several clusters
    share one home between them. Asks scontrol once, if at all."""
    theirs = {run.id: cluster for run in runs if (cluster := _cluster_of(run)) is not None}
    here = ask_cluster() if theirs else None
    return {
        name: Condition(state="unknown", reason=_reason(cluster, here))
        for name, cluster in theirs.items()
        if cluster != here
    }


def refuse_elsewhere(runs: Iterable[Run]) -> None:
    """Raise SchedulerError for a run that another cluster has: nothing here could end it."""
    for name, condition in conditions_elsewhere(runs).items():
        raise SchedulerError(
            f"run {name} cannot be cancelled here: {condition.reason}",
            hint="cancel it from a login node of its cluster",
        )


def _reason(cluster: str, here: str | None) -> str:
    this = f"this is cluster {here}" if here else "scontrol does not tell which cluster this is"
    return f"it was submitted to cluster {cluster}, and {this}"


def _cluster_of(run: Run) -> str | None:
    return (run.read_submission() or Submission()).cluster
