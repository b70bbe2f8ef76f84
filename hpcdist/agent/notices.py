"""The word that a job will end: signals to its agents."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable

from hpcdist.agent.coordinator import CANCEL_SIGNALS
from hpcdist.agent.messages import Cancelled, Warned
from hpcdist.base import files
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan


def wake_up_on(signals: Iterable[int]) -> int:
    """Return a descriptor that becomes readable, with their numbers, when these signals come."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in signals:
        signal.signal(signum, lambda *_: None)
    return reading


class Notices:
    """The signals of an agent, as messages for the coordinator."""

    def __init__(self, run: Run, plan: LaunchPlan, *, log: Callable[[str], None]) -> None:
        """Watch the signals of this process: not before it has forked its forkserver."""
        self._run = run
        self._log = log
        self._warning_signals = {signal.Signals[name] for name in plan.warning_signals}
        self._reading = wake_up_on({*CANCEL_SIGNALS, *self._warning_signals})

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come, for select."""
        return self._reading

    def read(self) -> list[Warned | Cancelled]:
        """Return what the signals mean that have come to this agent, or to what started it."""
        notices: list[Warned | Cancelled] = []
        for number in os.read(self._reading, 4096):
            name = signal.Signals(number).name
            self._log(f"received {name}")
            if number in self._warning_signals and not files.is_there(self._run.cancel_file):
                notices.append(Warned(signal=name))
            elif number in {*CANCEL_SIGNALS, *self._warning_signals}:
                notices.append(Cancelled(signal=name))
        return notices

    def wait_for_sigterm(self, seconds: float) -> bool:
        """Wait so long at most; return True as soon as SIGTERM comes."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._reading], [], [], left_s)
            if readable and signal.SIGTERM in os.read(self._reading, 4096):
                return True
        return False
