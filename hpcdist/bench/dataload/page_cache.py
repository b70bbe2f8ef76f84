"""Having the system forget files that it keeps in memory, so that a first pass reads storage."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence
from typing import Literal

Temperature = Literal["cold", "warm", "unknown"]

_ASKED = 64
_MOSTLY = 0.1  # fewer than this share in memory: cold


def forget(paths: Iterable[str]) -> None:
    """Ask the system to drop what it has of these files in memory.

    It does not drop what is not written to storage yet, nor what others have mapped, and some file
    systems know no such thing: `temperature` says what came of it.
    """
    for path in paths:
        with contextlib.suppress(OSError):  # a file that cannot be read is told where it is loaded
            file = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def temperature(paths: Sequence[str]) -> Temperature:
    """Whether files are in memory, by the first bytes of some of them; asking reads nothing."""
    step = max(1, len(paths) // _ASKED)
    answers = [_is_in_memory(path) for path in paths[::step]]
    known = [answer for answer in answers if answer is not None]
    if not known:
        return "unknown"
    return "cold" if sum(known) < _MOSTLY * len(known) else "warm"


def _is_in_memory(path: str) -> bool | None:
    """None where the file system does not say."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None
    finally:
        os.close(file)
