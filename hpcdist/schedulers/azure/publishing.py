"""A run whose nodes have no file system in common with the user, or with each other.

Each node works in a run directory of its own, and a `Publisher` copies what has changed there into
a mounted container of blobs, which outlives the node. There, every file has its name in the run
directory, whichever node wrote it: those of ranks and nodes have their numbers in their names, and
those of an attempt its number. `fetch` brings home what is new. What the submission wrote,
spec.json above all, stays as it is, whatever was published.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import walk
from hpcdist.schedulers.base import Fetched

_OWN_NAMES = (
    *("spec.json", "private.json", "submission.json", "script.sh", "function.pkl", "job.yml"),
    *("figures.msgpack", "remote.json", "sweep.json", "cancel", "summary.txt"),
    *("submitit", "code", "launch"),
)
"""Names in a run directory that mean something to hpcdist and are not for nodes to write. Other
names may be those of the program's own files."""
_OF_NODES = re.compile(r"launch/(?:agent-[0-9]{5,9}\.json|life-[0-9]{5,9}\.ended)")
"""The files that nodes write there all the same, and that are for others to know."""
_HIDDEN = re.compile(r"\.(?!metadata$)")
"""Files that are being written, and not the list of tensors of a checkpoint in parts."""
_VERDICT, _CHECKPOINTS = "verdict.json", "checkpoints/"
_WHOLE = ("events/", "logs/", "attempts/", "checkpoints/step-", _VERDICT)
"""These are written aside and renamed, or a half last line is expected there. Others may be half
written until nobody has changed them for this time:"""
_SETTLED_NS = 2_000_000_000
_PICKLES = "results/"
"""Whoever can write to the storage could have these run code here."""
_MOST_BYTES, _MOST_OF_ONE = 2_000_000_000, 1 << 26
"""So much of a run is brought unasked, and so much of one of its files."""


def is_wanted(path: str) -> bool:
    """Return whether a file of this path may be published: one within the run directory that is
    not hidden, and none of hpcdist's own but those that nodes write."""
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or "\0" in path or any(map(_HIDDEN.match, parts)):
        return False  # `..` is hidden, too
    return bool(parts) and (parts[0] not in _OWN_NAMES or _OF_NODES.fullmatch(path) is not None)


def scan(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return the files in a folder that may be published, by their paths: size, time of the last
    change in nanoseconds, and inode. Links are none."""
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
        """Copy each file that has changed, the verdict last, and remove what is gone here.
        `is_final`: nobody writes to the directory any more, so that nothing is half written. Raises
        OSError, after which it may be called again."""
        present = scan(self._run)
        settled_ns = time.time_ns() - _SETTLED_NS
        for path in sorted(present, key=lambda path: (path == _VERDICT, path)):
            is_whole = is_final or path.startswith(_WHOLE) or present[path][1] <= settled_ns
            if self._published.get(path) != present[path] and is_whole:
                target = self._output / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # it is gone by now
                    with _written_aside(target) as aside:
                        shutil.copyfile(self._run / path, aside, follow_symlinks=False)
                    self._published[path] = present[path]
        for path in self._published.keys() - present.keys():
            (self._output / path).unlink(missing_ok=True)
            del self._published[path]


@contextmanager
def _written_aside(path: Path) -> Iterator[Path]:
    """Yield a name beside a path, and rename it to that where nothing fails."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


class Stored(NamedTuple):
    """A file in a storage, and the Unix time at which it was stored."""

    path: str
    size: int
    time_s: int


class Source(Protocol):
    """A storage that a run is published to. Its errors are OSErrors."""

    def list_files(self) -> Iterable[Stored]: ...

    def copy(self, name: str, to: BinaryIO, *, size: int) -> None:
        """Write the first bytes of a file."""


def fetch(run: Run, source: Source, *, with_checkpoints: bool = False) -> Fetched:
    """Bring what is new, the verdict last; one that is here stays, as that of a run that was
    cancelled. Raises OSError where the source cannot be read, or the run directory cannot be
    written; RunDirectoryError for somebody else's."""
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
        is_large = file.size > min(room, _MOST_OF_ONE) or file.path.startswith(_CHECKPOINTS)
        if is_large and not with_checkpoints:
            left.append(file)
            continue
        room -= file.size
        with suppress(FileNotFoundError, NotADirectoryError):
            here = os.lstat(run.path / file.path)
            is_same = (here.st_size, int(here.st_mtime)) == (file.size, file.time_s)
            if is_same or file.path == _VERDICT:
                continue
        wanted.append(file)
    num_written = 0
    for file in track(wanted, "fetching"):
        path = run.path / file.path
        for part in reversed(PurePosixPath(file.path).parents):
            if (folder := run.path / part).is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, "it is a link", str(folder))
            folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        with suppress(FileNotFoundError):  # replaced at this moment: the next fetch has it
            with _written_aside(path) as aside:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with open(os.open(aside, flags, files.PRIVATE_FILE), "wb") as to:
                    source.copy(file.path, to, size=file.size)
                os.utime(aside, (file.time_s, file.time_s))
            num_written += 1
    return Fetched(num_written, len(left), sum(file.size for file in left))
