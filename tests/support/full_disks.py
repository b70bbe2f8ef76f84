"""Disks without room."""

import contextlib


def fill(folder):
    """Leave no byte on a disk but what runs there hold back."""
    with open(folder / "of-others", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
