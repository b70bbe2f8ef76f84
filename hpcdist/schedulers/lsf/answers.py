"""What bqueues, bhosts and bparams print, read; pure.

The formats are those of the command reference of IBM Spectrum LSF 10.1.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

DEFAULT_MAX_ARRAY_SIZE = 1000
"""MAX_JOB_ARRAY_SIZE of lsb.params, where a site sets nothing."""

_QUEUE = re.compile(r"^QUEUE:\s*(\S+)\s*$", re.MULTILINE)
_SECTION = re.compile(r"^(?:[A-Z][A-Z ]+:|SCHEDULING PARAMETERS)")
_MAX_ARRAY_SIZE = re.compile(r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)")
_DEFAULT_QUEUES = re.compile(r"^\s*Default Queues:[ \t]*(\S.*)$", re.MULTILINE)
_IS_DEFAULT = "This is the default queue"


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as `bqueues -l` tells of it."""

    name: str
    is_default: bool = False
    is_open: bool = True
    """It takes jobs."""
    is_active: bool = True
    """It starts jobs."""
    run_limit_min: float | None = None
    """The longest that a job may ask for; None: no limit."""
    default_run_limit_min: float | None = None
    """Of a job that asks for none; None: as run_limit_min."""
    run_limit_of: str | None = None
    """Host or model by whose speed the limits are counted; None: as a clock shows them."""
    min_slots: int | None = None
    """The least that a job may ask for, over all hosts."""
    default_slots: int | None = None
    max_slots: int | None = None
    """The most that a job may ask for, over all hosts."""
    users: str | None = None
    """Who may use it, in LSF's words; None: it does not say."""
    hosts: str | None = None
    """Its hosts and host groups, in LSF's words; None: it does not say."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `bhosts -w`."""

    name: str
    status: str
    """ok, closed_Full, unavail and others."""
    slots: int | None
    """At most; None: no limit."""

    @property
    def is_up(self) -> bool:
        """Whether it runs jobs, or would when others have ended."""
        return self.status.startswith(("ok", "closed"))


def parse_queues(text: str) -> list[Queue]:
    """The queues of `bqueues -l`, one or all."""
    _, *parts = _QUEUE.split(text)
    return [_queue(name, rest) for name, rest in zip(parts[::2], parts[1::2], strict=True)]


def parse_queue_states(text: str) -> dict[str, str]:
    """Status by name from the table of `bqueues`: QUEUE_NAME PRIO STATUS ..."""
    lines = (line.split() for line in text.splitlines())
    return {line[0]: line[2] for line in lines if len(line) > 2 and ":" in line[2]}


def parse_hosts_table(text: str) -> list[Host]:
    """The lines of `bhosts -w`: HOST_NAME STATUS JL/U MAX ..."""
    lines = (line.split() for line in text.splitlines())
    return [
        Host(name=line[0], status=line[1], slots=int(line[3]) if line[3].isdigit() else None)
        for line in lines
        if len(line) > 3 and line[0] != "HOST_NAME" and (line[3].isdigit() or line[3] == "-")
    ]


def parse_default_queues(text: str) -> list[str]:
    """`Default Queues:  normal interactive`, as bparams says."""
    found = _DEFAULT_QUEUES.search(text)
    return found[1].split() if found else []


def parse_max_array_size(text: str) -> int:
    """The highest index of an array, from `bparams -a`; LSF's default where it does not say."""
    found = _MAX_ARRAY_SIZE.search(text)
    return int(found[1]) if found else DEFAULT_MAX_ARRAY_SIZE


def _queue(name: str, text: str) -> Queue:
    lines = text.splitlines()
    status = _status(lines)
    defaults, limits = dict(_limits(lines, "DEFAULT")), dict(_limits(lines, "MAXIMUM"))
    slots = _numbers(limits.get("TASKLIMIT") or limits.get("PROCLIMIT") or "")
    return Queue(
        name=name,
        is_default=_IS_DEFAULT in " ".join(text.split()),
        is_open=status.startswith("Open"),
        is_active=not status.partition(":")[2].startswith("Inact"),
        run_limit_min=_minutes(limits.get("RUNLIMIT", "")),
        default_run_limit_min=_minutes(defaults.get("RUNLIMIT", "")),
        run_limit_of=limits.get("RUNLIMIT", "").partition(" of ")[2].strip() or None,
        min_slots=slots[0] if len(slots) > 1 else None,
        default_slots=slots[1] if len(slots) > 2 else None,
        max_slots=slots[-1] if slots else None,
        users=_value(lines, "USERS:"),
        hosts=_value(lines, "HOSTS:"),
    )


def _status(lines: Sequence[str]) -> str:
    """Open:Active, from the line under PRIO NICE STATUS."""
    for head, line in itertools.pairwise(lines):
        if head.split()[:3] == ["PRIO", "NICE", "STATUS"] and len(line.split()) > 2:
            return line.split()[2]
    return "Open:Active"  # what is not told is left to bsub


def _limits(lines: Sequence[str], kind: str) -> Iterator[tuple[str, str]]:
    """Limits by name of one section: names in a line, and their values in the next, each under its
    name. Where a queue has no default limits, the maximum ones have no title."""
    is_inside = kind == "MAXIMUM"
    for head, line in itertools.pairwise([*lines, ""]):
        if _SECTION.match(head):
            is_inside = head.startswith(f"{kind} LIMITS:")
        elif is_inside and head.split() and all(word.endswith("LIMIT") for word in head.split()):
            starts = [found.start() for found in re.finditer(r"\S+", head)]
            ends = [*starts[1:], len(line) + 1]
            for name, start, end in zip(head.split(), [0, *starts[1:]], ends, strict=True):
                yield name, line[start:end].strip()


def _minutes(text: str) -> float | None:
    """1440.0 min, or 20.0 min of hostA: of a host of that speed."""
    found = re.match(r"(\d+(?:\.\d+)?) min", text)
    return float(found[1]) if found else None


def _numbers(text: str) -> list[int]:
    """The one, two or three of TASKLIMIT: the least, the default, the most."""
    return [int(word) for word in text.split()] if re.fullmatch(r"[\d\s]+", text) else []


def _value(lines: Sequence[str], key: str) -> str | None:
    return next((line[len(key) :].strip() or None for line in lines if line.startswith(key)), None)
