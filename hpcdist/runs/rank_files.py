"""The files of ranks and nodes in a run directory: their names, and how they are listed.

Each has its number in its name, and that of its attempt after restarts:

    events/rank-00007.jsonl                    rank 7, at first
    events/rank-00007.attempt-2.jsonl          the same after two restarts
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcdist.base import files

_NUMBERED = r"-([0-9]{5,9})(?:\.attempt-([0-9]{1,9}))?"
EVENT_FILE = re.compile(rf"rank{_NUMBERED}\.jsonl")
USAGE_FILE = re.compile(rf"node{_NUMBERED}\.jsonl")
TRACE_FILE = re.compile(rf"rank{_NUMBERED}(?:\.profile-[0-9a-f]{{8}})?\.json\.gz")
LOG_FILE = re.compile(rf"rank{_NUMBERED}\.log")
AGENT_LOG = re.compile(rf"agent{_NUMBERED}\.log")


def name_of(stem: str, ending: str, number: int, attempt: int = 0) -> str:
    """Return the name of the file of a rank or node: `rank-00007.attempt-2.jsonl`."""
    of_attempt = f".attempt-{attempt}" if attempt else ""
    return f"{stem}-{number:05d}{of_attempt}{ending}"


def log_place(rank: int, attempt: int) -> str:
    """Return the log of one rank in one attempt, relative to the run directory."""
    return f"logs/{name_of('rank', '.log', rank, attempt)}"


def is_event_file(name: str) -> bool:
    """Return whether a file of this name is of a rank's events, or of a node's."""
    return bool(EVENT_FILE.fullmatch(name) or USAGE_FILE.fullmatch(name))


def is_place(path: str, folder: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a path within the run directory is that of a file of this kind."""
    parent, _, name = path.rpartition("/")
    return parent == folder and bool(pattern.fullmatch(name))


def list_numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, int, Path]]:
    """Return (number, attempt, path) of the files of one kind, sorted; none where the folder cannot
    be read."""
    try:
        names = files.list_names(folder)
    except OSError:
        return []
    base = os.fspath(folder)
    matches = ((pattern.fullmatch(name), name) for name in names)
    return sorted(
        (int(match[1]), int(match[2] or 0), Path(f"{base}/{name}"))
        for match, name in matches
        if match
    )
