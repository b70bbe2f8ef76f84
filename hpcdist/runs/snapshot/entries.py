"""The entries of a snapshot: files with the hash of their bytes, and symbolic links."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

import msgspec

_CHUNK_BYTES = 1 << 20
_NUM_THREADS = 8  # on a shared file system each file is a wait, not work

Item = TypeVar("Item")
Result = TypeVar("Result")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file or a symbolic link."""

    path: str
    """Relative to the root of the snapshot."""
    size_bytes: int = 0
    sha256: str = ""
    """Of the bytes of a file; empty for a link."""
    executable: bool = False
    target: str = ""
    """Where a link points to; empty for a file."""


def content_id(entries: Iterable[Entry]) -> str:
    """The hash over all that a job could see of the entries."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.path):
        kind = "link" if entry.target else "executable" if entry.executable else "file"
        fields = (kind, entry.path, entry.target or entry.sha256)
        digest.update(b"\0".join(map(os.fsencode, fields)) + b"\0")
    return digest.hexdigest()


def is_entry(folder: str, entry: Entry) -> bool:
    """Whether `folder` holds exactly what the entry says."""
    path = os.path.join(folder, entry.path)
    try:
        if entry.target:
            return os.readlink(path) == entry.target
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            return (
                stat.S_ISREG(status.st_mode)
                and status.st_size == entry.size_bytes
                and bool(status.st_mode & stat.S_IXUSR) == entry.executable
                and read_through(file) == (entry.sha256, entry.size_bytes)
            )
    except OSError:
        return False


def open_file(path: str) -> BinaryIO:
    """Open a file for reading; OSError where a link has taken its place."""
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)


def read_through(file: BinaryIO, copy_to: BinaryIO | None = None) -> tuple[str, int]:
    """The SHA-256 and number of a file's bytes, which are written elsewhere on the way."""
    digest = hashlib.sha256()
    size_bytes = 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size_bytes += len(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return digest.hexdigest(), size_bytes


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The function's results in order, the files being read side by side."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(pool.map(function, items))
