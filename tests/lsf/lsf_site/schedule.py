"""Which hosts a job gets, or why none."""

from collections import Counter
from dataclasses import dataclass, field

from lsf_site.jobs import Place


@dataclass(kw_only=True)
class Free:
    """What a host has left."""

    host: str
    slots: int
    gpus: list = field(default_factory=list)


def free_hosts(config, jobs, down):
    """The hosts that are up, with what the jobs on them leave."""
    found = {
        host: Free(
            host=host,
            slots=config.slots,
            gpus=list(range(config.gpus)),
        )
        for host in config.hosts
        if host not in down
    }
    for job in jobs:
        for place in job.places if job.has_started else ():
            if free := found.get(place.host):
                free.slots -= place.slots
                free.gpus = [gpu for gpu in free.gpus if gpu not in place.gpus]
    return list(found.values())


def place(request, free):
    """(places, "") or (None, the reason)."""
    allowed = [one for one in free if one.host not in request.excluded_hosts]
    if request.wanted_hosts:
        allowed = [one for one in allowed if one.host in request.wanted_hosts]
        allowed.sort(key=lambda one: request.wanted_hosts.index(one.host))
    why = Counter()
    fitting = [one for one in allowed if _fits(one, request, why)]
    slots = _spread(request, fitting)
    if slots is None:
        why = why or {"Not enough hosts to meet the job's spanning requirement": len(allowed)}
        return None, "; ".join(f"{reason}: {count} hosts" for reason, count in sorted(why.items()))
    return [
        Place(
            host=one.host,
            slots=number,
            gpus=tuple(one.gpus[: request.gpus]),
        )
        for one, number in slots
    ], ""


_SLOTS = "Job slot limit reached"


def _fits(one, request, why):
    if one.slots < min(request.per_host or 1, request.slots):
        why[_SLOTS] += 1
    elif len(one.gpus) < request.gpus:
        why["Not enough GPUs on the hosts"] += 1
    else:
        return True
    return False


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
