"""Lack of room on a disk, or of memory, in a rank, by the few signs that are sure."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hpcdist.base import files

_ROOM_OF_A_LINE = 1 << 16
"""Free bytes of a disk that takes another line of a log for certain."""
_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE
)


def places_of_writing(run_folder: Path) -> list[Path]:
    """Return the folders that any rank may write to, whatever its program is."""
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108
    return [run_folder, Path(), temporary, Path("/dev/shm")]  # noqa: S108


def full_disk(error: BaseException | None, places: Sequence[Path]) -> str | None:
    """Return a sentence on the disk that had no room: that of the file which an exception names, or
    the first of these places that is full; None where nothing says so."""
    found = files.find_full(error)
    what = "the disk is full"
    if found is not None and found.errno == errno.EDQUOT:
        what = "your quota is used up"
    if found is not None and isinstance(found.filename, str | bytes):
        return f"{what}: {os.fsdecode(found.filename)}"
    for place in places:
        with contextlib.suppress(OSError):  # the disk is gone
            disk = os.statvfs(place)
            no_bytes = disk.f_blocks and disk.f_bavail * disk.f_frsize < _ROOM_OF_A_LINE
            no_files = disk.f_files and not disk.f_favail
            if (no_bytes or no_files) and os.access(place, os.W_OK):
                return f"{what}: {os.path.realpath(place)}"
    return None if found is None else what


def is_about_full_disk(text: str) -> bool:
    """Return True where a message repeats the error of a disk, or a quota, that is full."""
    return any(os.strerror(number) in text for number in files.FULL)


def is_about_memory(exception: str, message: str) -> bool:
    """Return True where an exception of this type, with its module, is about a lack of memory."""
    name = exception.rpartition(".")[2]
    if name in {"MemoryError", "_ArrayMemoryError", "OutOfMemoryError"}:
        return True
    # What CUDA itself says, such as when it starts, is an AcceleratorError from torch 2.8 on.
    # NCCL says it in its own error.
    said_by = {"RuntimeError", "OSError", "AcceleratorError", "DistBackendError"}
    return name in said_by and bool(_NO_MEMORY.search(message))
