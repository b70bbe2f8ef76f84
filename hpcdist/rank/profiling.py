"""A few steps under torch's profiler: a Chrome trace, and what computing hides of communication.

The profiler makes steps slower. So it looks at some of the first ones, and the recorder keeps all
of these in one window: the first, which is warm-up and in no figure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # torch's own way to it
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from hpcdist.base import files
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import Timer

_SKIPPED = 3
"""Steps before the first that is looked at: they find memory, and order DDP's buckets."""
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


class StepProfiler:
    """Profiles steps by the optimizer's hook, in whatever loop; made before the first step."""

    def __init__(self, context: RankContext, timer: Timer) -> None:
        self._context = context
        self._timer = timer
        self._num_wanted = context.job.record.profile_steps
        self._num_seen = 0
        self._profile: Any = None
        timer.hold_window()
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def finish(self) -> None:
        """Write what there is where the training ends before the last step that is wanted."""
        if self._profile is not None:
            self._write(self._num_seen - _SKIPPED)
            self._context.note(
                "record.profile_steps: the training ended under the profiler, which slows it down; "
                "its figures are those of that"
            )
        self._hook.remove()

    def _after_step(self, *_: Any) -> None:
        self._num_seen += 1
        if self._num_seen == _SKIPPED:
            activities = [ProfilerActivity.CPU]
            if self._context.device.startswith("cuda"):
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            with _silent():
                self._profile.start()
        elif self._num_seen == _SKIPPED + self._num_wanted:
            self._hook.remove()
            self._timer.wait()
            self._write(self._num_wanted)
            self._timer.release_window()

    def _write(self, num_steps: int) -> None:
        profiled, self._profile = self._profile, None
        profiled.stop()
        context = self._context
        attempt = f".attempt-{context.attempt}" if context.attempt else ""
        folder = context.run.traces_folder
        os.makedirs(folder, mode=files.PRIVATE_FOLDER, exist_ok=True)
        path = folder / f"rank-{context.rank:05d}{attempt}.json.gz"
        trace: str | None = f"{folder.name}/{path.name}"
        try:
            profiled.export_chrome_trace(str(path))
        except OSError as error:
            trace = None
            context.note(f"record.profile_steps: no trace could be written: {error.strerror}")
        on_gpu = context.device.startswith("cuda")
        whole_us, overlapped_us = divide(profiled.events(), on_gpu=on_gpu)
        context.events.write(
            "communication",
            by="profiler",
            steps=num_steps,
            whole_s=whole_us * _US / max(1, num_steps),
            overlapped_s=overlapped_us * _US / max(1, num_steps),
            exposed_s=(whole_us - overlapped_us) * _US / max(1, num_steps),
            trace=trace,
        )


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
    return length(whole), length(whole) + length(busy) - length(united([*whole, *busy]))


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
