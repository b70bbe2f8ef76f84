"""Ends that are still to be told: a file per run, or sweep, whose user wants a message about it.

    <runs>/.untold/<id>       to be told; holds what was told of it, and how often that was tried
    <runs>/.untold/<id>~<x>   somebody is at it, who renamed the first: so one of many is

The files are beside the runs, so that a command sees by one listing whether there is anything to
tell, and not by a look into each of thousands of runs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcdist.base import files
from hpcdist.base.ownership import is_own
from hpcdist.runs.run import Run, cannot_write

_FOLDER = ".untold"
_TAKEN = "~"
_LEFT_AFTER_S = 120.0
"""Whoever took a file for longer has ended before it was done."""
_WAIT_S = 5.0
_POLL_S = 0.1
_LOOK = "~look"
_OTHERS_MAY_WRITE = 0o022


class Untold(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of a file: how far the telling of an end has come."""

    told: list[str] = []
    """The channels that have the message."""
    told_hangs: list[str] = []
    """`RUN CHANNEL` for each channel that knows that a run seems to hang."""
    num_hang_tries: int = 0
    num_tries: int = 0
    not_before_s: float = 0.0
    """Unix time before which it is not tried again."""
    is_over: bool = False
    """No more runs of the sweep are started, though some have not been."""
    folder: int = 0
    """Inode of the folder that the file was made in: in a copy of that nothing is to be told."""
    is_done: bool = False
    """There is nothing more to tell, or it was tried often enough."""


class Taken(NamedTuple):
    """An end that one caller tells of."""

    untold: Untold
    path: Path

    def keep(self) -> None:
        """Write down how far the telling has come: whoever does it may be killed."""
        with suppress(OSError):
            _write(self.path, self.untold)


def expect(runs: Path, name: str) -> bool:
    """Note that the end of a run or sweep is to be told; return whether that is new. Raises
    RunDirectoryError."""
    path = runs / _FOLDER / name
    is_new = not path.exists()
    try:
        path.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        _write(path, Untold(folder=path.parent.stat().st_ino))
    except OSError as error:
        raise cannot_write(runs, error) from None
    return is_new


def forget(runs: Path, name: str) -> None:
    """Tell nothing of a run or sweep any more."""
    (runs / _FOLDER / name).unlink(missing_ok=True)


def note_over(runs: Path, name: str) -> None:
    """Note that no more runs of a sweep are started, if its end is still to be told."""
    with take(runs, name, wait_s=_WAIT_S) as taken:
        if taken is not None:
            taken.untold.is_over = True


def list_untold(runs: Path) -> list[str]:
    """Return the ids of what is to be told, and of what others began to tell and left."""
    folder = runs / _FOLDER
    try:
        names = files.list_names(folder)
    except OSError:
        return []
    if not names or not _is_private(folder) or not os.access(folder, os.W_OK):
        return []
    left = {name: name.partition(_TAKEN)[0] for name in names if _TAKEN in name}
    for name, of in left.items():
        if of and _age_s(folder, name) > _LEFT_AFTER_S:
            with suppress(OSError):  # another command was faster
                os.rename(folder / name, folder / of)
                names.append(of)
    return sorted({name for name in names if _TAKEN not in name and not name.startswith(".")})


def peek(runs: Path, name: str) -> Untold:
    """Return what is known of an end, without taking it."""
    return _read(runs / _FOLDER / name)


def is_untold(run: Run) -> bool:
    """Return whether the end of a run, or of the sweep that it is of, is to be told here."""
    folder = run.path.parent / _FOLDER
    place = run.read_sweep_place()
    names = [run.id] if place is None else [run.id, str(place.id)]
    return _is_private(folder) and any((folder / name).exists() for name in names)


def may_look(runs: Path, *, every_s: float) -> bool:
    """Return whether nobody has looked for ends within this time; if so, the next one waits."""
    path = runs / _FOLDER / _LOOK
    if _age_s(runs / _FOLDER, _LOOK) < every_s:
        return False
    try:
        path.touch(files.PRIVATE_FILE)
        os.utime(path)
    except OSError:
        return False
    return True


@contextmanager
def take(runs: Path, name: str, *, wait_s: float = 0.0) -> Iterator[Taken | None]:
    """Give what is known of an end to one caller, who may change it; None to all others, which may
    wait for that one, and where there is nothing to tell any more. It is written back afterwards,
    or removed once it is done."""
    path = runs / _FOLDER / name
    taken = path.with_name(f"{name}{_TAKEN}{secrets.token_hex(4)}")
    deadline_s = time.monotonic() + wait_s
    while not (is_taken := _rename_own(path, taken)) and _is_with_another(path):
        if time.monotonic() >= deadline_s:
            break
        time.sleep(_POLL_S)
    if not is_taken:
        yield None
        return
    own = Taken(_read(taken), taken)
    try:
        yield own
    finally:
        if own.untold.is_done:
            taken.unlink(missing_ok=True)
        else:
            own.keep()
            with suppress(OSError):  # it took so long that another took it for left
                os.rename(taken, path)


def _rename_own(path: Path, taken: Path) -> bool:
    if not _is_private(path.parent):
        return False
    try:
        os.utime(path)  # before the rename: its age tells others that it was just taken
        os.rename(path, taken)
    except OSError:
        return False
    return True


def _is_with_another(path: Path) -> bool:
    try:
        names = files.list_names(path.parent) if _is_private(path.parent) else []
    except OSError:
        return False
    return any(name == path.name or name.startswith(f"{path.name}{_TAKEN}") for name in names)


def _is_private(folder: Path) -> bool:
    """Return whether nobody else can have put anything into the folder: commands may follow."""
    try:
        return is_own(folder) and not folder.lstat().st_mode & _OTHERS_MAY_WRITE
    except OSError:
        return False


def _age_s(folder: Path, name: str) -> float:
    try:
        changed_s = (folder / name).stat().st_mtime
    except OSError:
        return float("inf")
    return files.now_by(folder) - changed_s


def _read(path: Path) -> Untold:
    try:
        untold = files.convert(files.read_json(path), Untold)
        is_copy = untold.folder not in (0, path.parent.stat().st_ino)
    except (msgspec.ValidationError, OSError):  # torn: it is told once more
        return Untold()
    return Untold(is_done=True) if is_copy else untold


def _write(path: Path, untold: Untold) -> None:
    files.write_json(path, msgspec.to_builtins(untold))
