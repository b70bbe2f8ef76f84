"""A few steps under torch's profiler: a Chrome trace, and what computing hides of communication.

The profiler makes steps slower. So it looks at some of the first ones, and the recorder keeps all
of these in one window: the first, which is warm-up and in no figure.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # torch's own way to it
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from hpcdist.base import files
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import Timer
from hpcdist.rank.wishes import OperationTime, StepReport
from hpcdist.runs.rank_files import name_of

_SKIPPED = 3
"""Steps before the first that is looked at: they find memory, and order DDP's buckets."""
_MOST_OPERATIONS = 50
_US = 1e-6
_COMMUNICATION = ("gloo:", "nccl:", "nccldevkernel", "ncclkernel", "mpi:", "ucc:", "xccl:")
_COMPUTING = "aten::"

Interval = tuple[float, float]
"""Begin and end."""


_LOG_LEVEL, _NOTHING = "KINETO_LOG_LEVEL", "6"


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


class Recording:
    """Some steps under the profiler, from now until `finish` or `drop`."""

    def __init__(self, context: RankContext, name: str = "", *, first_step: int = 0) -> None:
        """`name` goes into that of the trace's file."""
        self.first_step = first_step
        """Number of finished steps at its begin."""
        self._context = context
        self._name = name
        activities = [ProfilerActivity.CPU]
        if self._is_on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._profile: Any = profile(activities=activities)
        with _silent():
            self._profile.start()
        self._begin_s = time.perf_counter()

    @property
    def _is_on_gpu(self) -> bool:
        return self._context.device.startswith("cuda")

    def drop(self) -> None:
        self._profile.stop()

    def finish(self, *, last_step: int, num_steps: int | None = None) -> StepReport:
        """Write the trace and the event, and return what there is to see; as a rule, the steps
        since the begin were all there were."""
        wall_s = time.perf_counter() - self._begin_s
        self._profile.stop()
        steps = max(1, last_step - self.first_step if num_steps is None else num_steps)
        trace, error = self._write_trace()
        whole_us, overlapped_us = divide(self._profile.events(), on_gpu=self._is_on_gpu)
        whole_s, overlapped_s = (part * _US / steps for part in (whole_us, overlapped_us))
        self._context.events.write(
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
            operations=top_operations(self._profile.key_averages(), on_gpu=self._is_on_gpu),
            trace=trace,
            error=error,
        )

    def _write_trace(self) -> tuple[str | None, str | None]:
        """Return the trace's place in the run directory, or why it could not be written."""
        context = self._context
        folder = context.run.traces_folder
        path = folder / name_of("rank", f"{self._name}.json.gz", context.rank, context.attempt)
        try:
            os.makedirs(folder, mode=files.PRIVATE_FOLDER, exist_ok=True)
            self._profile.export_chrome_trace(str(path))
        except OSError as error:
            return None, f"no trace could be written: {error.strerror}"
        return f"{folder.name}/{path.name}", None


class StepProfiler:
    """Profiles steps by the optimizer's hook, in whatever loop; made before the first step."""

    def __init__(self, context: RankContext, timer: Timer) -> None:
        self._context = context
        self._timer = timer
        self._num_wanted = context.job.record.profile_steps
        self._num_seen = 0
        self._recording: Recording | None = None
        timer.hold_window()
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def finish(self) -> None:
        """Write what there is where the training ends before the last step that is wanted."""
        if self._recording is not None:
            self._write(self._num_seen - _SKIPPED)
            self._context.note(
                "record.profile_steps: the training ended under the profiler, which slows it down; "
                "its figures are those of that"
            )
        self._hook.remove()

    def _after_step(self, *_: Any) -> None:
        self._num_seen += 1
        if self._num_seen == _SKIPPED:
            self._recording = Recording(self._context)
        elif self._num_seen == _SKIPPED + self._num_wanted:
            self._hook.remove()
            self._timer.wait()
            self._write(self._num_wanted)
            self._timer.release_window()

    def _write(self, num_steps: int) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        report = recording.finish(last_step=self._num_seen, num_steps=num_steps)
        if report.error is not None:
            self._context.note(f"record.profile_steps: {report.error}")


def top_operations(averages: Iterable[Any], *, on_gpu: bool) -> list[OperationTime]:
    """Return the operations with the most time of their own: of kernels on a GPU, or of operators
    on CPUs."""
    found = [
        OperationTime(
            name=str(one.key),
            calls=int(one.count),
            self_s=(one.self_device_time_total if on_gpu else one.self_cpu_time_total) * _US,
        )
        for one in averages
        if (one.device_type != DeviceType.CPU) == on_gpu and not (on_gpu and _is_annotation(one))
    ]
    return sorted(found, key=lambda one: -one.self_s)[:_MOST_OPERATIONS]


def divide(events: Iterable[Any], *, on_gpu: bool) -> tuple[float, float]:
    """Return the time in which an operation of communication ran, and the part of it in which
    something was computed, in microseconds: of kernels on a GPU, or of operators on CPUs."""
    communication: list[Interval] = []
    computing: list[Interval] = []
    for event in events:
        if (event.device_type == DeviceType.CPU) == on_gpu or (on_gpu and _is_annotation(event)):
            continue
        interval = (event.time_range.start, event.time_range.end)
        if event.name.lower().startswith(_COMMUNICATION):
            communication.append(interval)
        elif on_gpu or event.name.startswith(_COMPUTING):
            computing.append(interval)
    whole, busy = united(communication), united(computing)
    whole_us = length(whole)
    hidden_us = whole_us + length(busy) - length(united([*whole, *busy]))
    return whole_us, min(max(hidden_us, 0.0), whole_us)  # rounding may leave these limits


def _is_annotation(event: Any) -> bool:
    """Return whether an event on a GPU is a span that encloses kernels, and none itself."""
    return bool(getattr(event, "is_user_annotation", False))


def united(intervals: Sequence[Interval]) -> list[Interval]:
    """Return the intervals without overlaps, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def make_profiler(context: RankContext, timer: Timer) -> StepProfiler | None:
    """Return a profiler where the job asks for one."""
    if not context.job.record.profile_steps:
        return None
    if context.job.record.enabled and torch.profiler.kineto_available():
        return StepProfiler(context, timer)
    context.note("record.profile_steps: nothing is profiled: recording is off, or torch has none")
    return None
