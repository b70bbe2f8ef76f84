"""A run whose nodes have no file system in common with the user, or with each other.

Each node works in a run directory of its own, and a `Publisher` copies what has changed there into
a storage that outlives the node, such as a mounted container of blobs. There, every file has its
name in the run directory, whichever node wrote it: those of ranks and nodes have their numbers in
their names, and those of an attempt its number. `fetch` brings home what is new in the storage.
What the submission wrote, spec.json above all, stays as it is, whatever was published.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import walk

OWN_NAMES = frozenset(
    {
        *("spec.json", "private.json", "submission.json", "script.sh", "function.pkl", "job.yml"),
        *("figures.msgpack", "remote.json", "sweep.json", "cancel", "summary.txt"),
        *("submitit", "code", "launch"),
    }
)
"""Names in a run directory that mean something to hpcdist and are not for nodes to write: none is
published, and none is replaced. Other names may be those of the program's own files."""
_OF_NODES = re.compile(
    r"launch/(?:agent-[0-9]{5,9}\.json|container-[0-9]{5,9}\.json|life-[0-9]{5,9}\.ended)"
)
"""The files that nodes write into folders of OWN_NAMES, and that are for others to know."""
_HIDDEN = re.compile(r"\.(?!metadata$)")
"""Files that are being written, and not the list of tensors of a checkpoint in parts."""
_VERDICT = "verdict.json"
_SETTLED_S = 2.0
"""A file that was written to that shortly ago may be half written."""
_WHOLE = ("events/", "logs/", "attempts/", "checkpoints/step-", _VERDICT)
"""These are written aside and renamed, or a half last line is expected there."""
_CHECKPOINTS = "checkpoints/"
_PICKLES = "results/"
"""Whoever can write to the storage could have these run code here."""
_MOST_UNASKED_BYTES = 1 << 26
"""Larger files are brought where that is asked for, as checkpoints are."""
_MOST_BYTES = 2_000_000_000
"""So much of a run is brought unasked."""

Signature: TypeAlias = tuple[int, int, int]
"""Size, time of the last change in nanoseconds, and inode of a file."""


def is_wanted(path: str) -> bool:
    """Return whether a file of this path may be published: one within the run directory that is
    not hidden, and none of hpcdist's own but those that nodes write."""
    parts = PurePosixPath(path).parts
    if not parts or path != "/".join(parts) or path.startswith("/") or "\0" in path:
        return False
    if ".." in parts or any(map(_HIDDEN.match, parts)):
        return False
    return parts[0] not in OWN_NAMES or _OF_NODES.fullmatch(path) is not None


def scan(folder: Path) -> dict[str, Signature]:
    """Return the files in a folder that may be published, by their paths. Links are none."""
    return {
        path: (status.st_size, status.st_mtime_ns, status.st_ino)
        for path, status, target in walk(folder)
        if not target and is_wanted(path)
    }


class Publisher:
    """Publishes the run directory of a node."""

    def __init__(self, run: Path, output: Path) -> None:
        """Begin with what the directory holds by now: that is in the storage already."""
        self._run, self._output = run, output
        self._published = scan(run)

    def publish(self, *, is_final: bool = False) -> None:
        """Copy each file that has changed, and remove what is gone here. `is_final`: nobody writes
        to the directory any more, so that nothing is half written. Raises OSError, after which it
        may be called again."""
        present = scan(self._run)
        settled_ns = time.time_ns() - int(_SETTLED_S * 1e9)
        for path in sorted(present, key=lambda path: (path == _VERDICT, path)):
            is_whole = is_final or path.startswith(_WHOLE) or present[path][1] <= settled_ns
            if self._published.get(path) != present[path] and is_whole:
                with suppress(FileNotFoundError):  # it is gone by now
                    self._copy(path)
                    self._published[path] = present[path]
        for path in self._published.keys() - present.keys():
            (self._output / path).unlink(missing_ok=True)
            del self._published[path]

    def _copy(self, path: str) -> None:
        target = self._output / path
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            shutil.copyfile(self._run / path, aside, follow_symlinks=False)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)


class Stored(NamedTuple):
    """A file in a storage."""

    path: str
    size: int
    time_s: int
    """Unix time at which it was stored."""


class Source(Protocol):
    """A storage that a run is published to. Its errors are OSErrors."""

    def list_files(self) -> Iterable[Stored]: ...

    def copy(self, name: str, to: BinaryIO, *, size: int) -> None:
        """Write the first bytes of a file."""


class Fetched(NamedTuple):
    """The outcome of a fetch."""

    num_files: int
    """Files that were written."""
    num_left: int
    """Checkpoints and other large files that are still where they were published."""
    left_bytes: int


def fetch(run: Run, source: Source, *, with_checkpoints: bool = False) -> Fetched:
    """Bring what is new, the verdict last. Raises OSError where the source cannot be read, or the
    run directory cannot be written; RunDirectoryError for somebody else's."""
    if not is_own(run.path):
        raise RunDirectoryError(
            f"{run.path} is another user's: nothing is downloaded to it",
            hint="its owner can fetch it",
        )
    stored = list(islice(source.list_files(), files.MOST_ENTRIES + 1))
    if len(stored) > files.MOST_ENTRIES:
        raise OSError(errno.EFBIG, "more was published than is read", str(run.path))
    wanted, left, room = [], [], _MOST_BYTES
    for file in sorted(stored, key=lambda file: (file.path == _VERDICT, file.path)):
        if not is_wanted(file.path) or file.path.startswith(_PICKLES):
            continue
        room -= file.size
        is_large = file.path.startswith(_CHECKPOINTS) or file.size > _MOST_UNASKED_BYTES
        if (is_large or room < 0) and not with_checkpoints:
            left.append(file)
        elif not _is_here(run, file):
            wanted.append(file)
    num_written = 0
    for file in track(wanted, "fetching"):
        with suppress(FileNotFoundError):  # replaced at this moment: the next fetch has it
            _bring(run, source, file)
            num_written += 1
    return Fetched(num_written, len(left), sum(file.size for file in left))


def _is_here(run: Run, file: Stored) -> bool:
    """Return whether a file was brought as it is now. A verdict that is here stays, as that of a
    run that was cancelled."""
    try:
        status = os.lstat(run.path / file.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    is_same = (status.st_size, int(status.st_mtime)) == (file.size, file.time_s)
    return is_same or file.path == _VERDICT


def _bring(run: Run, source: Source, file: Stored) -> None:
    """Write a file into a run directory, whole or not at all, and through no link."""
    path = run.path / file.path
    for part in reversed(PurePosixPath(file.path).parents):
        inner = run.path / part
        if inner.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "it is a link", str(inner))
        inner.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.PRIVATE_FILE)
        with open(descriptor, "wb") as to:
            source.copy(file.path, to, size=file.size)
        os.utime(aside, (file.time_s, file.time_s))
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
