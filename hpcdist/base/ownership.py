"""Tell whose files and folders are, and who else may put something in their place; measure and
remove folders of this user's.

A user trusts their own account and root's. Whoever may write a folder may exchange what is in it,
also what is not theirs, unless the folder is sticky, as /tmp is. So folders are opened without
following links, and removed by what was opened.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError

_MOST_BYTES = 1e9
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class NotOwnError(HpcdistError):
    """A job finds files that are another user's, or that others can write."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message}: nothing of it was run",
            hint="submit it again, with --runs or HPCDIST_RUNS into a folder that only you can "
            "write",
        )


def check_own_folder(folder: Path, *, with_content: bool = True) -> None:
    """Raise NotOwnError where a folder is not this user's own, is a link, or can be written by
    others; or where something right in it is another user's."""
    try:
        descriptor = os.open(folder, _FOLDER)
    except OSError as error:
        why = "a link stands in its place" if folder.is_symlink() else error.strerror
        raise NotOwnError(f"{folder}: {why}") from None
    try:
        _check_own(folder, os.fstat(descriptor))
        for name in os.listdir(descriptor) if with_content else ():
            with suppress(FileNotFoundError):  # renamed at this moment, by the submitter
                inner = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                _check_owner(folder / name, inner)
    finally:
        os.close(descriptor)


def read_own(path: Path) -> bytes:
    """Return the content of a file; NotOwnError where it is not this user's own, is a link, or can
    be written by others."""
    try:
        with files.open_regular(path, most_bytes=_MOST_BYTES, flags=os.O_NOFOLLOW) as file:
            _check_own(path, os.fstat(file.fileno()))
            return file.readall()
    except OSError as error:
        why = "a link stands in its place" if path.is_symlink() else error.strerror
        raise NotOwnError(f"{path} cannot be read: {why}") from None


def _check_own(path: Path, status: os.stat_result) -> None:
    _check_owner(path, status)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotOwnError(f"{path} can be written by others (chmod go-w forbids it)")


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        owner, user = owner_name(status.st_uid), owner_name(os.geteuid())
        raise NotOwnError(f"{path} belongs to {owner}, and the job is {user}'s")


class Door(msgspec.Struct, frozen=True):
    """A way for others to change what is at a path."""

    path: Path
    """The path itself, or a folder above it, which they may write."""
    who: Literal["everyone", "group", "owner"]
    how: str
    """In words, behind the path."""

    def __str__(self) -> str:
        return f"{self.path} {self.how}"


def is_own(path: Path) -> bool:
    """Return whether a path, and what it leads to where it is a link, is this user's."""
    return owner_id(path) == os.geteuid()


def owner_id(path: Path) -> int | None:
    """Return the number of a path's owner: of what it leads to, if a link to that is this user's.
    None: there is nothing."""
    try:
        own = os.lstat(path).st_uid
        return os.stat(path).st_uid if own == os.geteuid() else own
    except OSError:
        return None


def owner_name(uid: int | None) -> str:
    """Return a user's name; in words where only the number is known, or there is no owner."""
    try:
        return "nobody, for it is gone" if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def doors(path: Path) -> list[Door]:
    """Return the ways by which others can change what is at a path: first its own, then those of
    the folders above it, the nearest first, up to the root."""
    # As they are written, and as links lead to them.
    written, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    way = dict.fromkeys([real, written, *real.parents, *written.parents])
    return [door for place in way if os.path.lexists(place) for door in _doors_at(place)]


def _doors_at(place: Path) -> Iterator[Door]:
    status = os.lstat(place)
    if status.st_uid not in {0, os.geteuid()}:
        yield Door(place, "owner", f"belongs to {owner_name(status.st_uid)}")
    if stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX:
        return
    if status.st_mode & stat.S_IWOTH:
        yield Door(place, "everyone", "can be written by everyone")
    elif status.st_mode & stat.S_IWGRP and (group := _others_in(status.st_gid)):
        yield Door(place, "group", f"can be written by the group {group}")


def _others_in(gid: int) -> str | None:
    """Return the name of a group; None where it is root's, or this user's private one, and nobody
    else is in it. Many systems make one for each user: then a umask of 002 opens nothing."""
    try:
        group, own = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return str(gid)
    is_private = gid == own.pw_gid and group.gr_name == own.pw_name
    is_alone = (is_private or gid == 0) and set(group.gr_mem) <= {own.pw_name, "root"}
    return None if is_alone else group.gr_name


class Tree(msgspec.Struct, frozen=True):
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
        status = os.fstat(top)
        return Tree(path, (status.st_dev, status.st_ino), num_bytes)


def empty_tree(tree: Tree) -> None:
    """Remove all that is in a folder that was measured; OSError where another one is there."""
    with open_own_folder(tree.path) as top:
        status = os.fstat(top)
        if (status.st_dev, status.st_ino) != tree.identity:
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
