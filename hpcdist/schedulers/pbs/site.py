"""The site: its queues, nodes and server, as qstat -Qf, qstat -Bf and pbsnodes tell, and how texts
of PBS are read. A job that PBS would take and never start is found before it waits."""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.base.text import nearest_first, number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import call_command
from hpcdist.schedulers.request import asks_for_gpus, check_time_limit, cpus_per_node

_TIMEOUT_S = 5.0
_ATTRIBUTE = re.compile(r"^ {4,5}([\w.]+) = (.*)$")
_SIZE = re.compile(r"(\d+)(b|kb|mb|gb|tb)?")
_SHIFTS = {"b": 0, "kb": 10, "mb": 20, "gb": 30, "tb": 40}
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


def parse_time(text: str) -> float | None:
    """Return the Unix time of Sun Nov 22 22:36:56 2026."""
    try:
        return time.mktime(time.strptime(text))
    except (ValueError, OverflowError):
        return None


def parse_seconds(text: str) -> float | None:
    """Return the seconds of 00:01:00."""
    found = re.fullmatch(r"(\d+):(\d{2}):(\d{2})", text)
    return int(found[1]) * 3600.0 + int(found[2]) * 60 + int(found[3]) if found else None


def parse_size(text: str) -> int | None:
    """Return the bytes of 4000mb; PBS counts by 1024."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) << _SHIFTS[found[2] or "b"] if found else None


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
        is_up = not any(word in one["state"] for one in vnodes for word in _DOWN)
        nodes.append(Node(host, cpus, gpus, mem_bytes, is_up))
    return nodes


def limit_min(queue: Mapping[str, str]) -> float | None:
    """Return the longest time limit of a queue."""
    seconds = parse_seconds(queue["resources_max.walltime"])
    return None if seconds is None else seconds / 60


def try_to_ask(*argv: str) -> str:
    """Return what a command says; nothing where it does not answer in time: then qsub will tell."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        return call_command(argv, timeout_s=_TIMEOUT_S).stdout
    except SchedulerError:
        return ""


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
    cpus = cpus_per_node(job, cluster)
    gpus = job.resources.gpus if asks_for_gpus(job, cluster) else 0
    fitting = sum(node.cpus >= cpus and node.gpus >= gpus for node in nodes)
    if nodes and job.resources.nodes > fitting:
        each = number_of(cpus, "CPU") + (f" and {number_of(gpus, 'GPU')}" if gpus else "")
        raise JobError(
            f"resources.nodes is {job.resources.nodes}, but PBS has {number_of(fitting, 'node')} "
            f"with the {each} that each needs",
            hint="ask for fewer with --nodes or --gpus, or set gpu_request: none in the profile "
            "where PBS counts GPUs otherwise",
        )


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
        gpu_request="gpus-per-node",
        partitions=tuple(partitions),
        partitions_share_nodes=True,
    )
