"""A lack of memory, and of room on a disk: from what an exception says to a sentence with figures.

Messages of torch and numpy about memory are those of torch 2.6 to 2.15:

CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which
1.03 GiB is free. [...] Of the allocated memory 75.20 GiB is allocated by PyTorch, and [...]

DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000000 bytes. Error code 12
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.text import show_bytes

_UNITS = {
    unit: 1024**power
    for power, unit in enumerate(("bytes", "kib", "mib", "gib", "tib", "pib", "eib"))
}
_SIZE = rf"([\d.]+) ((?i:{'|'.join(_UNITS)}))"
_SIZES = {
    "asked_bytes": re.compile(rf"(?:tried|unable) to allocate {_SIZE}", re.IGNORECASE),
    "total_bytes": re.compile(rf"total capacity of {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free"),
    "allowed_bytes": re.compile(rf"(?<!\d){_SIZE} allowed"),
    "used_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "reserved_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
"""Field of Shortage -> where it stands."""
_MOST_OF_FULL = 0.01
"""Free share of a disk that counts as full: what failed to be written may be gone again."""
_GPU = re.compile(r"GPU (\d+) has a total capacity")
_TELLS = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE
)


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A request for memory that failed, in bytes; None: not said."""

    asked_bytes: int
    gpu: int | None = None
    """Index, as the process counts its GPUs; None: memory of the host."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    allowed_bytes: int | None = None
    """Limit of a process that is allowed a part of the GPU only."""
    used_bytes: int | None = None
    """Held by tensors of this process."""
    reserved_bytes: int | None = None
    """Held for later tensors, in pieces too small for this one."""


def tells_of_shortage(exception: str, message: str) -> bool:
    """Return True where an exception of this type, with its module, is about a lack of memory."""
    name = exception.rpartition(".")[2]
    if name in {"MemoryError", "_ArrayMemoryError", "OutOfMemoryError"}:
        return True
    # What CUDA itself says, such as when it starts, is an AcceleratorError from torch 2.8 on.
    # NCCL says it in its own error.
    said_by = {"RuntimeError", "OSError", "AcceleratorError", "DistBackendError"}
    return name in said_by and bool(_TELLS.search(message))


def parse_shortage(message: str) -> Shortage | None:
    """Return the figures in an exception's message; None where it holds none."""
    found = {
        field: int(float(match[1]) * _UNITS[match[2].lower()])
        for field, pattern in _SIZES.items()
        if (match := pattern.search(message))
    }
    if "asked_bytes" not in found:
        return None
    gpu = _GPU.search(message)
    return Shortage(gpu=int(gpu[1]) if gpu else None, **found)


def shortage_sentence(shortage: Shortage) -> str:
    """Return a sentence: `2.15 GB were asked for, 1.11 GB of GPU 0's 84.99 GB were free`."""
    parts = [f"{_gb(shortage.asked_bytes)} were asked for"]
    if shortage.free_bytes is not None and shortage.total_bytes is not None:
        whose = "" if shortage.gpu is None else f"GPU {shortage.gpu}'s "
        free, total = _gb(shortage.free_bytes), _gb(shortage.total_bytes)
        parts.append(f"{free} of {whose}{total} were free")
    elif shortage.free_bytes is not None:
        parts.append(f"{_gb(shortage.free_bytes)} were left to the rank on its host")
    if shortage.allowed_bytes is not None:
        parts.append(f"this process is allowed {_gb(shortage.allowed_bytes)}")
    if shortage.used_bytes is not None:
        parts.append(f"its tensors held {_gb(shortage.used_bytes)}")
    if shortage.reserved_bytes is not None and shortage.reserved_bytes >= shortage.asked_bytes:
        parts.append(
            f"{_gb(shortage.reserved_bytes)} were held in pieces (as a variable in the cluster "
            "profile, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can avoid that)"
        )
    return ", ".join(parts)


def full_disk(error: BaseException, places: Sequence[Path]) -> str | None:
    """Return a sentence on the disk that had no room, where an exception is about that: the disk of
    the file that it names, or the fullest of those with `places`; None where none of these is
    full."""
    found = files.find_full(error)
    try:
        number = found.errno if found else _full_in_text(str(error))
        if number is None:
            return None
        if found is not None and isinstance(found.filename, str | bytes):
            mount = _mount_of(Path(os.fsdecode(found.filename)))
            return _why_full(number, mount) or f"no room was left on the disk {mount}"
        mounts = sorted({_mount_of(place) for place in places}, key=_free_bytes)
        return next(filter(None, (_why_full(number, mount) for mount in mounts)), None)
    except Exception:  # noqa: BLE001 - __str__ is the user's code, and a disk may be gone
        return None


def _full_in_text(text: str) -> int | None:
    """Return the number of the error that a message of another process or library repeats."""
    return next((number for number in files.FULL if os.strerror(number) in text), None)


def _why_full(number: int, mount: str) -> str | None:
    if number == errno.EDQUOT:
        return f"your quota on the disk {mount} is used up"
    disk, free_bytes = os.statvfs(mount), _free_bytes(mount)
    total_bytes = disk.f_blocks * disk.f_frsize
    if free_bytes <= _MOST_OF_FULL * total_bytes:
        free = f"{show_bytes(free_bytes)} of {show_bytes(total_bytes)} are free"
        return f"the disk {mount} is full: {free}"
    has_inodes = disk.f_favail or not disk.f_files
    return (
        None if has_inodes else f"the disk {mount} can take no more files: its inodes are used up"
    )


def _free_bytes(mount: str) -> int:
    disk = os.statvfs(mount)
    return disk.f_bavail * disk.f_frsize


def _mount_of(place: Path) -> str:
    folder = os.path.realpath(place)
    while not os.path.ismount(folder):
        folder = os.path.dirname(folder)
    return folder


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
