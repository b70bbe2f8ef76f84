"""Finding out what an LSF site offers: from the texts of bqueues, bparams and bhosts.

The formats are those of IBM's command reference for LSF 10.1.
"""

from __future__ import annotations

import re

from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.errors import SchedulerError

_RUN_LIMIT = re.compile(r"RUNLIMIT\s+(\d+(?:\.\d+)?) min")
_DEFAULT_QUEUES = re.compile(r"^\s*Default Queues:\s*(.+)$", re.MULTILINE)
_HOST_IS_UP = ("ok", "closed")


def detect_lsf() -> Site:
    """Ask LSF; raises SchedulerError where it does not answer."""
    queues = parse_bqueues(ask("bqueues", "-w"))
    default = parse_default_queue(ask("bparams"))
    limited = default if default in queues else next(iter(queues), None)
    slots = parse_bhosts(ask("bhosts", "-w"))
    gpus, notes = _gpus()
    return Site(
        scheduler="lsf",
        gpu_request="gpus-per-node",
        partitions=tuple(
            make_queue(
                name,
                is_default=name == default,
                slots=slots,
                gpus=gpus,
                # One question, for the queue that is going to be the profile's.
                time_limit_min=(
                    parse_run_limit(ask("bqueues", "-l", name)) if name == limited else None
                ),
            )
            for name in queues
        ),
        notes=notes,
    )


def parse_bqueues(text: str) -> list[str]:
    """The queues that are open and active: QUEUE_NAME PRIO STATUS ..."""
    lines = [line.split() for line in text.splitlines()[1:]]
    return [line[0] for line in lines if len(line) > 2 and line[2] == "Open:Active"]


def parse_default_queue(text: str) -> str | None:
    """The first of `Default Queues:  normal interactive`, as bparams says."""
    match = _DEFAULT_QUEUES.search(text)
    return match[1].split()[0] if match else None


def parse_run_limit(text: str) -> float | None:
    """The longest run limit that `bqueues -l` tells, in minutes; None where there is none.

    A queue may have a default limit and a maximum; the maximum is the longer.
    """
    limits = [float(found) for found in _RUN_LIMIT.findall(text)]
    return max(limits, default=None)


def parse_bhosts(text: str) -> dict[str, int]:
    """Job slots of the hosts that are up: HOST_NAME STATUS JL/U MAX ...; 0 where MAX is `-`."""
    lines = [line.split() for line in text.splitlines()[1:]]
    return {
        line[0]: int(line[3]) if line[3].isdigit() else 0
        for line in lines
        if len(line) > 3 and line[1].startswith(_HOST_IS_UP)
    }


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
    slots: dict[str, int],
    gpus: dict[str, list[str]],
    time_limit_min: float | None,
) -> Partition:
    """A queue of these hosts: LSF's lists do not say which hosts serve which queue."""
    hosts = [host for host in slots if gpus.get(host)] or list(slots)
    return Partition(
        name=name,
        is_default=is_default,
        num_nodes=len(hosts),
        cpus=min((slots[host] for host in hosts), default=0),
        gpus=min((len(gpus.get(host, [])) for host in hosts), default=0),
        time_limit_min=time_limit_min,
    )


def _gpus() -> tuple[dict[str, list[str]], tuple[str, ...]]:
    try:
        return parse_bhosts_gpu(ask("bhosts", "-gpu", "-w")), ()
    except SchedulerError as error:  # LSF before 10.1 does not know the option
        return {}, (f"the GPUs of the hosts are not known: {error.message}",)
