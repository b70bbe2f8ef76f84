"""What a queue allows, as bqueues tells: a job that could never start is found before it waits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.base.text import nearest_first
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.lsf.answers import (
    Host,
    Queue,
    parse_default_queues,
    parse_hosts_table,
    parse_max_array_size,
    parse_queue_states,
    parse_queues,
)
from hpcdist.schedulers.lsf.calling import call_lsf
from hpcdist.schedulers.resources import cpus_per_node, time_limit_min

_TIMEOUT_S = 5.0
_DEFAULT_QUEUE = "LSB_DEFAULTQUEUE"
"""Set by the user: the queue, or queues, of jobs that name none."""
_OTHER = "name another queue with --partition"


def ask_queue(name: str | None) -> Queue | None:
    """The queue of that name, or the one of jobs that name none; None where bqueues does not tell,
    or there are several to choose from: then bsub will tell.

    Raises JobError where LSF has no queue of that name.
    """
    chosen = name or next(iter(os.environ.get(_DEFAULT_QUEUE, "").split()), None)
    said = _ask("bqueues", "-l", *([chosen] if chosen else []))
    found = [queue for queue in parse_queues(said) if queue.name == chosen or not chosen]
    if chosen and not found and "no such queue" in said.lower():
        raise unknown_queue(chosen, list(parse_queue_states(_ask("bqueues"))), is_asked=bool(name))
    wanted = found if chosen else _defaults(found)
    return wanted[0] if len(wanted) == 1 else None


def ask_hosts() -> list[Host]:
    """All hosts of the cluster; empty where bhosts does not answer."""
    return parse_hosts_table(_ask("bhosts", "-w"))


def max_array_size() -> int:
    """MAX_JOB_ARRAY_SIZE, the highest index that an array may have; LSF's default where bparams
    does not answer: then bsub will tell."""
    return parse_max_array_size(_ask("bparams", "-a"))


def unknown_queue(name: str, known: Sequence[str], *, is_asked: bool) -> JobError:
    """The error for a queue that LSF does not have; `is_asked`: by the profile or --partition."""
    where = f"partition is {name}" if is_asked else f"{_DEFAULT_QUEUE} is {name}"
    listed = ", ".join(nearest_first(name, known))
    return JobError(
        f"{where}, and LSF has no queue of that name",
        hint=f"queues are: {listed}" if listed else f"{_OTHER}; bqueues lists them",
    )


def check_queue(
    job: JobSpec, cluster: ClusterProfile, queue: Queue | None, hosts: Sequence[Host] = ()
) -> None:
    """Raise JobError for what the queue can never give; what is not known is left to bsub."""
    if queue is not None:
        _check_open(queue)
        _check_run_limit(job, cluster, queue)
        _check_slots(job, cluster, queue)
    if hosts and "-nnodes" not in cluster.lsf.options:
        _check_host(job, cluster, hosts)


def _check_open(queue: Queue) -> None:
    if not queue.is_open:
        raise JobError(f"queue {queue.name} is closed: it takes no jobs", hint=_OTHER)


def _check_run_limit(job: JobSpec, cluster: ClusterProfile, queue: Queue) -> None:
    """A limit that is not counted as a clock does is left to bsub: it knows the hosts' speeds."""
    limit_min, allowed_min = time_limit_min(job, cluster), queue.run_limit_min
    if queue.run_limit_of is not None:
        return
    if limit_min is not None and allowed_min is not None and limit_min > allowed_min:
        raise JobError(
            f"resources.time_limit_min is {limit_min:g}, but queue {queue.name} allows "
            f"{allowed_min:g} minutes",
            hint=f"set --time {allowed_min:g} or less, or {_OTHER}",
        )


def _check_slots(job: JobSpec, cluster: ClusterProfile, queue: Queue) -> None:
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


def _check_host(job: JobSpec, cluster: ClusterProfile, hosts: Sequence[Host]) -> None:
    """Against all hosts of the cluster: LSF's lists do not say which serve the queue."""
    wanted, gpus = cpus_per_node(job, cluster), job.resources.gpus
    known = [host.slots for host in hosts if host.slots is not None]
    if len(known) < len(hosts):
        return
    if wanted <= max(known):
        _check_number(job, wanted, known)
        return
    if wanted == gpus:  # one slot per rank, the least there is
        raise JobError(
            f"resources.gpus is {gpus} per node, but LSF's hosts have {max(known)} slots at most",
            hint="ask for fewer with --gpus",
        )
    raise JobError(
        f"resources.cpus_per_gpu is {wanted // gpus}, with {gpus} ranks {wanted} slots per node, "
        f"but LSF's hosts have {max(known)} at most",
        hint="ask for fewer CPUs (the job's resources.cpus_per_gpu, or the profile's), or for "
        "fewer ranks with --gpus",
    )


def _defaults(queues: Sequence[Queue]) -> list[Queue]:
    """The default ones: not every engine marks them in the list."""
    marked = [queue for queue in queues if queue.is_default]
    if marked or not queues:
        return marked
    names = parse_default_queues(_ask("bparams"))
    return [queue for queue in queues if queue.name in names]


def _check_number(job: JobSpec, wanted: int, slots: Sequence[int]) -> None:
    fitting = sum(number >= wanted for number in slots)
    if job.resources.nodes > fitting:
        counted = "1 host" if fitting == 1 else f"{fitting} hosts"
        raise JobError(
            f"resources.nodes is {job.resources.nodes}, but LSF has {counted} with the {wanted} "
            "slots that a node needs",
            hint="ask for fewer with --nodes, or for fewer CPUs per node",
        )


def _ask(*argv: str) -> str:
    """All that a command says; nothing where it does not answer in time."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = call_lsf(argv, timeout_s=_TIMEOUT_S)
    except SchedulerError:
        return ""
    return f"{done.stdout}\n{done.stderr}"
