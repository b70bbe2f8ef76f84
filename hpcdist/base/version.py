"""Version of hpcdist, and whether another one, a laptop's, has this process run a command for it at
a host (`hpcdist.remote`)."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

__version__ = "0.1.0"

_PACKAGES = ("torch", "torchvision", "pytorch-lightning", "numpy", "submitit")

SERVED_VARIABLE = "HPCDIST_SERVED"
"""The version of the laptop's hpcdist."""
_is_served = False


def versions() -> dict[str, str | None]:
    """Versions of Python, hpcdist and the packages that results depend on; imports none of them."""
    from importlib import metadata

    found: dict[str, str | None] = {"python": sys.version.split()[0], "hpcdist": __version__}
    for package in _PACKAGES:
        found[package] = None
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def begin_command() -> None:
    """Look whether this process runs for a laptop."""
    global _is_served  # noqa: PLW0603 - there is one command per process
    # Jobs that are submitted would inherit it.
    _is_served = os.environ.pop(SERVED_VARIABLE, None) is not None


def is_served() -> bool:
    """Return whether this command runs at a host for a laptop."""
    return _is_served
