"""The site: its queues and nodes, as qstat -Qf, qstat -Bf and pbsnodes tell. A job that PBS would
take and never start is found before it waits."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.base.text import nearest_first, number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import call_command
from hpcdist.schedulers.pbs.qstat import parse_blocks, parse_seconds, parse_size
from hpcdist.schedulers.request import asks_for_gpus, check_cpus, check_time_limit, cpus_per_node

_TIMEOUT_S = 5.0
_DEFAULT_MAX_ARRAY_SIZE = 10_000
_QUEUE = re.compile(r"^Queue: (\S+)")
_SERVER = re.compile(r"^Server: (\S+)")
_NODE = re.compile(r"^(\S+)$")
_OTHER = "name another queue with --partition"
_DOWN = ("down", "offline", "unknown", "stale")


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """An execution or routing queue."""

    name: str
    is_enabled: bool = True
    """It takes jobs."""
    is_started: bool = True
    """It starts jobs."""
    limit_min: float | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A host, as `pbsnodes -av` tells; of several vnodes of it, the sum."""

    name: str
    cpus: int
    gpus: int
    mem_bytes: int
    is_up: bool
    queue: str = ""
    """The only queue that it serves; empty: all."""


def parse_queues(text: str) -> list[Queue]:
    """Return the queues of `qstat -Qf`."""
    return [
        Queue(
            name=name,
            is_enabled=values.get("enabled") != "False",
            is_started=values.get("started") != "False",
            limit_min=_minutes(values.get("resources_max.walltime", "")),
        )
        for name, values in parse_blocks(text, _QUEUE).items()
    ]


def _minutes(text: str) -> float | None:
    seconds = parse_seconds(text)
    return None if seconds is None else seconds / 60


def parse_nodes(text: str) -> list[Node]:
    """Return the hosts of `pbsnodes -av`."""
    indented = re.sub(r"^     (?=\S)", "    ", text, flags=re.MULTILINE)  # five, here
    by_host: dict[str, list[Mapping[str, str]]] = {}
    for name, values in parse_blocks(indented, _NODE).items():
        host = values.get("resources_available.host", name)
        by_host.setdefault(host, []).append(defaultdict(str, values))

    def total(vnodes: list[Mapping[str, str]], what: str) -> int:
        return sum(int(one[f"resources_available.{what}"] or 0) for one in vnodes)

    return [
        Node(
            name=host,
            cpus=total(vnodes, "ncpus"),
            gpus=total(vnodes, "ngpus"),
            mem_bytes=sum(parse_size(one["resources_available.mem"]) or 0 for one in vnodes),
            is_up=not any(word in one["state"] for one in vnodes for word in _DOWN),
            queue=vnodes[0]["queue"],
        )
        for host, vnodes in by_host.items()
    ]


def _ask(*argv: str) -> str:
    """Return what a command says; nothing where it does not answer in time: then qsub will tell."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        return call_command(argv, timeout_s=_TIMEOUT_S).stdout
    except SchedulerError:
        return ""


def ask_queues() -> list[Queue]:
    return parse_queues(_ask("qstat", "-Qf"))


def ask_server() -> dict[str, str]:
    """Return the attributes of the server; none where it does not answer."""
    return next(iter(parse_blocks(_ask("qstat", "-Bf"), _SERVER).values()), {})


def ask_max_array_size() -> int:
    size = ask_server().get("max_array_size", "")
    return int(size) if size.isdecimal() else _DEFAULT_MAX_ARRAY_SIZE


def check_queue(job: JobSpec, cluster: ClusterProfile, queues: Sequence[Queue]) -> None:
    """Raise JobError for what no queue or node can give: PBS takes most of it, and never starts
    it. What is not known is left to qsub."""
    named = cluster.partition
    queue = next((one for one in queues if one.name == named), None)
    if named is not None and queues and queue is None and "@" not in named:
        listed = ", ".join(nearest_first(named, [one.name for one in queues]))
        raise JobError(
            f"partition is {named}, and PBS has no queue of that name",
            hint=f"queues are: {listed}",
        )
    if queue is not None and not queue.is_enabled:
        raise JobError(f"queue {queue.name} is disabled: it takes no jobs", hint=_OTHER)
    if queue is not None:
        check_time_limit(job, cluster, queue.limit_min, queue=f"queue {queue.name}", other=_OTHER)
    if queues:
        _check_nodes(job, cluster, parse_nodes(_ask("pbsnodes", "-av")))


def _check_nodes(job: JobSpec, cluster: ClusterProfile, nodes: Sequence[Node]) -> None:
    if not nodes:
        return
    cpus, wants = cpus_per_node(job, cluster), asks_for_gpus(job, cluster)
    check_cpus(job, cpus, max(node.cpus for node in nodes), nodes="PBS's nodes", what="CPUs")
    gpus = job.resources.gpus if wants else 0
    fitting = sum(node.cpus >= cpus and node.gpus >= gpus for node in nodes)
    if job.resources.nodes > fitting:
        each = f"{number_of(cpus, 'CPU')}" + (f" and {number_of(gpus, 'GPU')}" if gpus else "")
        raise JobError(
            f"resources.nodes is {job.resources.nodes}, but PBS has {number_of(fitting, 'node')} "
            f"with the {each} that each needs",
            hint="ask for fewer with --nodes or --gpus"
            + (
                ", run on CPUs (--set launch.device=cpu), or set gpu_request: none in the profile "
                "where PBS counts GPUs by another name"
                if gpus
                else ""
            ),
        )


def detect_pbs() -> Site:
    """Ask PBS what it offers; raises SchedulerError where it does not answer."""
    queues = [one for one in parse_queues(ask("qstat", "-Qf")) if one.is_enabled and one.is_started]
    default = ask_server().get("default_queue")
    nodes = [node for node in parse_nodes(ask("pbsnodes", "-av")) if node.is_up]
    partitions = []
    for queue in queues:
        serving = [node for node in nodes if node.queue in {"", queue.name}]
        theirs = [node for node in serving if node.gpus] or serving
        partitions.append(
            Partition(
                name=queue.name,
                is_default=queue.name == default,
                num_nodes=len(theirs),
                cpus=min((node.cpus for node in theirs), default=0),
                mem_gb=min((node.mem_bytes for node in theirs), default=0) / 1e9 or None,
                gpus=min((node.gpus for node in theirs), default=0),
                time_limit_min=queue.limit_min,
            )
        )
    return Site(
        scheduler="pbs",
        gpu_request="gpus-per-node",
        partitions=tuple(partitions),
        partitions_share_nodes=not any(node.queue for node in nodes),
    )
