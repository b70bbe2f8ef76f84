"""The site: its queues and hosts, as bqueues, bhosts and bparams tell. A job that could never start
is found before it waits.

The formats are those of the command reference of IBM Spectrum LSF 10.1.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.base.text import nearest_first, number_of
from hpcdist.cluster.profile import ClusterProfile, LsfOptions
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.lsf.commands import call_lsf
from hpcdist.schedulers.request import check_cpus, check_time_limit, cpus_per_node

_TIMEOUT_S = 5.0
_DEFAULT_QUEUE = "LSB_DEFAULTQUEUE"
"""Set by the user: the queue, or queues, of jobs that name none."""
_OTHER = "name another queue with --partition"
_DEFAULT_MAX_ARRAY_SIZE = 1000

_QUEUE = re.compile(r"^QUEUE:\s*(\S+)\s*$", re.MULTILINE)
_SECTION = re.compile(r"^(?:[A-Z][A-Z ]+:|SCHEDULING PARAMETERS)")
_MAX_ARRAY_SIZE = re.compile(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)")
_DEFAULT_QUEUES = re.compile(r"^\s*Default Queues:[ \t]*(\S.*)$", re.MULTILINE)
_IS_DEFAULT = "This is the default queue"
_PARAMETER = re.compile(r"^\s*[A-Z_]{4,}\s*=", re.MULTILINE)
_PER_TASK = re.compile(r"RESOURCE_RESERVE_PER_TASK\s*=\s*[Yy]")


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as `bqueues -l` tells of it."""

    name: str
    is_default: bool = False
    is_open: bool = True
    """The queue takes jobs."""
    is_active: bool = True
    """The queue starts jobs."""
    run_limit_min: float | None = None
    """The longest that a job may ask for; None: no limit, or one that is counted by the speed of a
    host, and that bsub alone can judge."""
    min_slots: int | None = None
    """The least that a job may ask for, over all hosts."""
    max_slots: int | None = None
    """The most that a job may ask for, over all hosts."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `bhosts -w`."""

    name: str
    status: str
    """ok, closed_Full, unavail and others."""
    slots: int | None
    """At most; None: no limit."""

    @property
    def is_up(self) -> bool:
        """Return whether it runs jobs, or would when others have ended."""
        return self.status.startswith(("ok", "closed"))


def parse_queues(text: str) -> list[Queue]:
    """Return the queues of `bqueues -l`, one or all."""
    _, *parts = _QUEUE.split(text)
    return [_queue(name, rest) for name, rest in zip(parts[::2], parts[1::2], strict=True)]


def parse_queue_states(text: str) -> dict[str, str]:
    """Return the status by name from the table of `bqueues`: QUEUE_NAME PRIO STATUS ..."""
    lines = (line.split() for line in text.splitlines())
    return {line[0]: line[2] for line in lines if len(line) > 2 and ":" in line[2]}


def parse_hosts_table(text: str) -> list[Host]:
    """Return the lines of `bhosts -w`: HOST_NAME STATUS JL/U MAX ...; a host without slots, as a
    master may be, runs no jobs."""
    lines = (line.split() for line in text.splitlines())
    return [
        Host(name=line[0], status=line[1], slots=int(line[3]) if line[3].isdigit() else None)
        for line in lines
        if len(line) > 3 and line[0] != "HOST_NAME" and re.fullmatch(r"[1-9]\d*|-", line[3])
    ]


def parse_default_queues(text: str) -> list[str]:
    """Return the names of `Default Queues:  normal interactive`, as bparams says."""
    found = _DEFAULT_QUEUES.search(text)
    return found[1].split() if found else []


def _queue(name: str, text: str) -> Queue:
    lines = text.splitlines()
    status = "Open:Active"  # what is not told is left to bsub
    for head, line in itertools.pairwise(lines):
        if head.split()[:3] == ["PRIO", "NICE", "STATUS"] and len(line.split()) > 2:
            status = line.split()[2]
    limits = dict(_limits(lines))
    # 1440.0 min, or 20.0 min of hostA, which are those of a host of its speed
    run_limit = re.fullmatch(r"(\d+(?:\.\d+)?) min", limits.get("RUNLIMIT", ""))
    # One, two or three numbers: the least, the default, the most.
    sizes = (limits.get("TASKLIMIT") or limits.get("PROCLIMIT") or "").split()
    slots = [int(size) for size in sizes if size.isdecimal()]
    return Queue(
        name=name,
        is_default=_IS_DEFAULT in " ".join(text.split()),
        is_open=status.startswith("Open"),
        is_active=not status.partition(":")[2].startswith("Inact"),
        run_limit_min=float(run_limit[1]) if run_limit else None,
        min_slots=slots[0] if len(slots) > 1 else None,
        max_slots=slots[-1] if slots else None,
    )


def _limits(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the maximum limits by name: names in a line, and their values in the next, each under
    its name. Where a queue has no default limits, the maximum ones have no title."""
    is_inside = True
    for head, line in itertools.pairwise([*lines, ""]):
        if _SECTION.match(head):
            is_inside = head.startswith("MAXIMUM LIMITS:")
        elif is_inside and head.split() and all(word.endswith("LIMIT") for word in head.split()):
            starts = [found.start() for found in re.finditer(r"\S+", head)]
            ends = [*starts[1:], len(line) + 1]
            for name, start, end in zip(head.split(), [0, *starts[1:]], ends, strict=True):
                yield name, line[start:end].strip()


# Asking, and checking a job against the answers.


def ask_queue(name: str | None) -> Queue | None:
    """Return the queue of that name, or the one of jobs that name none; None where bqueues does not
    tell, or there are several to choose from: then bsub will tell.

    Raises JobError where LSF has no queue of that name.
    """
    chosen = name or next(iter(os.environ.get(_DEFAULT_QUEUE, "").split()), None)
    said = _ask("bqueues", "-l", *([chosen] if chosen else []))
    found = [queue for queue in parse_queues(said) if queue.name == chosen or not chosen]
    if chosen and not found and "no such queue" in said.lower():
        listed = ", ".join(nearest_first(chosen, list(parse_queue_states(_ask("bqueues")))))
        raise JobError(
            f"{'partition' if name else _DEFAULT_QUEUE} is {chosen}, and LSF has no queue of that "
            "name",
            hint=f"queues are: {listed}" if listed else f"{_OTHER}; bqueues lists them",
        )
    if found and not chosen:
        marked = [queue for queue in found if queue.is_default]
        # Not every version marks them in the list.
        names = () if marked else parse_default_queues(_ask("bparams"))
        found = marked or [queue for queue in found if queue.name in names]
    return found[0] if len(found) == 1 else None


def ask_hosts() -> list[Host]:
    """Return all hosts of the cluster; none where bhosts does not answer."""
    return parse_hosts_table(_ask("bhosts", "-w"))


def max_array_size() -> int:
    """Return MAX_JOB_ARRAY_SIZE, the highest index that an array may have; LSF's default where a
    site sets nothing, or bparams does not answer: then bsub will tell."""
    found = _MAX_ARRAY_SIZE.search(_ask("bparams", "-a"))
    return int(found[1]) if found else _DEFAULT_MAX_ARRAY_SIZE


def check_queue(
    job: JobSpec, cluster: ClusterProfile, queue: Queue | None, hosts: Sequence[Host] = ()
) -> None:
    """Raise JobError for what the queue, or the cluster's hosts, can never give; what is not known
    is left to bsub."""
    if queue is not None:
        _check_limits(job, cluster, queue)
    sizes = [host.slots for host in hosts if host.slots is not None]
    if not hosts or len(sizes) < len(hosts):
        return
    # All hosts of the cluster count: LSF's lists do not say which serve the queue.
    nodes, slots = job.resources.nodes, cpus_per_node(job, cluster)
    check_cpus(job, slots, max(sizes), nodes="LSF's hosts", what="slots")
    fitting = sum(size >= slots for size in sizes)
    if nodes > fitting:
        raise JobError(
            f"resources.nodes is {nodes}, but LSF has {number_of(fitting, 'host')} with the "
            f"{slots} slots that a node needs",
            hint="ask for fewer with --nodes, or for fewer CPUs per node",
        )


def _check_limits(job: JobSpec, cluster: ClusterProfile, queue: Queue) -> None:
    if not queue.is_open:
        raise JobError(f"queue {queue.name} is closed: it takes no jobs", hint=_OTHER)
    limit_min = queue.run_limit_min
    check_time_limit(job, cluster, limit_min, queue=f"queue {queue.name}", other=_OTHER)
    nodes, per_node = job.resources.nodes, cpus_per_node(job, cluster)
    slots = nodes * per_node
    asked = f"resources.nodes is {nodes} with {per_node} slots each, {slots} in all"
    if queue.max_slots is not None and slots > queue.max_slots:
        raise JobError(
            f"{asked}, but queue {queue.name} allows a job {queue.max_slots}",
            hint=f"ask for fewer with --nodes or --gpus, or {_OTHER}",
        )
    if queue.min_slots is not None and slots < queue.min_slots:
        raise JobError(
            f"{asked}, but queue {queue.name} is for jobs with {queue.min_slots} or more",
            hint=f"ask for more with --nodes or --gpus, or {_OTHER}",
        )


def _ask(*argv: str) -> str:
    """Return all that a command says; nothing where it does not answer in time."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = call_lsf(argv, timeout_s=_TIMEOUT_S)
    except SchedulerError:
        return ""
    return f"{done.stdout}\n{done.stderr}"


# A first hpcdist.yaml.


def detect_lsf() -> Site:
    """Ask LSF what it offers; raises SchedulerError where it does not answer."""
    states = parse_queue_states(ask("bqueues", "-w"))
    names = [name for name, state in states.items() if state == "Open:Active"]
    default = next(iter(parse_default_queues(ask("bparams"))), None)
    limited = default if default in names else next(iter(names), None)
    hosts = parse_hosts_table(ask("bhosts", "-w"))
    gpus: dict[str, list[str]] = {}
    notes: tuple[str, ...] = ()
    try:
        gpus = parse_bhosts_gpu(ask("bhosts", "-gpu", "-w"))
    except SchedulerError as error:
        notes = (f"the GPUs of the hosts are not known: {error.message}",)
    if program := missing_launcher(LsfOptions().launcher):
        notes += (
            (
                f"{program}, which starts a job's agents on its other hosts, is not here: if the "
                "hosts lack it too, name another command with lsf.launcher, such as ssh {host} "
                "{command}"
            ),
        )
    # One question, for the queue that is going to be the profile's.
    asked = parse_queues(ask("bqueues", "-l", limited)) if limited else []
    return Site(
        scheduler="lsf",
        gpu_request="gpus-per-node",
        partitions=make_partitions(
            names,
            default,
            hosts=hosts,
            gpus=gpus,
            limits_min={queue.name: queue.run_limit_min for queue in asked},
        ),
        partitions_share_nodes=True,  # mostly, and LSF's lists do not say which serve which queue
        lsf=LsfOptions(mem_per=memory_is_per(_ask("bparams", "-a"))),
        notes=notes,
    )


def missing_launcher(launcher: str) -> str | None:
    """Return the program that starts commands on hosts, where it is not on this machine."""
    program = shlex.split(launcher)[0]
    return program if shutil.which(program) is None else None


def parse_bhosts_gpu(text: str) -> dict[str, list[str]]:
    """Return the models of the GPUs by host, whose name stands in its first line only."""
    found: dict[str, list[str]] = {}
    host = ""
    for line in text.splitlines()[1:]:
        words = line.split()
        if not line[:1].isspace() and words:
            host, *words = words
        if len(words) > 1 and words[0].isdigit():
            found.setdefault(host, []).append(words[1])
    return found


def make_partitions(
    names: Sequence[str],
    default: str | None,
    *,
    hosts: Sequence[Host],
    gpus: Mapping[str, Sequence[str]],
    limits_min: Mapping[str, float | None],
) -> tuple[Partition, ...]:
    """Return queues of these hosts: LSF's lists do not say which hosts serve which queue."""
    up = [host for host in hosts if host.is_up]
    theirs = [host for host in up if gpus.get(host.name)] or up
    return tuple(
        Partition(
            name=name,
            is_default=name == default,
            num_nodes=len(theirs),
            cpus=min((host.slots or 0 for host in theirs), default=0),
            gpus=min((len(gpus.get(host.name, ())) for host in theirs), default=0),
            time_limit_min=limits_min.get(name),
        )
        for name in names
    )


def memory_is_per(parameters: str) -> Literal["slot", "host", "job"]:
    """Return what rusage[mem=...] is counted per, from `bparams -a`: per host, unless a site says
    that it is per task."""
    if not _PARAMETER.search(parameters):
        return LsfOptions().mem_per  # nothing is known
    return "slot" if _PER_TASK.search(parameters) else "host"
