"""The copy of the user's work tree that a run, or all runs of a sweep, start from.

    <runs>/<run or sweep id>/code/    files, readable only; folders can be written to, for what a
                                      job leaves in them

A file that is as in the last copy of the same work tree is a hard link to the file there.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from hpcdist.base import files
from hpcdist.base.ownership import is_own
from hpcdist.runs.run import ID, Run, cannot_write
from hpcdist.runs.snapshot import Entry, SnapshotPlan, in_threads, open_original
from hpcdist.runs.spec import RunSpec

FOLDER = "code"
RECEIVED = re.compile(r"\.tree-[0-9a-f]{8}")
"""Name of a folder with a work tree that a laptop has sent for one command."""

_FILE = 0o400
_EXECUTABLE = 0o500
_CHUNK_BYTES = 1 << 20
_MOST_LOOKED_AT = 100
"""Submissions among which the last copy of the work tree is looked for."""


def copy_code(plan: SnapshotPlan, owner: Path) -> str:
    """Copy a work tree into the folder of a run or a sweep, which nobody else knows yet; return the
    digest of what is there.

    Raises UserError where a file cannot be read any more, and RunDirectoryError.
    """
    copy, former = owner / FOLDER, plan.root
    if plan.root == plan.source:  # else it was made here, and its own files can be linked to
        former = str(find_copy(owner.parent, plan.source) or "")
    try:
        copy.mkdir(mode=files.PRIVATE_FOLDER)
        for path in sorted({os.path.dirname(entry.path) for entry in plan.entries} - {""}):
            os.makedirs(copy / path, mode=files.PRIVATE_FOLDER, exist_ok=True)
        digests = in_threads(
            lambda entry: _put(plan, entry, str(copy), former),
            plan.entries,
            what="copying the work tree",
        )
    except OSError as error:
        raise cannot_write(owner.parent, error) from None
    return digest_of(
        {entry.path: digest for entry, digest in zip(plan.entries, digests, strict=True)}
    )


def digest_of(contents: Mapping[str, str]) -> str:
    """Return one digest of all that a job sees, from that of each file or link by its path."""
    digest = hashlib.sha256()
    for path in sorted(contents):
        digest.update(os.fsencode(path) + b"\0" + os.fsencode(contents[path]) + b"\0")
    return digest.hexdigest()


def _put(plan: SnapshotPlan, entry: Entry, copy: str, former: str) -> str:
    """Put a file or a link into a copy; return what tells it from others of its path."""
    path = os.path.join(copy, entry.path)
    if entry.target:
        os.symlink(entry.target, path)
        return f"link to {entry.target}"
    mode = _EXECUTABLE if entry.is_executable else _FILE
    with open_original(os.path.join(plan.root, entry.path)) as original:
        if former and (digest := _link(original, os.path.join(former, entry.path), path, mode)):
            return digest
        original.seek(0)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            return _digest_through(original, copy_to=file)


def _link(original: FileIO, former: str, path: str, mode: int) -> str | None:
    """Make `path` a hard link to a file of a former copy that holds what `original` holds; return
    the digest. None where the file is another, can be written to, or no link can be made."""
    try:
        with _open(former) as file:
            status = os.fstat(file.fileno())
            is_copy = (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), mode)
            if not is_copy or status.st_size != os.fstat(original.fileno()).st_size:
                return None
            digest = _digest_through(original)
            if _digest_through(file) != digest:
                return None
            os.link(former, path, follow_symlinks=False)
        linked = os.lstat(path)
    except OSError:  # the file system has no hard links, say
        return None
    if (linked.st_dev, linked.st_ino) == (status.st_dev, status.st_ino):
        return digest
    os.unlink(path)
    return None


def _open(path: str) -> FileIO:
    return files.open_regular(path, most_bytes=math.inf, flags=os.O_NOFOLLOW)


def _digest_through(file: BinaryIO, copy_to: BinaryIO | None = None) -> str:
    """Return the SHA-256 of a file's bytes, which are written elsewhere on the way."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return digest.hexdigest()


def find_copy(runs: Path, source: str) -> Path | None:
    """Return the copy of a work tree that was made last among these runs; None without one."""
    newest: dict[str, str] = {}
    with suppress(OSError):
        for name in files.list_names(runs):
            if (match := ID.fullmatch(name)) is not None:
                submission = match["submission"]  # all runs of a sweep have one copy
                newest[submission] = max(name, newest.get(submission, ""))
    by_time = sorted(newest, key=lambda name: name.rsplit("-", 3)[1:3], reverse=True)
    for submission in by_time[:_MOST_LOOKED_AT]:
        run = Run(runs / newest[submission])
        spec = run.read_spec()
        is_of_tree = spec is not None and spec.snapshot and spec.snapshot.source == source
        if is_of_tree and (copy := find_code(run, spec)) is not None:
            return copy
    return None


def find_code(run: Run, spec: RunSpec | None) -> Path | None:
    """Return the copy that a run starts from, its own or that of its sweep, beside which it lies;
    None where there is none, or it is another user's."""
    if spec is None or spec.snapshot is None or spec.snapshot.folder is None:
        return None
    owner = Path(spec.snapshot.folder).parent.name
    copy = run.path.parent / owner / FOLDER
    is_there = owner != ".." and not copy.parent.is_symlink() and not copy.is_symlink()
    return copy if is_there and is_own(copy.parent) and is_own(copy) else None


def find_received(cwd: Path) -> SnapshotPlan | None:
    """Return the plan for a folder in a work tree that a laptop has sent; None elsewhere."""
    here = Path(os.path.realpath(cwd))
    for root in (here, *here.parents):
        if RECEIVED.fullmatch(root.name) and is_own(root):
            entries = [
                Entry(path, status.st_size, bool(status.st_mode & stat.S_IXUSR), target)
                for path, status, target in _walk(root)
            ]
            return SnapshotPlan(
                root=str(root), source=str(root.parent), cwd=str(here), entries=entries, notes=[]
            )
    return None


def read_contents(copy: Path) -> dict[str, str]:
    """Return the digest of each file in a copy, and where links lead, without what jobs wrote
    there."""
    found = {}
    for path, status, target in _walk(copy):
        if target:
            found[path] = f"link to {target}"
        elif not status.st_mode & stat.S_IWUSR:
            with suppress(OSError), _open(os.path.join(copy, path)) as file:
                found[path] = _digest_through(file)
    return found


def find_written(copy: Path) -> Path | None:
    """Return a file that a job wrote into a copy: it can be written to, as those that were copied
    cannot. Bytecode does not count."""
    for path, status, target in _walk(copy):
        is_bytecode = "__pycache__" in path.split("/")
        if not target and not is_bytecode and status.st_mode & stat.S_IWUSR:
            return copy / path
    return None


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result, str]]:
    """Yield path, status and target of all files and links, in order; links are not followed."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*names, *links]):
            place = os.path.join(parent, name)
            with suppress(FileNotFoundError):  # removed at this moment
                status = os.lstat(place)
                is_link = stat.S_ISLNK(status.st_mode)
                if is_link or stat.S_ISREG(status.st_mode):
                    target = os.readlink(place) if is_link else ""
                    yield os.path.relpath(place, folder), status, target
