"""A few steps of a living run under torch's profiler: a Chrome trace, the operations with the most
time, and what computing hides of communication.

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
from hpcdist.runs.events import Communication
from hpcdist.runs.paths import name_of
from hpcdist.runs.requests import OperationTime, StepReport

if TYPE_CHECKING:
    from hpcdist.rank.timing import Timer

_MOST_OPERATIONS = 50
_MOST_LETTERS = 500
"""Kernels' names can have thousands."""
_US = 1e-6
_COMMUNICATION = ("gloo:", "nccl:", "nccldevkernel", "ncclkernel", "mpi:", "ucc:", "xccl:")
_COMPUTING = "aten::"


class Profiler:
    """Profiles the steps of one loop for which the agent wishes; a StepRecorder calls it between
    steps.

    What fails here ends the profile, and never the training. A new wish ends the profile before.
    """

    def __init__(self, context: RankContext, timer: Timer) -> None:
        self._context = context
        self._timer = timer
        self._profile: Any = None
        self._number = self._first_step = 0
        self._begin_s = 0.0
        self._is_busy = False
        timer.heed(self)

    def __call__(self, step: int) -> bool:
        """Begin, go on with, or end a profile after so many steps; return True where there is
        nothing left to do."""
        if self._is_busy:  # a GPU's steps are played back while its profile begins or ends
            return False
        self._is_busy = True
        number, steps = self._context.progress.wish
        try:
            if number != self._number:
                self._number = number
                if self._profile is not None:
                    ended, self._profile = self._profile, None
                    self._close_window()
                    ended.stop()
            if steps and self._profile is None:
                self._begin()
            elif steps and step >= self._first_step + steps:
                report = self._end()
                self._context.progress.pipe.say(Profiled(wish=number, report=report))
                return True
        except Exception as error:  # noqa: BLE001 - what torch raises must not end a training
            report = StepReport(error=f"{type(error).__name__}: {error}")
            self._profile = None
            self._close_window()  # it was held open
            self._context.progress.pipe.say(Profiled(wish=number, report=report))
            return True
        finally:
            self._is_busy = False
        return not steps

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

    def _close_window(self) -> None:
        self._timer.finish()
        self._timer.begin()

    def _end(self) -> StepReport:
        """Write the trace and the event, and return what there is to see."""
        self._timer.wait()
        context, profile, trace, error = self._context, self._profile, None, None
        last_step, wall_s = context.progress.last_step or 0, time.perf_counter() - self._begin_s
        self._profile = None
        profile.stop()
        folder = context.run.traces_folder
        name = f".profile-{self._number:08x}.json.gz"
        path = folder / name_of("rank", name, context.rank, context.attempt)
        try:
            os.makedirs(folder, mode=files.PRIVATE_FOLDER, exist_ok=True)
            profile.export_chrome_trace(str(path))
            trace = f"{folder.name}/{path.name}"
        except OSError as failure:
            error = f"no trace could be written: {failure.strerror}"
        steps = max(1, last_step - self._first_step)
        times_us = measure(profile.events(), on_gpu=self._is_on_gpu)
        busy_s, whole_s, overlapped_s = (time_us * _US for time_us in times_us)
        operations = _operations(profile.key_averages(), on_gpu=self._is_on_gpu)
        communication = {"whole_s": whole_s / steps, "overlapped_s": overlapped_s / steps}
        exposed_s = (whole_s - overlapped_s) / steps
        context.events.write(
            Communication(by="profiler", exposed_s=exposed_s, trace=trace, **communication)
        )
        self._close_window()
        context.progress.alive()  # a long trace takes its time
        return StepReport(
            steps=steps,
            last_step=last_step,
            wall_s=wall_s,
            operations=operations[:_MOST_OPERATIONS],
            operations_s=sum(one.self_s for one in operations),
            busy_s=busy_s,
            trace=trace,
            error=error,
            **(communication if whole_s else {}),
        )

    @property
    def _is_on_gpu(self) -> bool:
        return self._context.device.startswith("cuda")


def _operations(averages: Iterable[Any], *, on_gpu: bool) -> list[OperationTime]:
    """Return the operations, those with the most time of their own first: kernels on a GPU, or
    operators on CPUs."""
    found = [
        OperationTime(
            name=str(one.key)[:_MOST_LETTERS],
            calls=int(one.count),
            self_s=(one.self_device_time_total if on_gpu else one.self_cpu_time_total) * _US,
        )
        for one in averages
        if _is_counted(one, on_gpu=on_gpu)
    ]
    return sorted(found, key=lambda one: -one.self_s)


def measure(events: Iterable[Any], *, on_gpu: bool) -> list[float]:
    """Return the time in which any operation ran, the time in which one of communication did, and
    the part of that in which something was computed, in microseconds: of kernels on a GPU, or of
    operators on CPUs."""
    edges: list[tuple[float, int, tuple[bool, bool, bool]]] = []
    for event in events:
        if _is_counted(event, on_gpu=on_gpu):
            communicates = event.name.lower().startswith(_COMMUNICATION)
            computes = not communicates and (on_gpu or event.name.startswith(_COMPUTING))
            kinds = (not event.is_async, communicates, computes)  # async: without time of its own
            edges += [(event.time_range.start, 1, kinds), (event.time_range.end, -1, kinds)]
    running, times_us, last_us = [0, 0, 0], [0.0, 0.0, 0.0], 0.0
    for at_us, change, kinds in sorted(edges):
        is_busy, communicates, computes = map(bool, running)
        for index, counts in enumerate((is_busy, communicates, communicates and computes)):
            times_us[index] += counts * (at_us - last_us)
        running = [count + change * is_kind for count, is_kind in zip(running, kinds, strict=True)]
        last_us = at_us
    return times_us


def _is_counted(event: Any, *, on_gpu: bool) -> bool:
    """Return whether an event is of the device, and no span there that only encloses kernels."""
    if event.device_type.name == "CPU":
        return not on_gpu
    return on_gpu and not getattr(event, "is_user_annotation", False)
