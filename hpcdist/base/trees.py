"""Folders as they were listed, and their removal: nothing goes but what was listed.

Between the two somebody else may put a link, or another folder, in the place of one. So folders are
opened within each other by descriptors, links are never followed, and each entry must be the one
that was listed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_SELF = "."
_MOST_LEVELS = 100
"""Levels of folders that are listed: each holds a descriptor."""


class Tree(NamedTuple):
    """A folder as it was listed."""

    path: Path
    entries: dict[str, tuple[int, int]]
    """Path below the folder, which is `.` itself -> device and inode; without what other users own,
    or other file systems have, and what is in that."""
    num_bytes: int
    """Bytes of all files, links not followed; of a file with several names, a share for each."""


def list_tree(path: Path) -> Tree:
    """List a folder of this user's; OSError where it is none, is a link, is another user's, or is
    too deep. What another file system has mounted in it is not of it."""
    entries: dict[str, tuple[int, int]] = {}
    num_bytes = 0
    with open_own_folder(path) as top:
        entries[_SELF] = _identity(os.fstat(top))
        for place, status in _walk(top, ""):
            entries[place] = _identity(status)
            is_folder = stat.S_ISDIR(status.st_mode)
            num_bytes += 0 if is_folder else status.st_size // max(1, status.st_nlink)
    return Tree(path, entries, num_bytes)


def remove_listed(tree: Tree) -> str | None:
    """Empty a folder of what was listed; returns the first thing that was not, and stays. OSError
    where another folder is there."""
    with open_own_folder(tree.path) as top:
        if _identity(os.fstat(top)) != tree.entries[_SELF]:
            raise OSError(errno.ESTALE, "another folder has taken its place", str(tree.path))
        return _empty(top, "", tree)


@contextmanager
def open_own_folder(path: Path) -> Iterator[int]:
    """Open a folder that is no link, and this user's; OSError for any other."""
    descriptor = os.open(path, _FOLDER)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # removed at this moment
            yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def _walk(folder: int, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what a folder holds, what is in a folder after it."""
    if prefix.count("/") > _MOST_LEVELS:
        raise OSError(errno.ELOOP, f"has more than {_MOST_LEVELS} folders within each other")
    device = os.fstat(folder).st_dev
    for name in os.listdir(folder):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if status.st_uid != os.geteuid() or status.st_dev != device:
            continue
        yield f"{prefix}{name}", status
        if stat.S_ISDIR(status.st_mode):
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                yield from _walk(inner, f"{prefix}{name}/")
            finally:
                os.close(inner)


def _empty(folder: int, prefix: str, tree: Tree) -> str | None:
    first_left: str | None = None
    for name, status in _entries(folder):
        place = f"{prefix}{name}"
        if tree.entries.get(place) != _identity(status):
            first_left = first_left or place
        elif stat.S_ISDIR(status.st_mode):
            left = _remove_folder(folder, name, place, tree)
            first_left = first_left or left
        else:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    return first_left


def _remove_folder(parent: int, name: str, place: str, tree: Tree) -> str | None:
    inner = os.open(name, _FOLDER, dir_fd=parent)
    try:
        if tree.entries[place] != _identity(os.fstat(inner)):
            return place
        left = _empty(inner, f"{place}/", tree)
    finally:
        os.close(inner)
    if left is None:
        os.rmdir(name, dir_fd=parent)
    return left


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
