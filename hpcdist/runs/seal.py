"""The seal of a submission: by it a job knows that what it finds is what was submitted.

Whoever may write the folder of the runs could put other files in the place of a job's while it
waits. So the script, which the scheduler keeps, has the digest of tasks.sha256, that file those of
submitit's pickles beside it, and each pickle those of its run's files. Every node checks them, and
that the folders are the user's own, before it loads anything; and again in each life of the job.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError
from hpcdist.base.ownership import owner_name
from hpcdist.runs.run import Run

PLACEHOLDER = "SEAL-OF-THIS-JOB"
"""Stands in a rendered script, before there is something to seal."""

_TASKS = "tasks.sha256"
_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 1e9
_HINT = "submit it again, with --runs or HPCDIST_RUNS into a folder that only you can write"


class BrokenSealError(HpcdistError):
    """A job finds something else than what was submitted, or what somebody else could change."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}: nothing of it was run", hint=_HINT)


# Before the submission.


def seal_run(run: Run) -> dict[str, str]:
    """Return the digests of what agents read of a run, by the names of the files."""
    paths = (run.spec_file, run.private_file, run.function_file)
    return {path.name: digest_of(path) for path in paths if path.exists()}


def seal_tasks(pickles: Iterable[Path], folder: Path) -> str:
    """Write the digests of a job's pickles into their folder; return the digest for the script."""
    lines = [f"{digest_of(path)}  {path.name}\n" for path in pickles]
    content = "".join(lines).encode()
    files.write_whole(folder / _TASKS, content)
    return hashlib.sha256(content).hexdigest()


# In the job.


def check_folder(folder: Path, *, with_content: bool = True) -> None:
    """Raise BrokenSealError where a folder, or what is right in it, is not this user's own, is a
    link in its place, or others may write it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        why = "a link stands in its place" if folder.is_symlink() else error.strerror
        raise BrokenSealError(f"{folder}: {why}") from None
    try:
        status = os.fstat(descriptor)
        _check_owner(folder, status)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BrokenSealError(f"{folder} can be written by others (chmod go-w forbids it)")
        for name in os.listdir(descriptor) if with_content else ():
            with suppress(FileNotFoundError):  # renamed at this moment, by the submitter
                inner = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                _check_owner(folder / name, inner)
    finally:
        os.close(descriptor)


def read_task(pickle: Path, *, listed_as: str, seal: str | None) -> bytes:
    """Return the content of a pickle, which stands under a name in tasks.sha256.

    Of a job that waited while hpcdist was replaced there may be no seal.
    """
    if seal is None:
        return read_own(pickle)
    folder = pickle.parent
    listing = _read_sealed(folder / _TASKS, seal)
    digests = {name: digest for digest, _, name in map(_parted, listing.decode().splitlines())}
    return _read_sealed(pickle, digests.get(listed_as, ""))


def read_run(run: Run, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Return the content of a run's files by their names; of the function that was submitted, which
    only the ranks load, none."""
    check_folder(run.path)
    function = run.function_file.name
    if function in digests and digest_of(run.function_file) != digests[function]:
        raise _changed(run.function_file)
    names = [name for name in digests if name != function]
    return {name: _read_sealed(run.path / name, digests[name]) for name in names}


def read_own(path: Path) -> bytes:
    """Return the content of a file; BrokenSealError where it is not this user's own."""
    try:
        with files.open_regular(path, most_bytes=_MOST_BYTES) as file:
            _check_owner(path, os.fstat(file.fileno()))
            return file.readall()
    except OSError as error:
        raise BrokenSealError(f"{path} cannot be read: {error.strerror}") from None


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition("  ")


def _read_sealed(path: Path, digest: str) -> bytes:
    content = read_own(path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise _changed(path)
    return content


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; empty where there is none."""
    digest = hashlib.sha256()
    try:
        with files.open_regular(path, most_bytes=float("inf")) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        return ""
    return digest.hexdigest()


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        owner, user = owner_name(status.st_uid), owner_name(os.geteuid())
        raise BrokenSealError(f"{path} belongs to {owner}, and the job is {user}'s")


def _changed(path: Path) -> BrokenSealError:
    return BrokenSealError(f"{path} is not what was submitted")
