"""The site: its queues and hosts, as bqueues, bhosts and bparams tell. A job that could never start
is found before it waits; a first hpcdist.yaml.

The formats are those of the command reference of IBM Spectrum LSF 10.1.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import NamedTuple

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.request import check_time_limit, cpus_per_node, try_to_ask

_SECTION = re.compile(r"^(?:[A-Z][A-Z ]+:|SCHEDULING PARAMETERS)")


class Queue(NamedTuple):
    """A queue as `bqueues -l` tells of it; what that does not tell is left to bsub."""

    name: str
    status: str = "Open:Active"
    run_limit_min: float | None = None
    """The longest that a job may ask for; None: no limit, or one by the speed of a host."""
    max_slots: int | None = None
    """The most that a job may ask for, over all hosts."""


# Reading.


def parse_queues(text: str) -> list[Queue]:
    """Return the queues of `bqueues -l`, one or all."""
    _, *parts = re.split(r"^QUEUE:\s*(\S+)\s*$", text, flags=re.MULTILINE)
    return [_queue(name, rest) for name, rest in zip(parts[::2], parts[1::2], strict=True)]


def _queue(name: str, text: str) -> Queue:
    status, limits, is_maximum = "Open:Active", dict[str, str](), True
    # Names stand in a line, and their values in the next, each under its name. Where a queue has no
    # default limits, the maximum ones have no title.
    for head, line in itertools.pairwise([*text.splitlines(), ""]):
        words = head.split()
        if words[:3] == ["PRIO", "NICE", "STATUS"] and len(line.split()) > 2:
            status = line.split()[2]
        elif _SECTION.match(head):
            is_maximum = head.startswith("MAXIMUM LIMITS:")
        elif is_maximum and words and all(word.endswith("LIMIT") for word in words):
            starts = [found.start() for found in re.finditer(r"\S+", head)][1:]
            for limit, start, end in zip(words, [0, *starts], [*starts, None], strict=True):
                limits[limit] = line[start:end].strip()
    # 1440.0 min, or 20.0 min of hostA, which are those of a host of its speed
    run_limit = re.fullmatch(r"(\d+(?:\.\d+)?) min", limits.get("RUNLIMIT", ""))
    # One, two or three numbers: the least, the default, the most.
    sizes = re.findall(r"\d+", limits.get("TASKLIMIT") or limits.get("PROCLIMIT") or "")
    limit_min = float(run_limit[1]) if run_limit else None
    return Queue(name, status, limit_min, int(sizes[-1]) if sizes else None)


def parse_hosts(text: str) -> dict[str, int]:
    """Return the slots of the hosts that are up, from `bhosts -w` (HOST_NAME STATUS JL/U MAX ...);
    0: no limit. A host without slots, as a master may be, runs no jobs."""
    rows = re.findall(r"^(\S+) +(?:ok|closed)\S* +\S+ +([1-9]\d*|-) ", text, re.MULTILINE)
    return {name: 0 if most == "-" else int(most) for name, most in rows}


def parse_bhosts_gpu(text: str) -> Counter[str]:
    """Return the number of GPUs by host, whose name stands in its first line only."""
    found, host = Counter[str](), ""
    for name, _ in re.findall(r"^(\S*) +(\d+) ", text, re.MULTILINE):
        host = name or host
        found[host] += 1
    return found


# Asking, and checking a job against the answers.


def ask_hosts() -> dict[str, int]:
    """Return the slots of all hosts that are up; none where bhosts does not answer."""
    return parse_hosts(try_to_ask("bhosts", "-w"))


def max_array_size() -> int:
    """Return MAX_JOB_ARRAY_SIZE, the highest index that an array may have; LSF's default where a
    site sets nothing, or bparams does not answer: then bsub will tell."""
    found = re.search(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)", try_to_ask("bparams", "-a"))
    return int(found[1]) if found else 1000


def check_queue(job: JobSpec, cluster: ClusterProfile) -> None:
    """Raise JobError for what the queue that is named can never give; what is not known, as of jobs
    that name none, is left to bsub."""
    if cluster.partition is None:
        return
    named, other = f"queue {cluster.partition}", "name another queue with --partition"
    said = try_to_ask("bqueues", "-l", cluster.partition)
    if "no such queue" in said.lower():
        known = [queue.name for queue in parse_queues(try_to_ask("bqueues", "-l"))]
        raise JobError(
            f"partition is {cluster.partition}, and LSF has no queue of that name",
            hint=f"queues are: {', '.join(nearest_first(cluster.partition, known))}",
        )
    nodes, slots = job.resources.nodes, cpus_per_node(job, cluster)
    for queue in parse_queues(said)[:1]:
        if not queue.status.startswith("Open"):
            raise JobError(f"{named} is closed: it takes no jobs", hint=other)
        check_time_limit(job, cluster, queue.run_limit_min, queue=named, other=other)
        if queue.max_slots is not None and nodes * slots > queue.max_slots:
            raise JobError(
                f"resources.nodes is {nodes} with {slots} slots each, {nodes * slots} in all, but "
                f"{named} allows a job {queue.max_slots}",
                hint=f"ask for fewer with --nodes or --gpus, or {other}",
            )


def detect_lsf() -> Site:
    """Ask LSF what it offers; raises SchedulerError where it does not answer."""
    queues = [one for one in parse_queues(ask("bqueues", "-l")) if one.status == "Open:Active"]
    default = re.search(r"^\s*Default Queues:\s*(\S+)", ask("bparams"), re.MULTILINE)
    hosts = parse_hosts(ask("bhosts", "-w"))
    gpus = parse_bhosts_gpu(try_to_ask("bhosts", "-gpu", "-w"))
    theirs = [name for name in hosts if gpus[name]] or [*hosts]
    parameters = try_to_ask("bparams", "-a")
    is_per_host = "=" in parameters and not re.search(
        r"RESOURCE_RESERVE_PER_TASK\s*=\s*[Yy]", parameters
    )
    return Site(
        scheduler="lsf",
        partitions=tuple(
            Partition(
                name=queue.name,
                is_default=default is not None and queue.name == default[1],
                num_nodes=len(theirs),
                cpus=min((hosts[name] for name in theirs), default=0),
                gpus=min((gpus[name] for name in theirs), default=0),
                time_limit_min=queue.run_limit_min,
            )
            for queue in queues
        ),
        partitions_share_nodes=True,  # mostly, and LSF's lists do not say which serve which queue
        options={"mem_per": "host"} if is_per_host else {},
    )
