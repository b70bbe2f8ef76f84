"""Processes that may have few open files."""

import resource


def leave_few():
    """A change: fewer than any agent needs, which nobody can raise."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
