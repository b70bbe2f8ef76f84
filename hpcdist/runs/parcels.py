"""A run directory in parcels: how it crosses a storage on which little can be relied.

Where jobs have no file system in common with the user, or with each other, their nodes work in run
directories of their own, and write what is new in these into a folder that outlives them, such as
a mounted container of blobs. There, files appear when they are closed, a file that is written again
may be torn, what another node writes may be seen late or never, and there are no renames, links or
locks to build upon. So every name is written once, by one node:

    node-00000/1763859000123456789-9f31c2aa/     one start of node 0, by its time in nanoseconds
      00000000.parcel                            what was new then: pieces of files, and
      00000001-0.data                            a large file, which counts once the
      00000001.parcel                            parcel is there that names it

A parcel is whole if its digest, its first line, is that of the rest. Whoever reads puts the starts
in order: of each file the newest start has the say, and what a node writes that survived the next
start of itself does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from hpcdist.base import files

MOST_PARCEL_BYTES = 1 << 26
_MOST_ENTRIES = 100_000
_START = re.compile(r"node-([0-9]{5,9})/([0-9]{19})-[0-9a-f]{8}")
_PARCEL = re.compile(r"[0-9]{8}\.parcel")
_DATA = re.compile(r"[0-9]{8}-[0-9]{1,6}\.data")
_DIGEST_LETTERS = 64
VERDICT = "verdict.json"
_CHUNK_BYTES = 1 << 20

OWN_NAMES = frozenset(
    {
        *("spec.json", "private.json", "submission.json", "script.sh", "function.pkl", "job.yml"),
        *("figures.msgpack", "remote.json", "sweep.json", "cancel", "summary.txt"),
        *("submitit", "code", "parcels", "launch"),
    }
)
"""Names in a run directory that mean something to hpcdist and are not for nodes to write: no parcel
has them, and none may replace them. Other names may be those of the program's own files."""
_OF_NODES = re.compile(
    r"launch/(?:agent-[0-9]{5,9}\.json|container-[0-9]{5,9}\.json|life-[0-9]{5,9}\.ended)"
)
"""The files that nodes write into folders of OWN_NAMES, and that are for others to know."""


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a file, a whole file, or the end of one."""

    path: str
    """Relative to the run directory."""
    offset: int = 0
    """The place of its content in the file; 0: the file begins anew."""
    size: int = 0
    data: str | None = None
    """Name of the file that has the content, beside the parcel; None: the parcel has it."""
    sha256: str = ""
    """Digest of that file."""
    is_gone: bool = False
    """The file was deleted."""


class Header(Struct, frozen=True, kw_only=True):
    """The first part of a parcel, behind its digest."""

    version: int = 1
    time_s: float
    """Unix time at which it was written."""
    entries: list[Entry]


class Piece(NamedTuple):
    """The content of an entry."""

    entry: Entry
    content: bytes
    """Empty where a file beside the parcel has it."""
    folder: str
    """The start's folder."""


class Parcel(NamedTuple):
    time_s: float
    pieces: list[Piece]


class Start(NamedTuple):
    """One start of one node."""

    time_ns: int
    node: int
    parcels: list[Parcel]


class Source(Protocol):
    """A place with parcels."""

    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of all files by their names, which have slashes. Raises OSError."""

    def read(self, name: str) -> bytes:
        """Return a file of at most MOST_PARCEL_BYTES. Raises OSError."""

    def copy(self, name: str, to: BinaryIO) -> None:
        """Write a file of any size. Raises OSError."""


class FolderSource:
    """Parcels in a folder, such as a mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        sizes = {}
        for path in self._folder.glob("node-*/*/*"):
            with contextlib.suppress(FileNotFoundError):  # replaced at this moment
                sizes[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return sizes

    def read(self, name: str) -> bytes:
        return files.read_bytes(self._folder / name, most_bytes=MOST_PARCEL_BYTES)

    def copy(self, name: str, to: BinaryIO) -> None:
        with files.open_regular(self._folder / name, most_bytes=float("inf")) as file:
            while chunk := file.read(_CHUNK_BYTES):
                to.write(chunk)


def encode(time_s: float, entries: list[Entry], contents: list[bytes]) -> bytes:
    """Return a parcel; `contents` are those of the entries that it has itself, in their order."""
    header = msgspec.json.encode(Header(time_s=time_s, entries=entries))
    rest = b"\n".join([header, b"".join(contents)])
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def decode(data: bytes, folder: str) -> Parcel | None:
    """Return a parcel; None where it is torn, or not as nodes write them."""
    digest, rest = data[:_DIGEST_LETTERS], data[_DIGEST_LETTERS + 1 :]
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        return None
    first, _, content = rest.partition(b"\n")
    try:
        header = msgspec.json.decode(first, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not all(map(_is_sound, header.entries[:_MOST_ENTRIES])):
        return None
    pieces, place = [], 0
    for entry in header.entries[:_MOST_ENTRIES]:
        has_content = entry.data is None and not entry.is_gone
        own = content[place : place + entry.size] if has_content else b""
        place += len(own)
        pieces.append(Piece(entry, own, folder))
    return Parcel(header.time_s, pieces)


def _is_sound(entry: Entry) -> bool:
    """Return whether an entry names no file but one beside its parcel, and has sizes."""
    is_beside = entry.data is None or _DATA.fullmatch(entry.data) is not None
    return is_beside and entry.offset >= 0 and entry.size >= 0


def parcel_names(names: Iterable[str]) -> list[str]:
    """Return those of the names that are parcels', in order."""
    return sorted(
        name
        for name in names
        if _START.fullmatch((place := name.rpartition("/"))[0]) and _PARCEL.fullmatch(place[2])
    )


def read_starts(source: Source, names: Iterable[str]) -> list[Start]:
    """Return the starts that have left parcels, oldest first, each until the next one of its node
    began: what was written later is of a node that nobody listens to any more."""
    by_folder: dict[str, list[Parcel]] = defaultdict(list)
    for name in parcel_names(names):
        folder = name.rpartition("/")[0]
        parcels = by_folder[folder]
        try:
            parcel = decode(source.read(name), folder)
        except FileNotFoundError:
            continue
        if parcel is not None:
            parcels.append(parcel)
    starts = []
    for folder, parcels in by_folder.items():
        match = _START.fullmatch(folder)
        assert match is not None
        starts.append(Start(int(match[2]), int(match[1]), parcels))
    starts.sort(key=lambda start: (start.time_ns, start.node))
    next_ns: dict[int, int] = {}
    ends: dict[int, int | None] = {}
    for start in reversed(starts):
        ends[id(start)] = next_ns.get(start.node)
        next_ns[start.node] = start.time_ns
    return [
        start._replace(
            parcels=[
                parcel
                for parcel in start.parcels
                if (end := ends[id(start)]) is None or parcel.time_s * 1e9 < end
            ]
        )
        for start in starts
    ]


def newest_time_s(starts: Iterable[Start]) -> float:
    """Return the time of the newest parcel, by its node's clock; 0 without one."""
    times = [parcel.time_s for start in starts for parcel in start.parcels]
    return max(times, default=0.0)


def files_of(starts: Iterable[Start]) -> dict[str, list[Piece]]:
    """Return the files of a run by their paths, each in pieces that follow each other."""
    found: dict[str, list[Piece]] = {}
    starts = list(starts)
    for start in starts:
        own: dict[str, list[Piece]] = {}
        gone: set[str] = set()
        for parcel in start.parcels:
            for piece in parcel.pieces:
                _add(piece, own, gone)
        own.pop(VERDICT, None)
        for path in gone:
            found.pop(path, None)
        found |= own
    if (verdict := _verdict(starts)) is not None:
        found[VERDICT] = verdict
    return found


def _add(piece: Piece, own: dict[str, list[Piece]], gone: set[str]) -> None:
    entry = piece.entry
    if not is_wanted(entry.path):
        return
    if entry.is_gone:
        own.pop(entry.path, None)
        gone.add(entry.path)
    elif entry.offset == 0:
        own[entry.path] = [piece]
        gone.discard(entry.path)
    elif entry.path in own and _size(own[entry.path]) == entry.offset:
        own[entry.path].append(piece)
    # Else a parcel before it was lost, and the file stays as it was.


def _size(pieces: list[Piece]) -> int:
    return pieces[-1].entry.offset + pieces[-1].entry.size


def _verdict(starts: list[Start]) -> list[Piece] | None:
    """Return the first verdict of a node 0; without one, what another node wrote since the newest
    start of node 0, when that was lost."""
    of_first = [start for start in starts if start.node == 0]
    since_s = of_first[-1].time_ns / 1e9 if of_first else 0.0
    others = [start for start in starts if start.node != 0]
    for start in (*of_first, *others):
        for parcel in start.parcels:
            if start.node != 0 and parcel.time_s < since_s:
                continue
            for piece in parcel.pieces:
                if piece.entry.path == VERDICT and not piece.entry.is_gone:
                    return [piece]
    return None


def is_wanted(path: str) -> bool:
    """Return whether a parcel may have a file of this path: one within the run directory that is
    not hidden, and none of hpcdist's own but those that nodes write."""
    parts = PurePosixPath(path).parts
    if not parts or path != "/".join(parts) or path.startswith("/") or "\0" in path:
        return False
    if any(part.startswith(".") for part in parts):
        return False
    return parts[0] not in OWN_NAMES or _OF_NODES.fullmatch(path) is not None


def write_file(
    source: Source, folder: Path, path: str, pieces: list[Piece], known: Mapping[str, str]
) -> str:
    """Write a file from its pieces, whole or not at all; return its mark, by which a second call
    knows that it is there already: `known` has the marks by path. Raises OSError; DamagedFileError
    where the content is not what its parcel says."""
    mark = _mark(pieces)
    target = folder / path
    if known.get(path) == mark and target.is_file() and not target.is_symlink():
        return mark
    make_folders(folder, path)
    if pieces[0].entry.data is None:
        files.write_whole(target, b"".join(piece.content for piece in pieces))
        return mark
    (piece,) = pieces[-1:]
    files.write_from(
        target,
        lambda to: source.copy(f"{piece.folder}/{piece.entry.data}", to),
        sha256=piece.entry.sha256,
        size=piece.entry.size,
    )
    return mark


def _mark(pieces: list[Piece]) -> str:
    first, last = pieces[0], pieces[-1]
    return f"{first.folder} {len(pieces)} {last.entry.sha256} {_size(pieces)}"


def make_folders(folder: Path, path: str) -> None:
    """Make the folders that a file is in. Raises OSError where one is a link."""
    for part in reversed(PurePosixPath(path).parents):
        inner = folder / part
        if inner.is_symlink():
            raise NotADirectoryError(f"{inner} is a link")
        inner.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
