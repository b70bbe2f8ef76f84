"""The word that a job will end: signals to its agents, and the clock of node 0's agent."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable

from hpcdist.agent.coordinator import CANCEL_SIGNALS, LimitReached
from hpcdist.agent.messages import Cancelled, Warned
from hpcdist.base import files
from hpcdist.job.spec import JobSpec, warning_before_s
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


class Clock:
    """The time limit of a job, as node 0's agent keeps it."""

    def __init__(self, job: JobSpec, plan: LaunchPlan, *, begin_s: float) -> None:
        """The limit counts from `begin_s`, by the monotonic clock."""
        enforced_min = job.resources.time_limit_min if plan.enforces_limits else None
        self._is_enforced = enforced_min is not None
        self._limit_min = enforced_min or plan.limit_min
        self._warning_s = warning_before_s(job.launch, self._limit_min)
        self._begin_s = begin_s
        self._has_warned = False

    def read(self) -> Warned | LimitReached | None:
        """Return what the time that has passed means; it warns once."""
        if self._limit_min is None:
            return None
        left_s = self._begin_s + self._limit_min * 60 - time.monotonic()
        if left_s <= 0 and self._is_enforced:
            return LimitReached(self._limit_min)
        if left_s <= self._warning_s and not self._has_warned:
            self._has_warned = True
            return Warned(signal=None)
        return None
