"""A few steps under torch's profiler: a Chrome trace, the operations with the most time, and what
computing hides of communication.

The profiler makes steps slower: they have a window of their own, which is in no figure of speed.
Without a profile, this module imports no torch.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hpcdist.base import files
from hpcdist.rank.context import RankContext
from hpcdist.rank.pipe import Profiled
from hpcdist.runs.paths import name_of
from hpcdist.runs.requests import OperationTime, StepReport

if TYPE_CHECKING:
    from hpcdist.rank.timing import Timer

_SKIPPED = 3
"""Steps before the first that `record.profile_steps` looks at: they find memory, and order DDP's
buckets."""
_MOST_OPERATIONS = 50
_MOST_LETTERS = 500
"""Kernels' names can have thousands."""
_US = 1e-6
_COMMUNICATION = ("gloo:", "nccl:", "nccldevkernel", "ncclkernel", "mpi:", "ucc:", "xccl:")
_COMPUTING = "aten::"
_LOG_LEVEL, _NOTHING = "KINETO_LOG_LEVEL", "6"


class Profiler:
    """Profiles the steps of one loop for which the agent wishes, and those after the first three
    for which the job does (wish 0); a StepRecorder calls it between steps.

    What fails here ends the profile, and never the training. A new wish ends the profile before.
    """

    def __init__(self, context: RankContext, timer: Timer) -> None:
        self._context = context
        self._timer = timer
        self._recording: Recording | None = None
        self._number = self._num_calls = 0
        self._is_busy = False
        timer.heed(self)

    def __call__(self, step: int) -> bool:
        """Begin, go on with, or end a profile after so many steps; return True where there is
        nothing left to do."""
        if self._is_busy:  # a GPU's steps are played back while its profile begins or ends
            return False
        self._is_busy = True
        self._num_calls += 1
        try:
            return self._advance(step)
        except Exception as error:  # noqa: BLE001 - what torch raises must not end a training
            self._recording = None
            self._timer.finish()  # the window was held open
            self._report(StepReport(error=f"{type(error).__name__}: {error}"))
            return True
        finally:
            self._is_busy = False

    def finish(self) -> None:
        """Report on what there is where the training ends before the last step that is wanted."""
        if self._recording is not None:
            self._end(self._recording)

    def _advance(self, step: int) -> bool:
        number, steps = self._context.progress.wish
        if number != self._number and self._recording is not None:
            self._recording.drop()
            self._recording = None
        self._number = number
        if number == 0:
            steps = self._context.job.record.profile_steps
        elif self._context.progress.granted == number:
            steps = 0  # a loop before this one has made that profile
        if not steps:
            return True
        if number == 0 and self._num_calls < _SKIPPED:
            return False
        if self._recording is None:
            if "torch" not in sys.modules:
                raise ImportError("the program has not imported torch")
            self._timer.finish()
            self._timer.hold_window()
            name = f".profile-{number:08x}" if number else ""
            self._recording = Recording(self._context, name, first_step=self._last_step())
            self._timer.begin()
            return False
        if step < self._recording.first_step + steps:
            return False
        self._end(self._recording)
        return True

    def _end(self, recording: Recording) -> None:
        self._recording = None
        self._timer.wait()
        report = recording.finish(last_step=self._last_step())
        self._timer.finish()
        self._timer.begin()
        self._context.progress.alive()  # a long trace takes its time
        self._report(report)

    def _last_step(self) -> int:
        return self._context.progress.last_step or 0

    def _report(self, report: StepReport) -> None:
        if self._number:
            self._context.progress.granted = self._number
            self._context.progress.pipe.say(Profiled(wish=self._number, report=report))
        elif report.error is not None:
            self._context.note(f"record.profile_steps: {report.error}")


class Recording:
    """Some steps under the profiler, from now until `finish` or `drop`."""

    def __init__(self, context: RankContext, name: str, *, first_step: int) -> None:
        """`name` goes into that of the trace's file; `first_step` is the number of finished
        steps."""
        from torch.profiler import ProfilerActivity, profile

        self.first_step = first_step
        self._context = context
        self._name = name
        self._is_on_gpu = context.device.startswith("cuda")
        on_gpu = [ProfilerActivity.CUDA] if self._is_on_gpu else []
        self._profile: Any = profile(activities=[ProfilerActivity.CPU, *on_gpu])
        with _silent():
            self._profile.start()
        self._begin_s = time.perf_counter()

    def drop(self) -> None:
        self._profile.stop()

    def finish(self, *, last_step: int) -> StepReport:
        """Write the trace and the event, and return what there is to see."""
        wall_s = time.perf_counter() - self._begin_s
        self._profile.stop()
        context, trace, error = self._context, None, None
        folder = context.run.traces_folder
        path = folder / name_of("rank", f"{self._name}.json.gz", context.rank, context.attempt)
        try:
            os.makedirs(folder, mode=files.PRIVATE_FOLDER, exist_ok=True)
            self._profile.export_chrome_trace(str(path))
            trace = f"{folder.name}/{path.name}"
        except OSError as failure:
            error = f"no trace could be written: {failure.strerror}"
        steps = max(1, last_step - self.first_step)
        events, averages = self._profile.events(), self._profile.key_averages()
        whole_us, overlapped_us = divide(events, on_gpu=self._is_on_gpu)
        operations = _operations(averages, on_gpu=self._is_on_gpu)
        whole_s, overlapped_s = (part * _US / steps for part in (whole_us, overlapped_us))
        context.events.write(
            "communication",
            by="profiler",
            steps=steps,
            whole_s=whole_s,
            overlapped_s=overlapped_s,
            exposed_s=whole_s - overlapped_s,
            trace=trace,
        )
        return StepReport(
            steps=steps,
            last_step=last_step,
            wall_s=wall_s,
            whole_s=whole_s or None,
            overlapped_s=overlapped_s if whole_s else None,
            operations=operations[:_MOST_OPERATIONS],
            operations_s=sum(one.self_s for one in operations),
            busy_s=covered_us(events, on_gpu=self._is_on_gpu) * _US,
            trace=trace,
            error=error,
        )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep the profiler's library, which starts here, from printing that it starts, and from
    calling a machine without a GPU an error; a level that the user has set stays."""
    is_set = _LOG_LEVEL in os.environ
    os.environ.setdefault(_LOG_LEVEL, _NOTHING)
    try:
        yield
    finally:
        if not is_set:
            del os.environ[_LOG_LEVEL]


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


def covered_us(events: Iterable[Any], *, on_gpu: bool) -> float:
    """Return the time in which an operation ran, or several at once, in microseconds."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if _is_counted(event, on_gpu=on_gpu) and not event.is_async  # which has no own time
    )
    covered_us, until_us = 0.0, -math.inf
    for start_us, end_us in spans:
        covered_us += max(0.0, end_us - max(start_us, until_us))
        until_us = max(until_us, end_us)
    return covered_us


def divide(events: Iterable[Any], *, on_gpu: bool) -> tuple[float, float]:
    """Return the time in which an operation of communication ran, and the part of it in which
    something was computed, in microseconds: of kernels on a GPU, or of operators on CPUs."""
    edges: list[tuple[float, bool, int]] = []
    for event in events:
        is_communication = event.name.lower().startswith(_COMMUNICATION)
        is_computing = on_gpu or event.name.startswith(_COMPUTING)
        if _is_counted(event, on_gpu=on_gpu) and (is_communication or is_computing):
            edges.append((event.time_range.start, is_communication, 1))
            edges.append((event.time_range.end, is_communication, -1))
    whole_us = hidden_us = last_us = 0.0
    running = {True: 0, False: 0}
    for at_us, is_communication, change in sorted(edges):
        if running[True]:
            whole_us += at_us - last_us
            if running[False]:
                hidden_us += at_us - last_us
        running[is_communication] += change
        last_us = at_us
    return whole_us, hidden_us


def _is_counted(event: Any, *, on_gpu: bool) -> bool:
    """Return whether an event is of the device, and no span there that only encloses kernels."""
    if event.device_type.name == "CPU":
        return not on_gpu
    return on_gpu and not getattr(event, "is_user_annotation", False)
