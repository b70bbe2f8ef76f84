"""Nodes in Slurm's words: its lists of them, and those on which srun could start nothing. It stands
by itself, for every agent that srun has started imports it."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hpcdist.base import files

_MOST = 100_000
"""Nodes; a larger list is damaged."""
_MOST_BYTES = 16_000_000
_PART = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_LAUNCH_FAILED = re.compile(rb"^srun: error: (task (\d+) launch failed: .+)\n", re.MULTILINE)


def expand_nodes(text: str) -> list[str]:
    """`n[01-03,7],m1` -> n01, n02, n03, n7, m1; what is no list of nodes gives none."""
    if text.strip() in {"", "None assigned", "(null)", "Unknown"}:
        return []
    parts = (
        [list(_expand_ranges(ranges)) if ranges else [plain] for ranges, plain in pieces]
        for pieces in map(_PIECE.findall, _PART.findall(text.strip()))
    )
    names = ("".join(name) for pieces in parts for name in itertools.product(*pieces))
    return list(itertools.islice(names, _MOST))


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


def launch_failures(log: Path, begin: int) -> Iterator[tuple[int, str, str]]:
    """Yield node and host of each task that srun could not launch, and what it said; it has as many
    tasks as nodes. `begin` is the length of the log when srun began."""
    try:
        with files.open_regular(str(log), most_bytes=math.inf) as file:
            file.seek(begin)
            text = file.read(_MOST_BYTES)
    except OSError:
        return
    hosts = step_hosts()
    for words, task in _LAUNCH_FAILED.findall(text):
        said = f"srun said: {words.decode(errors='replace')}"
        if "could not connect IO" in said:
            said += (
                f"; srun says this where the node cannot write {log.parent} (read-only, full, or "
                "not mounted there) or cannot reach the job's first node"
            )
        yield int(task), hosts.get(int(task), "unknown"), said
