"""Room on disks, /dev/shm among them: from what a rank leaves at its end to the disk that was full.

Many errors name no file: that of `write` has a number only, those of torch's writers have neither
(`unexpected pos 576 vs 534`), and a program without Python has only its log. A full disk is then
looked for among those that the rank had to do with.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.text import show_bytes

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - no file is made there
_MOST_OF_FULL = 0.01
"""Free share of a disk that counts as full: what failed to be written may be gone again."""
_MOST_VALUES = 2000
"""Values in the frames of a traceback that are looked at."""
_ROOM_OF_A_LINE = 1 << 16
"""Free bytes of a disk that takes another line of a log for certain."""
_MOST_OF_PATH = 4096
_MOST_LETTERS = 200
"""Letters of a log's line in a sentence."""
_SHORT_WRITE = re.compile(
    r"iostream error|file write failed|PytorchStreamWriter failed|unexpected pos \d+ vs \d+"
    r"|\d+ requested and \d+ written"
)
"""Messages of torch (2.6 to 2.15) and numpy about a write that failed, for whatever reason."""
_OF_SHARED_MEMORY = re.compile(r"shared memory|\(shm\)|</torch_\d+", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.</])/[^\s'\"`:,;<>()]+")
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"})
"""Types of file systems that answer at once: of others, the server may be gone."""


def places_of_writing(run_folder: Path) -> list[Path]:
    """Return the folders that any rank may write to, whatever its program is."""
    return [run_folder, Path(), Path(os.environ.get("TMPDIR", "/tmp"))]  # noqa: S108


def full_disk(error: BaseException, places: Sequence[Path]) -> str | None:
    """Return a sentence on the disk that had no room, where an exception is about that, with what
    to do: the disk of the file that it names, or one that is full; None where none is."""
    try:
        found = files.find_full(error)
        text = "\n".join(map(str, files.causes(error)))
        number = found.errno if found else _number_in(text)
        if number is None and not _SHORT_WRITE.search(text):
            return None
        if found is not None and isinstance(found.filename, str | bytes):
            mount = _mount_of(os.fsdecode(found.filename))
            return _why_full(mount, number) or f"no space was left on the disk {mount}"
        if _OF_SHARED_MEMORY.search(text):
            return why_no_shared_memory()
        return find_full_disk([_named_in(text), _held_by(error), places, _local_mounts()], number)
    except Exception:  # noqa: BLE001 - __str__ is the user's code, and a disk may be gone
        return None


def full_disk_in_log(lines: Sequence[str], places: Sequence[Path]) -> str | None:
    """Return a sentence on the disk that had no room for a rank that left without an exception: by
    the last line of its log that tells of one; or, for that line may have had no room, one of
    `places` that is full."""
    try:
        line = next((line for line in reversed(lines) if _number_in(line)), None)
        if line is None:
            return find_full_disk([[p for p in places if _free_bytes(p) < _ROOM_OF_A_LINE]], None)
        shared = [SHARED_MEMORY] if _OF_SHARED_MEMORY.search(line) else []
        named = [*shared, *_named_in(line)]
        found = find_full_disk([named, places, _local_mounts()], _number_in(line))
        return found or f"its log says: {' '.join(line.split())[:_MOST_LETTERS]}"
    except OSError:  # a disk is gone
        return None


def is_about_full_disk(text: str) -> bool:
    """Return True where a message repeats the error of a disk, or a quota, that is full."""
    return _number_in(text) is not None


def find_full_disk(groups: Sequence[Iterable[str | Path]], number: int | None) -> str | None:
    """Return a sentence on a disk that is full: of the first group of paths that has one, the one
    with the least room. Of a quota that is used up nobody can say which one it is where there are
    several."""
    for group in groups:
        mounts = {_mount_of(path) for path in group}
        if number == errno.EDQUOT and mounts:
            return _of_quota(sorted(mounts))
        for mount in sorted(mounts, key=_free_bytes):
            if sentence := _why_full(mount, number):
                return sentence
    return None


def why_bus_error(places: Sequence[Path]) -> str:
    """Return a sentence on SIGBUS: there was no room for a page of a file that is mapped."""
    try:
        if found := find_full_disk([places], None):
            return found
    except OSError:  # a disk is gone
        return "there was no space for what it had mapped, or its disk is gone"
    return f"there was no space for what it had mapped; {why_no_shared_memory()}"


def why_no_shared_memory() -> str:
    """Return a sentence on shared memory that somebody found full: those who filled it may be gone,
    or have asked for more than it has."""
    if found := find_full_disk([[SHARED_MEMORY]], None):
        return found
    disk = os.statvfs(SHARED_MEMORY)
    size = f"{show_bytes(disk.f_blocks * disk.f_frsize)} in all"
    return f"the shared memory {SHARED_MEMORY}, {size}, may be too small ({_advice(SHARED_MEMORY)})"


def _number_in(text: str) -> int | None:
    """Return the number of the error that a message of another process or library repeats."""
    return next((number for number in files.FULL if os.strerror(number) in text), None)


def _named_in(text: str) -> list[str]:
    """Return the paths in a message that are there."""
    return [path for path in _PATH.findall(text) if os.path.lexists(path)]


def _held_by(error: BaseException) -> list[str]:
    """Return the paths, and those of the files, that the frames of an exception hold."""
    values = islice(_values_in_frames(error), _MOST_VALUES)
    paths = (
        getattr(value, "name", None) if isinstance(value, io.IOBase) else value for value in values
    )
    return [str(path) for path in paths if isinstance(path, str | Path) and _is_path(str(path))]


def _is_path(text: str) -> bool:
    return text.startswith("/") and len(text) < _MOST_OF_PATH and "\0" not in text


def _values_in_frames(error: BaseException) -> Iterator[object]:
    for each in files.causes(error):
        trace = each.__traceback__
        while trace is not None:
            yield from list(trace.tb_frame.f_locals.values())
            trace = trace.tb_next


def _why_full(mount: str, number: int | None) -> str | None:
    if number == errno.EDQUOT:
        return _of_quota([mount])
    disk, free_bytes = os.statvfs(mount), _free_bytes(mount)
    total_bytes = disk.f_blocks * disk.f_frsize
    if free_bytes <= _MOST_OF_FULL * total_bytes:
        free = f"{show_bytes(free_bytes)} of {show_bytes(total_bytes)} are free"
        return f"{_name(mount)} is full: {free} ({_advice(mount)})"
    if disk.f_favail or not disk.f_files:
        return None
    return f"{_name(mount)} can take no more files: its inodes are used up ({_advice(mount)})"


def _of_quota(mounts: Sequence[str]) -> str:
    return f"your quota on the disk {' or '.join(mounts)} is used up ({_advice(mounts[0])})"


def _name(mount: str) -> str:
    return f"the shared memory {mount}" if mount == SHARED_MEMORY else f"the disk {mount}"


def _advice(mount: str) -> str:
    if mount == SHARED_MEMORY:
        return "use fewer workers that load data; in a container, give it more, as by --shm-size"
    return "delete what is not needed there, or write elsewhere"


def _free_bytes(path: str | Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _mount_of(path: str | Path) -> str:
    folder = os.path.realpath(path)
    while not os.path.ismount(folder):
        folder = os.path.dirname(folder)
    return folder


def _local_mounts() -> list[str]:
    """Return the disks of this machine that this user may write to, without those of servers."""
    lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    mounts = (line.split() for line in lines)
    found = [
        folder.encode().decode("unicode_escape") for _, folder, kind, *_ in mounts if kind in _LOCAL
    ]
    return [folder for folder in found if os.path.isdir(folder) and os.access(folder, os.W_OK)]
