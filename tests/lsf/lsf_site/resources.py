"""What a job asks for: -n, -R, -gpu, -W, -M and -J, read as bsub reads them."""

import re
from dataclasses import dataclass, field, replace

from lsf_site.errors import not_submitted

_SECTION = re.compile(r"(select|order|rusage|span|same|cu|affinity)\s*\[([^\]]*)\]")
_EXCLUDED = re.compile(r"\bhname\s*!=\s*([\w.-]+)")
_SELECTION = re.compile(r"[\w.\-+*/()<>=!&|:\s]*")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTkmgt][Bb]?)?")
_UNITS_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_RESOURCES = frozenset(
    {"mem", "swp", "tmp", "ngpus_excl_p", "ngpus_physical", "ngpus_shared", "duration", "decay"}
)
_GPU_KEYS = frozenset(
    {"num", "mode", "mps", "j_exclusive", "aff", "block", "gpack", "gmodel", "gmem", "gtile"}
    | {"gvendor", "glink", "gi_slice", "mig", "nvlink"}
)
_ARRAY = re.compile(r"(?P<name>[^\[\]]*)\[(?P<indices>[\d,:\-\s]+)\](?:%(?P<limit>\d+))?")
NAME_LIMIT = 300


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a job needs of the hosts."""

    slots: int = 1
    hosts: int | None = None
    """span[hosts=1] or -nnodes."""
    per_host: int | None = None
    """span[ptile]."""
    memory_mb: float = 0
    gpus: int = 0
    """Of each host."""
    wanted_hosts: tuple = ()
    """-m; empty: any."""
    excluded_hosts: tuple = ()
    """select[hname!=...]."""
    exclusive: bool = False
    text: str = ""
    """-R as it was given."""
    gpu_text: str = ""


def read_request(values, queue, config):
    """Of the options of a submission."""
    request = Request(slots=_slots(values.get("n"), queue), exclusive="x" in values)
    if "nnodes" in values:
        hosts = _whole(values["nnodes"], "nnodes")
        request = replace(request, hosts=hosts, slots=hosts * config.slots, per_host=config.slots)
    request = _with_resources(request, " ".join(values.get("R", ())), config)
    if "gpu" in values:
        request = replace(
            request, gpus=_gpus(values["gpu"], request), gpu_text=values["gpu"] or "num=1"
        )
    if request.gpus > config.gpus and config.refuses_impossible_gpus:
        raise not_submitted("GPU requirement cannot be satisfied by any host")
    if hosts := tuple(values.get("m", "").split()):
        names = tuple(host.split("+")[0].rstrip("!") for host in hosts)
        if unknown := [name for name in names if name not in config.hosts]:
            raise not_submitted(f"{unknown[0]}: Bad host name, host group name or cluster name")
        request = replace(request, wanted_hosts=names)
    return request


def _slots(text, queue):
    if text is None:
        return 1
    least = _whole(text.split(",")[0], "n")
    if queue.task_limit is not None and least > queue.task_limit:
        raise not_submitted("Too many processors requested")
    return least


def _whole(text, option):
    if not text.isdigit() or int(text) < 1:
        raise not_submitted(f"{text}: Bad argument for option -{option}")
    return int(text)


_BAD = "Bad resource requirement syntax"


def _with_resources(request, text, config):
    sections = _SECTION.findall(text)
    if not _SELECTION.fullmatch(_SECTION.sub("", text)):
        raise not_submitted(_BAD)
    for name, inner in sections:
        if name == "span":
            request = replace(request, **_span(inner))
        elif name == "rusage":
            request = replace(request, **_rusage(inner, request, config))
        elif name == "select":
            request = replace(request, excluded_hosts=tuple(_EXCLUDED.findall(inner)))
    return replace(request, text=text)


def _span(inner):
    key, _, value = inner.replace(" ", "").partition("=")
    if key == "hosts" and value == "1":
        return {"hosts": 1}
    if key == "hosts" and value == "-1":
        return {}
    if key == "ptile" and value.isdigit() and int(value):
        return {"per_host": int(value)}
    raise not_submitted(_BAD)


def _rusage(inner, request, config):
    found = {}
    for part in filter(None, re.split(r"[,:]", inner.replace(" ", ""))):
        key, _, value = part.partition("=")
        if key not in _RESOURCES or not value:
            raise not_submitted(_BAD)
        if key == "mem":
            found["memory_mb"] = memory_mb(value, config)
        elif key.startswith("ngpus"):
            if not value.isdigit():
                raise not_submitted(_BAD)
            found["gpus"] = int(value)
    return found


def memory_mb(text, config):
    """With or without a unit, as the site is configured."""
    match = _MEMORY.fullmatch(text)
    if not match or (match[2] and not config.memory_suffixes):
        raise not_submitted(_BAD)
    unit = (match[2] or config.memory_unit)[0].upper()
    return float(match[1]) * _UNITS_MB[unit]


def _gpus(text, request):
    if text == "-":
        return 1
    found = {}
    for part in text.split(":"):
        key, _, value = part.partition("=")
        if key not in _GPU_KEYS or not value:
            raise not_submitted(f"{text}: Bad GPU resource requirement")
        found[key] = value
    count, _, per = found.get("num", "1").partition("/")
    if not count.isdigit() or int(count) < 1 or per not in ("", "host", "task"):
        raise not_submitted(f"{text}: Bad GPU resource requirement")
    tasks = request.per_host or request.slots
    return int(count) * (tasks if per == "task" else 1)


def read_run_limit_min(text, queue):
    """-W; the queue's limit where nothing is said."""
    if text is None:
        return queue.default_run_limit_min or queue.run_limit_min
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(?:/[\w.]+)?", text)
    if not match:
        raise not_submitted(f"{text}: Bad RUNLIMIT specification")
    minutes = int(match[1] or 0) * 60 + int(match[2])
    if queue.run_limit_min is not None and minutes > queue.run_limit_min:
        raise not_submitted("RUNLIMIT: Cannot exceed queue's hard limit(s)")
    return minutes


@dataclass(frozen=True, kw_only=True)
class Name:
    """-J: a job's name, and the elements of an array."""

    name: str = ""
    indices: tuple = field(default=())
    limit: int | None = None
    """How many elements may run at once."""


def read_name(text):
    if len(text) > NAME_LIMIT:
        raise not_submitted("Bad job name")
    if "[" not in text:
        return Name(name=text)
    match = _ARRAY.fullmatch(text)
    if not match:
        raise not_submitted(f"{text}: Bad job name")
    indices = []
    for part in match["indices"].replace(" ", "").split(","):
        indices += _range(part, text)
    limit = match["limit"]
    return Name(name=match["name"], indices=tuple(indices), limit=int(limit) if limit else None)


def _range(part, text):
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
    if not match or int(match[1]) < 1:
        raise not_submitted(f"{text}: Bad job array index list")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise not_submitted(f"{text}: Bad job array index list")
    return range(first, last + 1, int(match[3] or 1))
