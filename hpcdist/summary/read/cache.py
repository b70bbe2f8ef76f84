"""Figures of a run, kept beside it from its end, or the first summary, to the next summary.

    <run>/figures.msgpack

The file is private, written whole, and only ever a shortcut: what is torn, foreign or of another
version counts as none. It begins with a digest of the rest, as a flipped bit would give another
number. It says by a digest of the sizes, times and inodes of the run's files what it was made from;
contents are not read. Writers of a run append, or write aside and rename; either changes them.

Not kept is what changed just now, when a change to come may have the same time, nor a run without a
verdict that changed within the hour: it may be going on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.base.version import __version__
from hpcdist.runs.run import Run

_COARSEST_CLOCK_S = 2.0
"""Resolution of file systems' times: until then a second change may leave the same ones."""
_QUIET_S = 3600.0
_SEAL_BYTES = hashlib.sha256().digest_size


class _Kept(Struct, frozen=True, kw_only=True):
    """Content of a file."""

    version: str
    """Version of the code that made it."""
    digest: bytes
    """Digest of the fingerprint."""
    content: msgspec.Raw


def write_kept(run: Run, fingerprint: Fingerprint, content: bytes, *, version: str) -> None:
    """Keep what was made of a run with this fingerprint. Raises OSError."""
    raw = msgspec.Raw(content)
    kept = msgspec.msgpack.encode(_Kept(version=version, digest=fingerprint.digest, content=raw))
    files.write_whole(run.figures_file, hashlib.sha256(kept).digest() + kept)


def read_kept(run: Run, fingerprint: Fingerprint, *, version: str) -> msgspec.Raw | None:
    """Return what was kept; None where it is not of the run as it is now."""
    try:
        with files.open_private(run.figures_file) as file:
            data = file.read(files.MOST_JSON_BYTES)
        content = data[_SEAL_BYTES:]
        if hashlib.sha256(content).digest() != data[:_SEAL_BYTES]:
            return None
        kept = msgspec.msgpack.decode(content, type=_Kept)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_same = (kept.version, kept.digest) == (version, fingerprint.digest)
    return kept.content if is_same else None


def is_settled(fingerprint: Fingerprint, *, has_verdict: bool, now_s: float) -> bool:
    """Return whether a change after the Unix time `now_s` must give another fingerprint, and is
    not to be expected soon."""
    return now_s - fingerprint.changed_s > (_COARSEST_CLOCK_S if has_verdict else _QUIET_S)


_SMALL_FILES = ("spec.json", "submission.json", "verdict.json")
_ATTEMPT_FILES = ("begin.json", "verdict.json")


class Fingerprint(NamedTuple):
    """The files of a run at one moment."""

    digest: bytes
    event_bytes: int
    changed_s: float
    """Unix time of the last change to any of them."""


def take_fingerprint(run: Run) -> Fingerprint:
    """Fingerprint all files of a run that the summary reads; never fails."""
    folder = str(run.path)
    attempts = _names(f"{folder}/attempts")
    events = _names(f"{folder}/events")
    names = [
        *_SMALL_FILES,
        *(f"events/{place}" for place in events),
        *(f"attempts/{attempt}/{name}" for attempt in attempts for name in _ATTEMPT_FILES),
    ]
    found = [_status(f"{folder}/{name}") for name in names]
    content = repr((attempts, names, found)).encode(errors="surrogateescape")
    first_event = len(_SMALL_FILES)
    return Fingerprint(
        hashlib.blake2b(content, digest_size=16).digest(),
        sum(size for size, *_ in found[first_event : first_event + len(events)]),
        max(max(modified, changed) for _, _, modified, changed in found) / 1e9,
    )


def _status(path: str) -> tuple[int, int, int, int]:
    """Return size, inode and times of a file; zeros where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def code_version() -> str:
    """Return a digest of the code that makes the figures: other code, other figures, whatever its
    version says."""
    sources = sorted(_sources(str(Path(__file__).parents[2])))
    digest = hashlib.blake2b(repr(sources).encode(errors="surrogateescape"), digest_size=8)
    return f"{__version__} {digest.hexdigest()}"


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of each of our modules."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path)


def _names(folder: str) -> list[str]:
    try:
        return sorted(files.list_names(folder))
    except OSError:
        return []
