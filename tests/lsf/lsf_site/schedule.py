"""Which hosts a job gets, or why none."""

from collections import Counter
from dataclasses import dataclass, field

from lsf_site.jobs import Place


@dataclass(kw_only=True)
class Free:
    """What a host has left."""

    host: str
    slots: int
    memory_mb: float
    gpus: list = field(default_factory=list)
    is_used: bool = False
    is_taken: bool = False
    """By an exclusive job."""


def free_hosts(config, jobs, down):
    """The hosts that are up, with what the jobs on them leave."""
    found = {
        host: Free(
            host=host,
            slots=config.slots,
            memory_mb=config.memory_mb,
            gpus=list(range(config.gpus)),
        )
        for host in config.hosts
        if host not in down
    }
    for job in jobs:
        for place in job.places if job.has_started else ():
            if free := found.get(place.host):
                free.slots -= place.slots
                free.memory_mb -= place.memory_mb
                free.gpus = [gpu for gpu in free.gpus if gpu not in place.gpus]
                free.is_used = True
                free.is_taken |= job.request.exclusive
    return list(found.values())


def place(request, queue, free, config):
    """(places, "") or (None, the reason)."""
    allowed = [one for one in free if not queue.hosts or one.host in queue.hosts]
    allowed = [one for one in allowed if one.host not in request.excluded_hosts]
    if request.wanted_hosts:
        allowed = [one for one in allowed if one.host in request.wanted_hosts]
        allowed.sort(key=lambda one: request.wanted_hosts.index(one.host))
    why = Counter()
    fitting = [one for one in allowed if _fits(one, request, config, why)]
    slots = _spread(request, fitting)
    if slots is None:
        return None, _reason(request, why, fitting)
    return [
        Place(
            host=one.host,
            slots=number,
            gpus=tuple(one.gpus[: request.gpus]),
            memory_mb=_memory(request, number, config),
        )
        for one, number in slots
    ], ""


_SLOTS = "Job slot limit reached"
_GPUS = "Not enough GPUs on the hosts"
_MEMORY = "Job's requirements for reserving resource (mem) not satisfied"
_EXCLUSIVE = "Host is not free for an exclusive job"


def _fits(one, request, config, why):
    least = min(request.per_host or 1, request.slots)
    reason = ""
    if one.is_taken or (request.exclusive and one.is_used):
        reason = _EXCLUSIVE
    elif one.slots < least:
        reason = _SLOTS
    elif len(one.gpus) < request.gpus:
        reason = _GPUS
    elif one.memory_mb < _memory(request, least, config):
        reason = _MEMORY
    if reason:
        why[reason] += 1
    return not reason


def _memory(request, slots, config):
    if config.memory_per == "slot":
        return request.memory_mb * slots
    if config.memory_per == "job":
        return request.memory_mb * slots / request.slots
    return request.memory_mb


def _spread(request, hosts):
    """[(host, slots)], or None."""
    if request.hosts == 1:
        return next(([(one, request.slots)] for one in hosts if one.slots >= request.slots), None)
    left, found = request.slots, []
    for one in hosts:
        number = min(left, request.per_host or one.slots, one.slots)
        if left and number:
            found.append((one, number))
            left -= number
    return None if left else found


def _reason(request, why, fitting):
    if why:
        return "; ".join(f"{reason}: {count} hosts" for reason, count in sorted(why.items()))
    if request.hosts or request.per_host:
        return "Not enough hosts to meet the job's spanning requirement"
    if fitting:
        return f"{_SLOTS}: {len(fitting)} hosts"
    return "There are no suitable hosts for the job"
