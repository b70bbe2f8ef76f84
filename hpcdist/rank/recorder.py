"""Step timings: what a training loop calls, and the windows that are written from it.

A loop calls `mark(phase)` after each part of a step and `step()` at its end. Steps are gathered and
summed up per window, so that long runs on many ranks stay small. This module imports no torch.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hpcdist.rank.board import ProgressSlot
from hpcdist.runs.events import HISTOGRAM_RATIO, PHASES, EventWriter, PeerGroup, Totals, Window

_LOG_RATIO = math.log(HISTOGRAM_RATIO)
_PHASE_INDEX = {phase: index for index, phase in enumerate(PHASES)}
_LEAST_AFTER_S = 0.1
"""Windows that are written sooner after their last step say nothing of it."""
_MOST_ZEROS = 4  # in a row, within counts: naming the next bucket anew takes no more bytes
_WINDOW_SHARE = 0.01  # windows grow to 1 % of the time so far: 470 windows in 1,000 s, 920 in a day
_OTHER_LIBRARIES = ("horovod", "mpi4py", "byteps", "jax", "cupy")
"""Libraries, besides torch.distributed, through which ranks may exchange data."""


class StepRecorder:
    """Times the phases of steps, tells the agent of progress, writes a `steps` event per window.

    With `enabled=False` only the progress board is written.
    """

    def __init__(
        self,
        events: EventWriter,
        progress: ProgressSlot | None = None,
        *,
        window_s: float = 0.25,
        enabled: bool = True,
        first_step: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        peers: Peers | None = None,
    ) -> None:
        """`peers` is told of windows where there are other ranks."""
        self.step_count = first_step
        """Number of finished steps, over all attempts."""
        self._epoch: int | None = None
        self._profile: Callable[[int], bool] = lambda _step: True
        self._granted = 0
        self._events = events
        self._progress = progress
        self._window_s = window_s
        self._enabled = enabled
        self._clock = clock
        self._peers = peers if enabled else None
        self._begin_s = clock()
        self._loss: Any = None
        self._loss_sum: Any = 0.0
        self._num_losses = 0
        self._learning_rate: Any = None
        self._open_window(self._begin_s)
        self._current = [0.0] * len(PHASES)
        self._last_s = self._step_start_s = self._begin_s
        self._last_gradient_s = 0.0

    def begin(self) -> None:
        """Start the next step now: what went before (evaluation, set-up) belongs to no step."""
        if self._peers is not None:
            self._peers.begin()
        now = self._clock()
        if self._rows:
            self._idle_s += now - self._last_s
        else:
            self._window_start_s = now
        self._last_s = self._step_start_s = now

    def mark(self, phase: str) -> None:
        """Note that the time since the last mark was spent in `phase`."""
        now = self._clock()
        self._current[_PHASE_INDEX[phase]] += now - self._last_s
        self._last_s = now

    def note_last_gradient(self, _parameter: Any = None) -> None:
        """Note that the last own gradient is ready, from within the backward pass."""
        self._last_gradient_s = self._clock()

    def mark_backward(self) -> None:
        """Note the end of the backward pass; the time after the last gradient was communication."""
        now = self._clock()
        split_s = min(max(self._last_gradient_s, self._last_s), now)
        self._current[_PHASE_INDEX["forward_backward"]] += split_s - self._last_s
        self._current[_PHASE_INDEX["exposed_communication"]] += now - split_s
        self._last_s = now

    def step(self, *, samples: int, loss: Any = None, learning_rate: Any = None) -> None:
        """Finish an optimizer step with `samples` samples on this rank.

        `loss` and `learning_rate` are anything that float() takes, and `samples` that int() takes;
        they are read only when a window is written. Reading one on a GPU waits for all that is
        queued there: once per window, not once per step. Losses are added up where they are.
        """
        self.step_count += 1
        if self._progress is not None:
            self._progress.step(self.step_count)
        if self._enabled:
            self._add_step(samples, loss, learning_rate)
        wish = 0 if self._progress is None else self._progress.values.wish
        if wish != self._granted and self._profile(self.step_count):
            self._granted = wish

    def heed(self, profile: Callable[[int], bool]) -> None:
        """Call `profile` (rank/profiling.py) with the number of finished steps, after each step
        from a new wish of the agent on until it returns True."""
        self._profile = profile

    def _add_step(self, samples: int, loss: Any, learning_rate: Any) -> None:
        now = self._clock()
        self._rows.append((now - self._step_start_s, *self._current))
        if self._peers is not None and len(self._rows) == 1:  # a look takes longer than a mark
            self._peers.count()
        self._samples += samples
        self._loss, self._learning_rate = loss, learning_rate
        if loss is not None:
            # What cannot be added up, or not to those before, is no reason to end a training.
            with suppress(TypeError, ValueError, RuntimeError):
                self._loss_sum = self._loss_sum + loss  # a new object: the loop may change its own
                self._num_losses += 1
        self._current = [0.0] * len(PHASES)
        self._last_s = self._step_start_s = now
        if now - self._window_start_s >= self._window_length_s:
            self.finish()

    def hold_window(self) -> None:
        """Keep the open window open, however long it gets: its steps are under the profiler."""
        self._window_length_s = math.inf
        self._is_profiled = True

    def finish(self) -> None:
        """Write the open window, if it holds a step, and open the next."""
        now = self._clock()
        if self._rows:
            after_s = now - self._step_start_s
            if self._peers is not None:
                self._peers.write()
            late_s = _to_ns(after_s) if after_s >= _LEAST_AFTER_S else 0.0
            self._events.write(self._window(late_s))
        self._open_window(now)

    def wait(self) -> None:
        """Do nothing: all marks are told at once."""

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def _open_window(self, now: float) -> None:
        self._rows: list[Sequence[float]] = []
        self._samples = 0
        self._idle_s = 0.0
        self._loss = self._learning_rate = None
        self._loss_sum, self._num_losses = 0.0, 0
        self._window_start_s = now
        self._is_profiled = False
        self._window_length_s = max(self._window_s, _WINDOW_SHARE * (now - self._begin_s))

    def _window(self, after_s: float) -> Window:
        totals, *phases = zip(*self._rows, strict=True)
        rate, num_losses = self._learning_rate, self._num_losses
        return Window(
            epoch=self._epoch,
            step=self.step_count,
            steps=len(totals),
            profiled=self._is_profiled,
            samples=int(self._samples),  # they may have been counted by torch or numpy
            wall_s=_to_ns(self._step_start_s - self._window_start_s - self._idle_s),
            pause_s=_to_ns(self._idle_s),
            after_s=after_s,
            step_time_s=Totals(
                sum=_to_ns(sum(totals)),
                sumsq=sum([time_s * time_s for time_s in totals]),
                min=_to_ns(min(totals)),
                max=_to_ns(max(totals)),
            ),
            phases_s={
                phase: _to_ns(sum(times))
                for phase, times in zip(PHASES, phases, strict=True)
                if any(times)
            },
            histogram=_histogram(totals),
            loss=None if self._loss is None else float(self._loss),
            mean_loss=float(self._loss_sum) / num_losses if num_losses else None,
            learning_rate=None if rate is None else float(rate),
        )


def _to_ns(time_s: float) -> float:
    """Round to nanoseconds: clocks tell no more, and lines stay shorter."""
    return round(time_s, 9)


def _histogram(times: Sequence[float]) -> dict[int, list[int]]:
    """Return bucket -> the counts of it and of those that follow it."""
    counts = Counter(round(math.log(max(time_s, 1e-9)) / _LOG_RATIO) for time_s in times)
    histogram: dict[int, list[int]] = {}
    end = -math.inf
    for bucket in sorted(counts):
        if bucket - end > _MOST_ZEROS:
            row = histogram[bucket] = []
        else:
            row += [0] * int(bucket - end)
        row.append(counts[bucket])
        end = bucket + 1
    return histogram


class Peers:
    """The ranks that this one exchanges data with, as torch.distributed tells: a script may train
    one model per rank without knowing.

    Writes a `group` event with the first window of steps, and again when something changes."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._written: PeerGroup | None = None
        self._num_collectives: int | None = None
        self._exchanges: bool | None = None
        """A collective operation ran within the steps; None where that cannot be told."""

    def begin(self) -> None:
        """Count collective operations from here on: those before belong to no step."""
        self._num_collectives = _num_collectives()

    def count(self) -> None:
        """Look at the end of a step whether an operation was begun since the last look."""
        before, now = self._num_collectives, _num_collectives()
        self._num_collectives = now
        if before is not None and now is not None and not self._exchanges:
            self._exchanges = now > before

    def write(self) -> None:
        """Write what is new, at the end of a window of steps."""
        self.count()
        size = _group_size()
        if not size and _other_library() is not None:
            return  # then nobody knows
        found = PeerGroup(size=size, exchanges=self._exchanges if size > 1 else None)
        has_left = self._written is not None and size < self._written.size  # as it does at the end
        if found != self._written and not has_left:
            self._written = found
            self._events.write(found)


def may_exchange() -> bool:
    """Return whether this process is in a group with others, or may talk to them otherwise."""
    return _group_size() > 1 or _other_library() is not None


def _group_size() -> int:
    """Return the number of ranks in torch.distributed's default group; 0 without one."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_used = distributed and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if is_used else 0


def _num_collectives() -> int | None:
    """Return how many operations were begun in all groups; None where torch does not tell."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        groups = [*distributed.distributed_c10d._world.pg_map]  # noqa: SLF001 - as below
        counts = [int(group._get_sequence_number_for_group()) for group in groups]  # noqa: SLF001
    except Exception:  # noqa: BLE001 - no group, or no public interface: another torch or backend
        return None
    return sum(counts) if counts else None


def _other_library() -> str | None:
    return next((name for name in _OTHER_LIBRARIES if name in sys.modules), None)
