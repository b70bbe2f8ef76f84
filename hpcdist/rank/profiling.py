"""A few steps of a living run under torch's profiler: a Chrome trace, and the operations with the
most time.

The profiler makes steps slower: they have a window of their own, which is in no figure of speed.
Without a profile, this module imports no torch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hpcdist.base import files
from hpcdist.rank.context import RankContext
from hpcdist.rank.pipe import Profiled
from hpcdist.runs.paths import name_of
from hpcdist.runs.requests import OperationTime, StepReport

if TYPE_CHECKING:
    from hpcdist.rank.timing import Timer

_MOST_OPERATIONS = 50
_MOST_LETTERS = 500
"""Kernels' names can have thousands."""
_US = 1e-6


class Profiler:
    """Profiles the steps of one loop for which the agent wishes; a StepRecorder calls it between
    steps.

    What fails here ends the profile, and never the training. A new wish ends the profile before.
    """

    def __init__(self, context: RankContext, timer: Timer) -> None:
        self._context, self._timer = context, timer
        self._is_on_gpu = context.device.startswith("cuda")
        self._profile: Any = None
        self._number = self._first_step = 0
        self._begin_s = 0.0
        self._is_busy = False
        timer.heed(self)

    def __call__(self, step: int) -> bool:
        """Begin, continue or end a profile after so many steps; True: nothing is left to do."""
        if self._is_busy:  # a GPU's steps are played back while its profile begins or ends
            return False
        number, steps = self._context.progress.wish
        report, self._is_busy = None, True
        try:
            if self._profile is not None and number != self._number:
                self._stop()
            self._number = number
            if steps and self._profile is None:
                self._begin()
            elif steps and step >= self._first_step + steps:
                report = self._end()
        except Exception as error:  # noqa: BLE001 - what torch raises must not end a training
            report, self._profile = StepReport(error=f"{type(error).__name__}: {error}"), None
            self._restart_window()  # it was held open
        finally:
            self._is_busy = False
        if report is not None:
            self._context.progress.pipe.say(Profiled(wish=number, report=report))
        return report is not None or not steps

    def _begin(self) -> None:
        if "torch" not in sys.modules:
            raise ImportError("the program has not imported torch")
        from torch.profiler import ProfilerActivity, profile

        self._timer.finish()
        self._timer.hold_window()
        on_gpu = [ProfilerActivity.CUDA] if self._is_on_gpu else []
        # The profiler's library starts here, tells that, and calls a machine without GPU an error.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._profile = profile(activities=[ProfilerActivity.CPU, *on_gpu])
        self._profile.start()
        self._first_step = self._context.progress.last_step or 0
        self._begin_s = time.perf_counter()
        self._timer.begin()

    def _restart_window(self) -> None:
        self._timer.finish()
        self._timer.begin()

    def _stop(self) -> Any:
        """Stop the profile, and return it."""
        ended, self._profile = self._profile, None
        self._restart_window()
        ended.stop()
        return ended

    def _end(self) -> StepReport:
        """Write the trace, and return what there is to see."""
        self._timer.wait()
        context, trace, error = self._context, None, None
        last_step, wall_s = context.progress.last_step or 0, time.perf_counter() - self._begin_s
        profile, folder = self._stop(), context.run.traces_folder
        ending = f".profile-{self._number:08x}.json.gz"
        path = folder / name_of("rank", ending, context.rank, context.attempt)
        try:
            os.makedirs(folder, mode=files.PRIVATE_FOLDER, exist_ok=True)
            profile.export_chrome_trace(str(path))
            trace = f"{folder.name}/{path.name}"
        except OSError as failure:
            error = f"no trace could be written: {failure.strerror}"
        self_us = f"self_{'device' if self._is_on_gpu else 'cpu'}_time_total"
        operations = [
            OperationTime(
                name=str(one.key)[:_MOST_LETTERS],
                calls=int(one.count),
                self_s=getattr(one, self_us) * _US,
            )
            for one in profile.key_averages()
            if _is_counted(one, on_gpu=self._is_on_gpu)
        ]
        operations.sort(key=lambda one: -one.self_s)
        report = StepReport(
            steps=max(1, last_step - self._first_step),
            last_step=last_step,
            wall_s=wall_s,
            operations=operations[:_MOST_OPERATIONS],
            operations_s=sum(one.self_s for one in operations),
            busy_s=busy_us(profile.events(), on_gpu=self._is_on_gpu) * _US,
            trace=trace,
            error=error,
        )
        self._timer.begin()  # what this took belongs to no step
        context.progress.alive()  # a long trace takes its time
        return report


def busy_us(events: Iterable[Any], *, on_gpu: bool) -> float:
    """Return the microseconds in which any operation ran: kernels on a GPU, operators on CPUs."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if _is_counted(event, on_gpu=on_gpu) and not event.is_async  # without time of its own
    )
    whole_us = end_us = 0.0
    for start_us, stop_us in spans:
        whole_us += max(0.0, stop_us - max(start_us, end_us))
        end_us = max(end_us, stop_us)
    return whole_us


def _is_counted(event: Any, *, on_gpu: bool) -> bool:
    """Return whether an event is of the device, and no span there that only encloses kernels."""
    if event.device_type.name == "CPU":
        return not on_gpu
    return on_gpu and not getattr(event, "is_user_annotation", False)
