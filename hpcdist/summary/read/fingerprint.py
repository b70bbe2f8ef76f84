"""What tells whether the files that a run's figures come from are as they were.

Contents are not read: a file counts as unchanged while its size, times and inode are. Writers of a
run append, or write aside and rename; either changes them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcdist.base.version import __version__
from hpcdist.runs.run import Run

_SMALL_FILES = ("spec.json", "submission.json", "verdict.json")
_ATTEMPT_FILES = ("begin.json", "verdict.json")


class Fingerprint(NamedTuple):
    """The files of a run at one moment."""

    digest: bytes
    event_bytes: int
    changed_s: float
    """Unix time of the last change to any of them."""


def take_fingerprint(run: Run) -> Fingerprint:
    """Of all files of a run that the summary reads; never fails."""
    digest = hashlib.blake2b(digest_size=16)
    event_bytes = 0
    changed_ns = 0
    for name, found in _files(str(run.path)):
        digest.update(f"{name}\0".encode(errors="surrogateescape"))
        if found is None:
            continue
        times = (found.st_mtime_ns, found.st_ctime_ns)
        digest.update(b"%d %d %d %d\n" % (found.st_size, found.st_ino, *times))
        changed_ns = max(changed_ns, *times)
        if name.startswith("events/"):
            event_bytes += found.st_size
    return Fingerprint(digest.digest(), event_bytes, changed_ns / 1e9)


def code_version() -> str:
    """Of the code that makes the figures: other code, other figures, whatever its version says."""
    package = Path(__file__).parents[2]
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        found = path.stat()
        digest.update(b"%s %d %d\n" % (os.fsencode(path), found.st_size, found.st_mtime_ns))
    return f"{__version__} {digest.hexdigest()}"


def _files(folder: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """Path in the run directory, and what is there."""
    for name in _SMALL_FILES:
        yield name, _stat(f"{folder}/{name}")
    for name, found in _entries(f"{folder}/events"):
        yield f"events/{name}", found
    for attempt in _names(f"{folder}/attempts"):
        yield f"attempts/{attempt}", None
        for name in _ATTEMPT_FILES:
            yield f"attempts/{attempt}/{name}", _stat(f"{folder}/attempts/{attempt}/{name}")


def _entries(folder: str) -> list[tuple[str, os.stat_result | None]]:
    return [(name, _stat(f"{folder}/{name}")) for name in _names(folder)]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
