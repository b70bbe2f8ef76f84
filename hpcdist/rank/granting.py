"""Granting what a rank's agent wishes between two steps of the rank's loop: a profile of the next.

What fails here ends the profile, and never the training. This module imports no torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hpcdist.rank.context import RankContext
from hpcdist.rank.wishes import StepReport, leave_report, parse_wish

if TYPE_CHECKING:
    from hpcdist.rank.profiling import Recording
    from hpcdist.rank.timing import Timer


class Wishes:
    """Grants the wishes of the agent in one rank's loop; a StepRecorder calls it between steps."""

    def __init__(self, context: RankContext, timer: Timer) -> None:
        self._context = context
        self._timer = timer
        self._recording: Recording | None = None
        self._number = 0
        self._is_busy = False

    def __call__(self, wish: int, step: int) -> bool:
        """Begin, go on with, or end the profile that is wished for, after so many steps; return
        True when there is nothing left to do for it."""
        if self._is_busy:  # a GPU's steps are played back while its profile begins or ends
            return False
        self._is_busy = True
        try:
            return self._grant(wish, step)
        except Exception as error:  # noqa: BLE001 - what torch raises must not end a training
            self._recording = None
            self._timer.finish()  # the window was held open
            self._report(StepReport(error=f"{type(error).__name__}: {error}"))
            return True
        finally:
            self._is_busy = False

    def _grant(self, wish: int, step: int) -> bool:
        number, steps = parse_wish(wish)
        is_begun = self._recording is not None and number == self._number
        if self._recording is not None and not is_begun:  # nobody waits for that one any more
            self._recording.drop()
            self._recording = None
        self._number = number
        progress = self._context.progress
        if not steps or progress is None or progress.desk.reported(number) is not None:
            return True  # or it was granted to a loop before this one
        if "torch" not in sys.modules:
            self._report(StepReport(error="it has not imported torch"))
            return True
        if self._recording is None:
            self._begin()
            return False
        if step < self._recording.first_step + steps:
            return False
        self._report(self._end())
        return True

    def _begin(self) -> None:
        from hpcdist.rank.profiling import Recording

        self._timer.finish()  # the steps that the profiler slows down have a window of their own
        self._timer.hold_window()
        name = f".profile-{self._number:08x}"
        self._recording = Recording(self._context, name, first_step=self._last_step())
        self._timer.begin()

    def _end(self) -> StepReport:
        recording, self._recording = self._recording, None
        assert recording is not None
        self._timer.wait()
        report = recording.finish(last_step=self._last_step())
        self._timer.finish()
        self._timer.begin()
        if (progress := self._context.progress) is not None:
            progress.alive()  # a long trace takes its time
        return report

    def _last_step(self) -> int:
        progress = self._context.progress
        return (progress and progress.last_step) or 0

    def _report(self, report: StepReport) -> None:
        if (progress := self._context.progress) is not None:
            leave_report(progress.desk, self._number, report)
