"""A run directory on a storage on which little can be relied: its writer and its reader.

Where jobs have no file system in common with the user, or with each other, their nodes work in run
directories of their own, and copy what has changed in these into a folder that outlives them, such
as a mounted container of blobs. There, files appear when they are closed, a file that is written
again may be torn, what another node writes may be seen late or never, and there are no renames,
links or locks to build upon. So every name is written once, by one node:

    node-00000/1763859000123456789-9f31c2aa/     one start of node 0, by its time in nanoseconds
      00000000.copy                              a file of the run directory, as it was once
      00000001.json                              a listing: the newest copy of each file that this
                                                 start has changed, and the files that it deleted

A listing is written after the copies that it names, and counts where all of it is there. Whoever
reads puts the starts in order: of each file the newest start has the say, and what a node writes
that survived the next start of itself does not count.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from hpcdist.base import files

VERDICT = "verdict.json"
OWN_NAMES = frozenset(
    {
        *("spec.json", "private.json", "submission.json", "script.sh", "function.pkl", "job.yml"),
        *("figures.msgpack", "remote.json", "sweep.json", "cancel", "summary.txt"),
        *("submitit", "code", "fetched.json", "launch"),
    }
)
"""Names in a run directory that mean something to hpcdist and are not for nodes to write: none is
published, and none is replaced. Other names may be those of the program's own files."""
_OF_NODES = re.compile(
    r"launch/(?:agent-[0-9]{5,9}\.json|container-[0-9]{5,9}\.json|life-[0-9]{5,9}\.ended)"
)
"""The files that nodes write into folders of OWN_NAMES, and that are for others to know."""
_START = re.compile(r"node-([0-9]{5,9})/([0-9]{19})-[0-9a-f]{8}")
_LISTING = re.compile(r"[0-9]{8,9}\.json")
_COPY = re.compile(r"[0-9]{8,9}\.copy")
_MOST_LISTING_BYTES = 1 << 24
_MOST_LISTED_BYTES = 1 << 28
"""Bytes of all listings that are read at one time."""
_CHUNK_BYTES = 1 << 20
_SETTLED_S = 2.0
"""A file that was written to that shortly ago may be half written."""
_RENAMED = "checkpoints/step-"
"""These are written aside and renamed: the newest may be replaced before it is that old."""
_GROWING = (("events/", ".jsonl"), ("logs/", ""))
"""Files whose last line may be half written."""
_URGENT = ("checkpoints/", "attempts/", VERDICT)
_STEP_S = 0.001
_MOST_AHEAD_S = 86400.0
"""Clocks do not differ by more, unless a listing lies."""

Signature: TypeAlias = tuple[int, int, int]
"""Size, time of the last change, and inode of a file."""


class Entry(Struct, frozen=True, kw_only=True):
    """A file of the run directory."""

    path: str
    """Relative to the run directory."""
    copy: str
    """Name of its copy, beside the listing."""
    size: int
    sha256: str
    time_s: float
    """Unix time at which it was copied."""


class Listing(Struct, frozen=True, kw_only=True):
    """All files that a start of a node has changed, and those that it deleted."""

    time_s: float
    """Unix time at which it was written."""
    files: list[Entry]
    gone: list[str]


class Start(NamedTuple):
    """One start of one node."""

    folder: str
    node: int
    time_ns: int
    listing: Listing


class Published(NamedTuple):
    """A file, and the folder of the start that published it."""

    folder: str
    entry: Entry


class Source(Protocol):
    """A place where runs are published."""

    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of all files by their names, which have slashes. Raises OSError."""

    def read(self, name: str) -> bytes:
        """Return a small file. Raises OSError."""

    def copy(self, name: str, to: BinaryIO) -> None:
        """Write a file of any size. Raises OSError."""


class FolderSource:
    """A folder where runs are published, such as a mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        sizes = {}
        for path in self._folder.glob("node-*/*/*"):
            with contextlib.suppress(FileNotFoundError):  # replaced at this moment
                sizes[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return sizes

    def read(self, name: str) -> bytes:
        return files.read_bytes(self._folder / name, most_bytes=_MOST_LISTING_BYTES)

    def copy(self, name: str, to: BinaryIO) -> None:
        with files.open_regular(self._folder / name, most_bytes=float("inf")) as file:
            while chunk := file.read(_CHUNK_BYTES):
                to.write(chunk)


# Reading.


def read_starts(source: Source) -> list[Start]:
    """Return the starts of nodes, oldest first, each with its newest whole listing that is older
    than the next start of its node: what was written later is of a node that nobody listens to any
    more. Raises OSError."""
    listings: dict[str, list[str]] = defaultdict(list)
    sizes = source.sizes()
    for name, size in sizes.items():
        folder, _, last = name.rpartition("/")
        if _START.fullmatch(folder) and _LISTING.fullmatch(last) and size <= _MOST_LISTING_BYTES:
            listings[folder].append(name)
    starts = []
    next_ns: dict[int, int] = {}
    num_bytes = 0
    for folder in sorted(listings, key=lambda folder: folder.partition("/")[2], reverse=True):
        match = _START.fullmatch(folder)
        assert match is not None
        node, time_ns = int(match[1]), int(match[2])
        for name in sorted(listings[folder], reverse=True):
            num_bytes += sizes[name]
            if num_bytes > _MOST_LISTED_BYTES:
                raise OSError(errno.EFBIG, "more was published than is read", folder)
            listing = _read_listing(source, name)
            if listing is not None and listing.time_s * 1e9 < next_ns.get(node, float("inf")):
                starts.append(Start(folder, node, time_ns, listing))
                break
        next_ns[node] = time_ns
    return starts[::-1]


def _read_listing(source: Source, name: str) -> Listing | None:
    """Return a listing; None where it is torn, or is none that a node writes."""
    try:
        listing = msgspec.json.decode(source.read(name), type=Listing)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    copies = {entry.copy for entry in listing.files if _COPY.fullmatch(entry.copy)}
    is_sound = all(entry.size >= 0 for entry in listing.files)
    return listing if is_sound and len(copies) == len(listing.files) else None


def files_of(starts: Iterable[Start]) -> dict[str, Published]:
    """Return the files of a run by their paths. The verdict is the first of a node 0; without one,
    what another node wrote since the newest start of node 0, when that was lost."""
    starts = list(starts)
    found: dict[str, Published] = {}
    for start in starts:
        for path in start.listing.gone:
            found.pop(path, None)
        for entry in start.listing.files:
            if is_wanted(entry.path) and entry.path != VERDICT:
                found[entry.path] = Published(start.folder, entry)
    since_s = max((start.time_ns for start in starts if start.node == 0), default=0) / 1e9
    for start in sorted(starts, key=lambda start: start.node != 0):
        for entry in start.listing.files:
            if entry.path == VERDICT and (start.node == 0 or entry.time_s >= since_s):
                return found | {VERDICT: Published(start.folder, entry)}
    return found


def is_wanted(path: str) -> bool:
    """Return whether a file of this path may be published: one within the run directory that is
    not hidden, and none of hpcdist's own but those that nodes write."""
    parts = PurePosixPath(path).parts
    if not parts or path != "/".join(parts) or path.startswith("/") or "\0" in path:
        return False
    if any(part.startswith(".") for part in parts):
        return False
    return parts[0] not in OWN_NAMES or _OF_NODES.fullmatch(path) is not None


def bring_file(source: Source, run: Path, file: Published) -> None:
    """Write a file into a run directory, whole or not at all. Raises OSError, also where a folder
    is a link; DamagedFileError where the content is not what its listing says."""
    entry = file.entry
    for part in reversed(PurePosixPath(entry.path).parents):
        inner = run / part
        if inner.is_symlink():
            raise NotADirectoryError(f"{inner} is a link")
        inner.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    files.write_from(
        run / entry.path,
        lambda to: source.copy(f"{file.folder}/{entry.copy}", to),
        sha256=entry.sha256,
        size=entry.size,
    )


# Writing.


class Publisher:
    """Publishes the run directory of one start of a node."""

    def __init__(
        self,
        run: Path,
        output: Path,
        *,
        node: int,
        after_s: float = 0.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Begin with an empty listing: by it, others know of this start. What the directory holds
        by now is there already. `after_s` is the time of the newest listing of former starts: where
        this node's clock is behind that of theirs, it counts on from there. Raises OSError."""
        self._run = run
        self._now = now
        self._ahead_s = min(max(0.0, after_s - now() + _STEP_S), _MOST_AHEAD_S)
        name = f"{int(self._time_s() * 1e9):019d}-{secrets.token_hex(4)}"
        self._folder = output / f"node-{node:05d}" / name
        self._folder.mkdir(parents=True)
        self._number = 0
        self._signatures = {path: sign for path, sign, _ in self._scan()}
        self._brought = frozenset(self._signatures)
        self._entries: dict[str, Entry] = {}
        self._gone: list[str] = []
        self._superseded: list[str] = []
        self._write_listing()

    def _time_s(self) -> float:
        return self._now() + self._ahead_s

    def _next_file(self, ending: str) -> Path:
        self._number += 1  # a name that could not be written whole is not used again
        return self._folder / f"{self._number:08d}.{ending}"

    def is_urgent(self) -> bool:
        """Return whether a checkpoint, or the end of an attempt, has yet to be published."""
        return any(path.startswith(_URGENT) for path, _ in self._changed(is_final=False))

    def publish(self, *, is_final: bool = False) -> None:
        """Copy what has changed. `is_final`: nobody writes to the directory any more, so that
        nothing is half written. Raises OSError, after which it may be called again."""
        present = {path for path, *_ in self._scan()}
        for path in self._signatures.keys() - present:
            del self._signatures[path]
            if path in self._brought:
                self._gone.append(path)
            self._forget(path)
        for path, sign in list(self._changed(is_final=is_final)):
            if (entry := self._copy(path, sign)) is not None:
                self._forget(path)
                self._entries[path], self._signatures[path] = entry, sign
                self._is_listed = False
        if not self._is_listed:
            self._write_listing()
        while self._superseded:
            (self._folder / self._superseded.pop()).unlink(missing_ok=True)

    def _forget(self, path: str) -> None:
        self._is_listed = False
        if (before := self._entries.pop(path, None)) is not None:
            self._superseded.append(before.copy)

    def _write_listing(self) -> None:
        listing = Listing(time_s=self._time_s(), files=[*self._entries.values()], gone=self._gone)
        with self._next_file("json").open("xb") as file:
            file.write(msgspec.json.encode(listing))
        self._is_listed = True

    def _copy(self, path: str, sign: Signature) -> Entry | None:
        """Copy a file; None where it changed meanwhile, and may be half of each."""
        digest, size = hashlib.sha256(), 0
        copy = self._next_file("copy")
        try:
            with files.open_regular(self._run / path, most_bytes=float("inf")) as file:
                with copy.open("xb") as to:
                    while chunk := file.read(_CHUNK_BYTES):
                        digest.update(chunk)
                        to.write(chunk)
                        size += len(chunk)
                is_same = _signature(os.fstat(file.fileno())) == sign
        except FileNotFoundError:  # deleted meanwhile
            return None
        if not (is_same or _is_growing(path)):
            copy.unlink(missing_ok=True)
            return None
        sha256, time_s = digest.hexdigest(), self._time_s()
        return Entry(path=path, copy=copy.name, size=size, sha256=sha256, time_s=time_s)

    def _changed(self, *, is_final: bool) -> Iterator[tuple[str, Signature]]:
        for path, sign, changed_s in self._scan():
            is_whole = is_final or _is_growing(path) or path.startswith(_RENAMED)
            is_settled = is_whole or self._now() - changed_s >= _SETTLED_S
            if self._signatures.get(path) != sign and is_settled:
                yield path, sign

    def _scan(self) -> Iterator[tuple[str, Signature, float]]:
        """Yield path, signature and time of change of all files that may be published."""
        for parent, folders, names in os.walk(self._run):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                path = os.path.relpath(os.path.join(parent, name), self._run)
                try:
                    status = os.lstat(self._run / path)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode) and is_wanted(path):
                    yield path, _signature(status), status.st_mtime


def _is_growing(path: str) -> bool:
    return any(path.startswith(folder) and path.endswith(end) for folder, end in _GROWING)


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ino
