"""Tell whether this process runs a command at a host for a laptop (`hpcdist.remote.serve`)."""

from __future__ import annotations

_is_served = False  # no variable: jobs that are submitted would inherit it


def serve() -> None:
    """Take it that this process runs for a laptop."""
    global _is_served  # noqa: PLW0603 - there is one command per process
    _is_served = True


def is_served() -> bool:
    """Return whether this command runs at a host for a laptop."""
    return _is_served
