"""Keeping a scheduler's signals from ending ranks and their workers.

Some sites send the warning before the time limit, or before a preemption, to every process of a
job. The agent is among them, and it alone decides what follows: a rank that can stop at a step
boundary, and the workers that feed it, must live until then.
"""

from __future__ import annotations

import os
import signal
import threading

WARNING_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""What schedulers send before they end a job."""


def ignore_warnings() -> None:
    """Make this process, and what it starts from now on, deaf to warnings."""
    for signum in WARNING_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def shield_worker() -> None:
    """Make a DataLoader worker deaf to warnings; SIGTERM of its rank, its parent, still ends it.

    torch gives its workers a handler in C by which any other's SIGTERM kills them, and their rank
    with them. A handler of Python's cannot tell who sent a signal; one who waits for it can.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, WARNING_SIGNALS)
    parent = os.getppid()
    threading.Thread(target=_end_when_asked_by, args=(parent,), daemon=True).start()


def _end_when_asked_by(parent_pid: int) -> None:
    while signal.sigwaitinfo((signal.SIGTERM,)).si_pid != parent_pid:
        pass
    os._exit(0)
