"""Tell whether this process runs a command at a host for a laptop (`hpcdist.remote`)."""

from __future__ import annotations

import os

VARIABLE = "HPCDIST_SERVED"
"""The version of the laptop's hpcdist."""
_is_served = False


def begin() -> None:
    """Look whether this process runs for a laptop."""
    global _is_served  # noqa: PLW0603 - there is one command per process
    # Jobs that are submitted would inherit it.
    _is_served = os.environ.pop(VARIABLE, None) is not None


def is_served() -> bool:
    """Return whether this command runs at a host for a laptop."""
    return _is_served
