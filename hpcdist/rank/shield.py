"""Keeping a scheduler's signals from ending ranks and their workers.

Some sites send the warning before the time limit, or before a preemption, to every process of a
job. The agent is among them, and it alone decides what follows: a rank that can stop at a step
boundary, and the workers that feed it, must live until then.
"""

from __future__ import annotations

import os
import signal
import sys

WARNING_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
"""What schedulers send before they end a job; LSF begins with SIGINT."""

RANK_VARIABLE = "HPCDIST_RANK_PID"
"""Tells the children of a rank, whatever they execute, that they belong to one."""


def ignore_warnings() -> None:
    """Make this process, and what it starts from now on, deaf to warnings."""
    for signum in WARNING_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def shield_worker() -> None:
    """Make a DataLoader worker of a rank deaf to warnings; elsewhere nothing changes.

    torch gives its workers a handler by which anybody's SIGTERM but the rank's ends them, and their
    rank with them. That the rank's SIGTERM does not end them either is made up for by
    `kill_workers_at_exit`.
    """
    if RANK_VARIABLE in os.environ:
        ignore_warnings()


def kill_workers_at_exit() -> None:
    """Called by a rank that is about to leave: multiprocessing would send SIGTERM to what is left
    of its daemonic children, and wait for them."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _kill_workers, exitpriority=0)  # after pools, which end their own


def _kill_workers() -> None:
    import multiprocessing

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would take it for a failure
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
