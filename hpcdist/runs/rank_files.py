"""Where the files of ranks and nodes lie in a run directory, and how they are listed.

Each has its number in its name, and that of its attempt after restarts:

    events/rank-00007.jsonl                    rank 7, at first
    events/rank-00007.attempt-2.jsonl          the same after two restarts
    events/00500/rank-00612.jsonl              those from 500 on in folders of 500 numbers each

Shared file systems are slow at folders with many thousands of entries. Older versions had all files
in one folder: they are found there, too.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from hpcdist.base import files

NUMBERS_PER_FOLDER = 500

_NUMBERED = r"-([0-9]{5,9})(?:\.attempt-([0-9]{1,9}))?"
EVENT_FILE = re.compile(rf"rank{_NUMBERED}\.jsonl")
USAGE_FILE = re.compile(rf"node{_NUMBERED}\.jsonl")
TRACE_FILE = re.compile(rf"rank{_NUMBERED}(?:\.profile-[0-9a-f]{{8}})?\.json\.gz")
LOG_FILE = re.compile(rf"rank{_NUMBERED}\.log")
AGENT_LOG = re.compile(rf"agent{_NUMBERED}\.log")
_FOLDER = re.compile(r"[0-9]{5,9}")
_MOST_FILES = 4 * files.MOST_ENTRIES
"""Files that are listed: those of 8,192 ranks that were restarted twenty times are half of it."""


def name_of(stem: str, ending: str, number: int, attempt: int = 0) -> str:
    """Return the name of the file of a rank or node: `rank-00007.attempt-2.jsonl`."""
    of_attempt = f".attempt-{attempt}" if attempt else ""
    return f"{stem}-{number:05d}{of_attempt}{ending}"


def place_of(folder: str, stem: str, ending: str, number: int, attempt: int = 0) -> str:
    """Return the same below the folder, where it is written: `events/00500/rank-00612.jsonl`."""
    inner = folder_of(number)
    return "/".join(filter(None, [folder, inner, name_of(stem, ending, number, attempt)]))


def log_place(rank: int, attempt: int) -> str:
    """Return the log of one rank in one attempt, relative to the run directory."""
    return place_of("logs", "rank", ".log", rank, attempt)


def folder_of(number: int) -> str:
    """Return the inner folder in which the files of a rank or node are; empty for the first."""
    first = number - number % NUMBERS_PER_FOLDER
    return f"{first:05d}" if first else ""


def place_in_run(path: Path) -> str:
    """Return the path of a file of a rank or node relative to its run directory."""
    return "/".join(path.parts[-3 if _FOLDER.fullmatch(path.parent.name) else -2 :])


def is_event_file(name: str) -> bool:
    """Return whether a file of this name, its folders left out, is of a rank's events, or of a
    node's."""
    return bool(EVENT_FILE.fullmatch(name) or USAGE_FILE.fullmatch(name))


def is_place(path: str, folder: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a path within the run directory is that of a file of this kind."""
    parts = path.split("/")
    is_inner = len(parts) == 2 or (len(parts) == 3 and bool(_FOLDER.fullmatch(parts[1])))
    return is_inner and parts[0] == folder and bool(pattern.fullmatch(parts[-1]))


def list_places(folder: str | Path) -> list[str]:
    """Return the paths of all files in the folder and its inner folders, relative to it, in order
    of their names. Raises OSError where the folder itself cannot be read, or holds too many."""
    places = list(islice(_places(folder), _MOST_FILES + 1))
    if len(places) > _MOST_FILES:
        raise OSError(errno.EFBIG, f"it holds more than {_MOST_FILES:,} files", str(folder))
    return sorted(places)


def list_numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, int, Path]]:
    """Return (number, attempt, path) of the files of one kind, sorted; none where the folder cannot
    be read."""
    try:
        places = list_places(folder)
    except OSError:
        return []
    base = str(folder)
    matches = ((pattern.fullmatch(os.path.basename(place)), place) for place in places)
    return sorted(
        (int(match[1]), int(match[2] or 0), Path(f"{base}/{place}"))
        for match, place in matches
        if match
    )


def _places(folder: str | Path) -> Iterator[str]:
    for name in files.list_names(folder):
        if not _FOLDER.fullmatch(name):
            yield name
            continue
        try:
            inner = files.list_names(os.path.join(folder, name))
        except OSError:  # no folder, or gone
            yield name
        else:
            yield from (f"{name}/{each}" for each in inner)
