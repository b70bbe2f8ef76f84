"""What a job asks for: -n, -R, -gpu, -W and -J, as far as this site minds it."""

import re
from dataclasses import dataclass, field

from lsf_site.errors import not_submitted

_EXCLUDED = re.compile(r"\bhname\s*!=\s*([\w.-]+)")
_ARRAY = re.compile(r"(?P<name>[^\[\]]*)\[(?P<indices>[\d,:\-\s]+)\](?:%(?P<limit>\d+))?")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a job needs of the hosts."""

    slots: int = 1
    hosts: int | None = None
    """span[hosts=1] or -nnodes."""
    per_host: int | None = None
    """span[ptile]."""
    gpus: int = 0
    """Of each host."""
    wanted_hosts: tuple = ()
    """-m; empty: any."""
    excluded_hosts: tuple = ()
    """select[hname!=...]."""


def read_request(values, queue, config):
    """Of the options of a submission."""
    slots = int(values.get("n", 1))
    if queue.task_limit is not None and slots > queue.task_limit:
        raise not_submitted("Too many processors requested")
    text, gpu_text = " ".join(values.get("R", ())), values.get("gpu", "")
    spans = dict(
        one.replace(" ", "").split("=") for one in re.findall(r"span\s*\[([^\]]*)\]", text)
    )
    per_host = int(spans["ptile"]) if "ptile" in spans else None
    count, _, per = (
        dict(one.split("=") for one in gpu_text.split(":") if one).get("num", "0").partition("/")
    )
    request = Request(
        slots=slots,
        hosts=1 if spans.get("hosts") == "1" else None,
        per_host=per_host,
        gpus=int(count) * ((per_host or slots) if per == "task" else 1),
        wanted_hosts=tuple(values.get("m", "").split()),
        excluded_hosts=tuple(_EXCLUDED.findall(text)),
    )
    if request.gpus > config.gpus:
        raise not_submitted("GPU requirement cannot be satisfied by any host")
    if unknown := [name for name in request.wanted_hosts if name not in config.hosts]:
        raise not_submitted(f"{unknown[0]}: Bad host name, host group name or cluster name")
    return request


def read_run_limit_min(text, queue):
    """-W; the queue's limit where nothing is said."""
    if text is None:
        return queue.default_run_limit_min or queue.run_limit_min
    hours, _, minutes = text.rpartition(":")
    limit_min = int(hours or 0) * 60 + int(minutes)
    if queue.run_limit_min is not None and limit_min > queue.run_limit_min:
        raise not_submitted("RUNLIMIT: Cannot exceed queue's hard limit(s)")
    return limit_min


@dataclass(frozen=True, kw_only=True)
class Name:
    """-J: a job's name, and the elements of an array."""

    name: str = ""
    indices: tuple = field(default=())
    limit: int | None = None
    """How many elements may run at once."""


def read_name(text):
    match = _ARRAY.fullmatch(text)
    if not match:
        return Name(name=text)
    indices = []
    for part in match["indices"].split(","):
        first, _, last = part.partition("-")
        indices += range(int(first), int(last or first) + 1)
    limit = match["limit"]
    return Name(name=match["name"], indices=tuple(indices), limit=int(limit) if limit else None)
