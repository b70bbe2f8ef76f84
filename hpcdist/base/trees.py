"""Measure and remove folders of this user's, where others may exchange what is at a path meanwhile.

Folders are opened without following links, and removed by what was opened.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Tree(Struct, frozen=True):
    """A folder, as it was when it was measured."""

    path: Path
    identity: tuple[int, int] | None
    """Device and inode; None where it could not be opened."""
    num_bytes: int
    """Bytes of all files, links not followed; of a file with several names, a share for each."""


def measure_tree(path: Path) -> Tree:
    """Measure a folder; OSError where it is none, is a link, is another user's, or is too deep."""
    num_bytes = 0
    with open_own_folder(path) as top:
        try:
            for _, _, names, folder in os.fwalk(dir_fd=top):
                for name in names:
                    with suppress(FileNotFoundError):  # removed at this moment
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        num_bytes += status.st_size // max(1, status.st_nlink)
        except RecursionError:
            raise OSError(errno.ELOOP, "has too many folders within each other") from None
        return Tree(path, _identity(top), num_bytes)


def empty_tree(tree: Tree) -> None:
    """Remove all that is in a folder that was measured; OSError where another one is there."""
    with open_own_folder(tree.path) as top:
        if _identity(top) != tree.identity:
            raise OSError(errno.ESTALE, "another folder has taken its place", str(tree.path))
        for name in os.listdir(top):
            try:
                os.unlink(name, dir_fd=top)
            except IsADirectoryError:
                shutil.rmtree(f"/proc/self/fd/{top}/{name}")  # which follows no link


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


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
