"""How long the end of a job waits for a scheduler that does not answer.

A controller that is restarted or busy is silent for a while, and a job that gives up then has lost
its place. How long it may try depends on how long it will be left alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from hpcdist.base.errors import SchedulerError
from hpcdist.runs.verdict import Verdict

_WARNED_S = 100.0
"""After a warning, which comes 120 s before the end where the job does not say otherwise."""
_TERMINATED_S = 15.0
"""After SIGTERM: well within Slurm's KillWait, 30 s where a site does not say otherwise."""
_PAUSE_S = 5.0

_T = TypeVar("_T")


class Patience:
    """One span of time for all that is asked at the end of a life."""

    def __init__(
        self,
        verdict: Verdict,
        pause: Callable[[float], bool],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pause` waits so many seconds, or until SIGTERM comes, and then returns True."""
        self._pause = pause
        self._now = now
        is_terminated = verdict.signal == "SIGTERM"
        self._deadline = now() + (_TERMINATED_S if is_terminated else _WARNED_S)

    def retry(self, ask: Callable[[], _T], *, at_once: bool = True) -> _T:
        """The answer, once there is one; raises the last SchedulerError or OSError after the time.

        Not `at_once`: a first try has just failed.
        """
        if not at_once:
            self._wait()
        while True:
            try:
                return ask()
            except (SchedulerError, OSError):
                if self._now() >= self._deadline:
                    raise
                self._wait()

    def _wait(self) -> None:
        left_s = self._deadline - self._now()
        if left_s > 0 and self._pause(min(_PAUSE_S, left_s)):
            self._deadline = min(self._deadline, self._now() + _TERMINATED_S)
