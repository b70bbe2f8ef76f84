"""Opening a pickle of a run: only one that is the caller's own, as loading it may run anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_private(path: Path) -> BinaryIO:
    """The file, to read; PermissionError where others own it, or could write or read it."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")  # noqa: SIM115 - it is returned
    found = os.fstat(file.fileno())
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        file.close()
        raise PermissionError(f"{path} is not private to the user who reads it: it is not loaded")
    return file
