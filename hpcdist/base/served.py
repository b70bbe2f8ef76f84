"""Tell whether this process runs a command at a host for a laptop (`hpcdist.remote`)."""

from __future__ import annotations

import os
import sys

from hpcdist.base.version import __version__

VARIABLE = "HPCDIST_SERVED"
"""The version of the laptop's hpcdist."""
_is_served = False


def begin() -> None:
    """Look whether this process runs for a laptop, and say where the versions differ."""
    global _is_served  # noqa: PLW0603 - there is one command per process
    version = os.environ.pop(VARIABLE, None)  # jobs that are submitted would inherit it
    _is_served = version is not None
    if version not in (None, __version__):
        print(
            f"note: this host has hpcdist {__version__}, your machine {version}; update one",
            file=sys.stderr,
        )


def is_served() -> bool:
    """Return whether this command runs at a host for a laptop."""
    return _is_served
