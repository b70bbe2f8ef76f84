"""Disks without room."""

import contextlib


def fill(folder, mode="wb"):
    """Leave no byte on a disk but what runs there hold back."""
    with open(folder / "of-others", mode, buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
