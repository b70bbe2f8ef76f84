"""Finding out what an LSF site offers: from the texts of bqueues, bparams and bhosts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import LsfOptions
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.schedulers.lsf.queues import (
    Host,
    Queue,
    parse_default_queues,
    parse_hosts_table,
    parse_queue_states,
    parse_queues,
)

_GPU_RESOURCES = ("ngpus_excl_p", "ngpus_physical", "ngpus")
"""What older sites count GPUs by, the one to be preferred first."""
_PARAMETER = re.compile(r"^\s*[A-Z_]{4,}\s*=", re.MULTILINE)
_PER_TASK = re.compile(r"RESOURCE_RESERVE_PER_(?:TASK|SLOT)\s*=\s*[Yy]")


def detect_lsf() -> Site:
    """Ask LSF; raises SchedulerError where it does not answer."""
    names = open_queues(ask("bqueues", "-w"))
    default = next(iter(parse_default_queues(ask("bparams"))), None)
    limited = default if default in names else next(iter(names), None)
    hosts = [host for host in parse_hosts_table(ask("bhosts", "-w")) if host.is_up]
    gpus, notes = _gpus()
    return Site(
        scheduler="lsf",
        gpu_request="gpus-per-node",
        partitions=tuple(
            make_queue(
                name,
                is_default=name == default,
                hosts=hosts,
                gpus=gpus,
                # One question, for the queue that is going to be the profile's.
                time_limit_min=run_limit(ask("bqueues", "-l", name)) if name == limited else None,
            )
            for name in names
        ),
        partitions_share_nodes=True,  # mostly, and LSF's lists do not say which serve which queue
        lsf=_options(has_gpu_option=not notes),
        notes=notes,
    )


def open_queues(text: str) -> list[str]:
    """The queues that take and start jobs, from the table of bqueues."""
    return [name for name, state in parse_queue_states(text).items() if state == "Open:Active"]


def run_limit(text: str) -> float | None:
    """The longest run limit of the queue that `bqueues -l` tells of, in minutes."""
    queues: Sequence[Queue] = parse_queues(text)
    return queues[0].run_limit_min if queues else None


def parse_bhosts_gpu(text: str) -> dict[str, list[str]]:
    """Models of the GPUs by host: HOST_NAME ID MODEL ..., the name only in a host's first line."""
    found: dict[str, list[str]] = {}
    host = ""
    for line in text.splitlines()[1:]:
        words = line.split()
        if not line[:1].isspace() and words:
            host, *words = words
        if len(words) > 1 and words[0].isdigit():
            found.setdefault(host, []).append(words[1])
    return found


def make_queue(
    name: str,
    *,
    is_default: bool,
    hosts: Sequence[Host],
    gpus: dict[str, list[str]],
    time_limit_min: float | None,
) -> Partition:
    """A queue of these hosts: LSF's lists do not say which hosts serve which queue."""
    theirs = [host for host in hosts if gpus.get(host.name)] or list(hosts)
    return Partition(
        name=name,
        is_default=is_default,
        num_nodes=len(theirs),
        cpus=min((host.slots or 0 for host in theirs), default=0),
        gpus=min((len(gpus.get(host.name, [])) for host in theirs), default=0),
        time_limit_min=time_limit_min,
    )


def memory_is_per(parameters: str) -> str:
    """What rusage[mem=...] is counted per, from `bparams -a`: per host, unless a site says that it
    is per task (or slot, as older versions call it)."""
    if not _PARAMETER.search(parameters):
        return LsfOptions().mem_per  # nothing is known
    return "slot" if _PER_TASK.search(parameters) else "host"


def gpu_resource(resources: str) -> str | None:
    """The resource that GPUs are counted by, from the table of lsinfo; None: there is none."""
    names = {line.split()[0] for line in resources.splitlines() if line.split()}
    return next((name for name in _GPU_RESOURCES if name in names), None)


def _options(*, has_gpu_option: bool) -> LsfOptions:
    options: dict[str, str | None] = {"mem_per": memory_is_per(_try("bparams", "-a"))}
    resource = None if has_gpu_option else gpu_resource(_try("lsinfo"))
    if resource is not None:
        options |= {"gpu": None, "gpu_rusage": f"{resource}={{gpus}}"}
    return LsfOptions(**options)  # type: ignore[arg-type]


def _try(*command: str) -> str:
    """What a command prints that not every site has; nothing where it does not answer."""
    try:
        return ask(*command)
    except SchedulerError:
        return ""


def _gpus() -> tuple[dict[str, list[str]], tuple[str, ...]]:
    try:
        return parse_bhosts_gpu(ask("bhosts", "-gpu", "-w")), ()
    except SchedulerError as error:  # LSF before 10.1 does not know the option
        return {}, (f"the GPUs of the hosts are not known: {error.message}",)
