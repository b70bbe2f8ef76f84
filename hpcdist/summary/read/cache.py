"""Measured runs, kept from one summary to the next, for runs whose files have not changed since.

    $XDG_CACHE_HOME/hpcdist/summary/<folder>.msgpack    by default ~/.cache

One file per folder of runs, named by a digest of its path: run directories may be read-only or
another user's. Files are private, written whole, and only ever a shortcut: what is torn, foreign or
of another version counts as empty. A file begins with a digest of the rest, as a flipped bit would
give another number. Two summaries at one time may drop each other's new entries,
which are measured again then.

A run counts as unchanged while size, times and inode of its files are the same; contents are not
read. Writers of a run append, or write aside and rename; either changes them.

Not kept is what changed just now, when a change to come may have the same time, nor a run without a
verdict that changed within the hour: it may be going on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
_MOST_BYTES = 256_000_000  # some 80,000 runs
_SUFFIX = ".msgpack"


class Entry(Struct, frozen=True, kw_only=True):
    """One run as it was measured."""

    digest: bytes
    """Digest of the fingerprint."""
    measured: msgspec.Raw


class _Folder(Struct, frozen=True, kw_only=True):
    """Content of one file."""

    version: str
    """Version of the code that measured."""
    path: str
    """The folder of the runs."""
    runs: dict[str, Entry]
    """By the names of their directories."""


class SummaryCache:
    """Reads each file once, when the first of its runs is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = code_version()
        self._known: dict[str, dict[str, Entry]] = {}
        self._fingerprints: dict[Path, Fingerprint] = {}

    def fingerprint(self, run: Run) -> Fingerprint:
        """Return the fingerprint that a run had when it was first asked for here."""
        if run.path not in self._fingerprints:
            self._fingerprints[run.path] = take_fingerprint(run)
        return self._fingerprints[run.path]

    def find(self, run: Run, fingerprint: Fingerprint) -> msgspec.Raw | None:
        """Return what the run gave when its files were as they are now; None where that is not
        known."""
        runs = str(run.path.parent)
        if runs not in self._known:
            self._known[runs] = self._read(runs)
        entry = self._known[runs].get(run.id)
        return entry.measured if entry and entry.digest == fingerprint.digest else None

    def keep(self, measured: Sequence[tuple[Run, Fingerprint, bytes]]) -> None:
        """Add what was measured; entries of runs that are gone are dropped, and folders that were
        not used for longest where all are too large. Raises OSError."""
        new: dict[str, dict[str, Entry]] = defaultdict(dict)
        for run, fingerprint, content in measured:
            entry = Entry(digest=fingerprint.digest, measured=msgspec.Raw(content))
            new[str(run.path.parent)][run.id] = entry
        for runs, entries in new.items():
            there = {
                name: entry
                for name, entry in (self._read(runs) | entries).items()
                if os.path.isdir(os.path.join(runs, name))
            }
            content = msgspec.msgpack.encode(_Folder(version=self.version, path=runs, runs=there))
            self.folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            files.write_whole(self._file(runs), seal(content))
        if new:
            self._shrink()

    def _file(self, runs: str) -> Path:
        name = hashlib.blake2b(os.fsencode(runs), digest_size=16).hexdigest()
        return self.folder / f"{name}{_SUFFIX}"

    def _read(self, runs: str) -> dict[str, Entry]:
        path = self._file(runs)
        try:
            with files.open_private(path) as file:
                content = unseal(file.read())
            if content is None:
                return {}
            folder = msgspec.msgpack.decode(content, type=_Folder)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: what was not used for longest is dropped first
        return folder.runs if (folder.version, folder.path) == (self.version, runs) else {}

    def _shrink(self) -> None:
        """Drop the files that were not used for longest, until the rest is small enough."""
        caches = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):  # another summary dropped it
                    stat = entry.stat()
                    caches.append((stat.st_mtime_ns, stat.st_size, entry.path))
        num_bytes = 0
        for _, size, path in sorted(caches, reverse=True):
            num_bytes += size
            if num_bytes > _MOST_BYTES:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def seal(content: bytes) -> bytes:
    """Return the content behind its digest."""
    return hashlib.sha256(content).digest() + content


def unseal(data: bytes) -> bytes | None:
    """Return the content; None where it is not what was sealed."""
    size = hashlib.sha256().digest_size
    content = data[size:]
    return content if hashlib.sha256(content).digest() == data[:size] else None


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/hpcdist/summary; raises RuntimeError where there is no home."""
    return files.user_cache() / "summary"


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
    has_verdict: bool
    """There is a verdict.json, damaged or not."""


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
        has_verdict=found[_SMALL_FILES.index("verdict.json")] != _ABSENT,
    )


_ABSENT = (0, 0, 0, 0)


def _status(path: str) -> tuple[int, int, int, int]:
    """Return size, inode and times of a file; zeros where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return _ABSENT
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
