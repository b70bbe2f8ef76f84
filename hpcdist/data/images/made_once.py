"""Folders that are made once, in the user's cache, whoever asks for them first and how many do."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.files import PRIVATE_FOLDER, user_cache

_STALE_S = 86_400.0
_ASIDE = "aside"
CACHE_VARIABLE = "HPCDIST_CACHE"
"""Set by the user, where the home folder is small or not there on the compute nodes."""


def cache_folder() -> Path:
    """Return the folder for what can be made again: $HPCDIST_CACHE, or else the user's cache."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE]).absolute()
    return user_cache()


def make_once(path: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder `path`, made by `make` unless it is there; whole, or not at all.

    It is made under another name and then renamed. Where several processes ask at once, one makes
    it and the others wait; on file systems that know no locks, or between nodes, several may make
    it, and the first one that is done wins. JobError where the folder cannot be written.
    """
    if path.is_dir():
        return path
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with _one_at_a_time(path.parent):
            if not path.is_dir():
                _remove_stale(path)
                make_whole(path, make)
    except OSError as error:
        if not path.is_dir():  # else another one was faster
            hint = f"set {CACHE_VARIABLE} to a folder that you may write, or data.root to your data"
            reason = error.strerror or error
            raise JobError(f"{path} cannot be made: {reason}", hint=hint) from None
    return path


def make_whole(path: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a new folder, under another name until it is whole. `path` may be there, but
    must be empty then: else OSError, and what was made is removed."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{_ASIDE}")
    try:
        aside.mkdir()
        make(aside)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder itself, which leaves no file behind; NFS has none for folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stale(path: Path) -> None:
    """Remove what a killed process left; a day old, so that nobody is still writing it."""
    for aside in path.parent.glob(f".{path.name}.*.{_ASIDE}"):
        with suppress(OSError):
            if time.time() - aside.stat().st_mtime > _STALE_S:
                shutil.rmtree(aside, ignore_errors=True)
