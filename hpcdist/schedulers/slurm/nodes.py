"""Nodes in Slurm's words: its lists of them, and what srun says of those where it starts agents. It
stands by itself, for every agent that srun has started imports it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcdist.base import files

_MOST = 100_000
"""Nodes; a larger list is damaged."""
_MOST_BYTES = 16_000_000
_PART = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_ERROR = re.compile(r"^s(?:run|lurmstepd[^:]*): (?:error|fatal): (.*)", re.MULTILINE)
_LAUNCH_FAILED = re.compile(r"task (\d+) launch failed: ")


def expand_nodes(text: str) -> list[str]:
    """`n[01-03,7],m1` -> n01, n02, n03, n7, m1; what is no list of nodes gives none."""
    if text.strip() in {"", "None assigned", "(null)", "Unknown"}:
        return []
    names = []
    for part in _PART.findall(text.strip()):
        head, bracket, rest = part.partition("[")
        ranges, _, tail = rest.partition("]")
        names += [f"{head}{one}{tail}" for one in (_expand_ranges(ranges) if bracket else [""])]
    return names[:_MOST]


def _expand_ranges(text: str) -> Iterator[str]:
    for one in text.split(","):
        first, _, last = one.partition("-")
        if first.isdecimal() and last.isdecimal() and int(last) - int(first) < _MOST:
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
        else:
            yield one


def step_hosts() -> dict[int, str]:
    """Return the hosts of the nodes on which srun started agents, by node."""
    return dict(enumerate(expand_nodes(os.environ.get("SLURM_STEP_NODELIST", ""))))


def srun_errors(log: Path | None, begin: int) -> list[str]:
    """Return the errors that srun told in a log from this place on, which is the length that the
    log had when srun began; none where it is no file."""
    with suppress(OSError):  # a run must not end without a verdict
        if log is not None:
            with files.open_regular(log, most_bytes=math.inf) as file:
                file.seek(begin)
                lines, _, _ = file.read(_MOST_BYTES).rpartition(b"\n")
                return list(map(str, _ERROR.findall(lines.decode(errors="replace"))))
    return []


def launch_failures(log: Path, begin: int) -> Iterator[tuple[int, str, str]]:
    """Yield node and host of each task that srun could not launch, and what it said; it has as many
    tasks as nodes."""
    hosts = step_hosts()
    for words in srun_errors(log, begin):
        if (failed := _LAUNCH_FAILED.match(words)) is None:
            continue
        said = f"srun said: {words}"
        if "could not connect IO" in said:
            said += (
                f"; srun says this where the node cannot write {log.parent} (read-only, full, or "
                "not mounted there) or cannot reach the job's first node"
            )
        task = int(failed[1])
        yield task, hosts.get(task, "unknown"), said
