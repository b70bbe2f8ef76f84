"""The site: its queues, nodes and server, as qstat -Qf, qstat -Bf and pbsnodes tell, and how texts
of PBS are read. A job that PBS would take and never start is found before it waits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.request import (
    Nodes,
    check_fit,
    check_time_limit,
    parse_seconds,
    parse_size,
    try_to_ask,
)

_ATTRIBUTE = re.compile(r"^ {4,5}([\w.]+) = (.*)$")
_OTHER = "name another queue with --partition"
_DOWN = ("down", "offline", "unknown", "stale")


class Node(NamedTuple):
    """A host, as `pbsnodes -av` tells; of several vnodes of it, the sum."""

    name: str
    cpus: int
    gpus: int
    mem_bytes: int
    is_up: bool


def parse_blocks(text: str, head: str) -> dict[str, dict[str, str]]:
    """Return the attributes by name of all objects in the text of -f or -av, whose first lines are
    `head` and a name: lines are folded, and go on after a tab. What stands first counts: the value
    of a variable may hold lines of its own. A missing attribute is empty."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if start := re.match(f"{head}(\\S+)$", line):
            current = found.setdefault(start[1], defaultdict(str))
        elif line.startswith("\t") and last in current:
            current[last] += line.strip("\t\n")
        elif attribute := _ATTRIBUTE.match(line):
            last = attribute[1]
            current.setdefault(last, attribute[2])
    return found


def parse_nodes(text: str) -> list[Node]:
    """Return the hosts of `pbsnodes -av`."""
    by_host: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    for name, values in parse_blocks(text, "").items():
        by_host[values["resources_available.host"] or name].append(values)
    nodes = []
    for host, vnodes in by_host.items():
        cpus, gpus, mem_bytes = (
            sum(parse_size(one[f"resources_available.{what}"]) or 0 for one in vnodes)
            for what in ("ncpus", "ngpus", "mem")
        )
        is_down = any(word in one["state"] for one in vnodes for word in _DOWN)
        nodes.append(Node(host, cpus, gpus, mem_bytes, not is_down))
    return nodes


def limit_min(queue: Mapping[str, str]) -> float | None:
    """Return the longest time limit of a queue."""
    seconds = parse_seconds(queue["resources_max.walltime"])
    return None if seconds is None else seconds / 60


def ask_server() -> Mapping[str, str]:
    """Return the attributes of the server; none where it does not answer."""
    found = parse_blocks(try_to_ask("qstat", "-Bf"), "Server: ")
    return next(iter(found.values()), defaultdict(str))


def check_site(job: JobSpec, cluster: ClusterProfile) -> None:
    """Raise JobError for what no queue or node can give: PBS takes most of it, and never starts
    it. What is not known is left to qsub."""
    queues = parse_blocks(try_to_ask("qstat", "-Qf"), "Queue: ")
    named = cluster.partition
    if queues and named in queues:
        if queues[named]["enabled"] == "False":
            raise JobError(f"queue {named} is disabled: it takes no jobs", hint=_OTHER)
        limit = limit_min(queues[named])
        check_time_limit(job, cluster, limit, queue=f"queue {named}", other=_OTHER)
    elif queues and named is not None and "@" not in named:
        raise JobError(
            f"partition is {named}, and PBS has no queue of that name",
            hint=f"queues are: {', '.join(nearest_first(named, list(queues)))}",
        )
    nodes = parse_nodes(try_to_ask("pbsnodes", "-av")) if queues else []
    found = [Nodes(1, node.cpus, node.gpus) for node in nodes]
    hint = "set gpu_request: none in the profile where PBS counts GPUs otherwise"
    if found:
        check_fit(job, cluster, found, where="PBS", hint=hint)


def detect_pbs() -> Site:
    """Ask PBS what it offers; raises SchedulerError where it does not answer."""
    default = ask_server()["default_queue"]
    nodes = [node for node in parse_nodes(ask("pbsnodes", "-av")) if node.is_up]
    nodes = [node for node in nodes if node.gpus] or nodes
    partitions = [
        Partition(
            name=name,
            is_default=name == default,
            num_nodes=len(nodes),
            cpus=min((node.cpus for node in nodes), default=0),
            mem_gb=min((node.mem_bytes for node in nodes), default=0) / 1e9 or None,
            gpus=min((node.gpus for node in nodes), default=0),
            time_limit_min=limit_min(queue),
        )
        for name, queue in parse_blocks(ask("qstat", "-Qf"), "Queue: ").items()
        if "False" not in (queue["enabled"], queue["started"])
    ]
    return Site(
        scheduler="pbs",
        partitions=tuple(partitions),
        partitions_share_nodes=True,
    )
