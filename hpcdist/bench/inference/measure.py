"""Timing calls of one form with one batch size, all ranks that take part together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hpcdist.bench.inference.forms import Single

_LEAST_REPEATS = 3
_PARTS_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often a batch size is timed."""

    repeats: int
    warmup: int
    max_time_s: float


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one rank measured."""

    cold_s: float
    times_s: list[float]
    """Fewer than planned, or none, where a rank was told to leave."""
    parts_s: dict[str, float]
    is_whole: bool


class Meeting:
    """How the ranks that take part keep together: all of them, or one alone.

    `is_to_leave` tells whether this rank is to leave before the measurement is over.
    """

    def __init__(self, *, is_alone: bool, is_to_leave: Callable[[], bool] = lambda: False) -> None:
        self._is_alone = is_alone
        self._is_to_leave = is_to_leave

    def goes_on(self) -> bool:
        """Whether nobody is to leave."""
        return not self.largest(float(self._is_to_leave()))

    def wait(self) -> None:
        """Until all are here."""
        if not self._is_alone:
            dist.barrier()

    def largest(self, value: float) -> float:
        """Of what all say."""
        if self._is_alone:
            return value
        told = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return float(told.item())


def time_form(
    form: Single, images: Tensor, effort: Effort, *, meeting: Meeting, alive: Callable[[], None]
) -> Timed | None:
    """Time calls with this rank's share of a batch; None where some rank has no memory for it.

    Ranks begin each call together, and each times its own. Where one of them is told to leave, all
    end with what they have.
    """

    def call() -> float:
        begin_s = time.perf_counter()
        form.call(images)
        time_s = time.perf_counter() - begin_s
        alive()
        return time_s

    try:
        cold_s = call()
    except torch.OutOfMemoryError:
        cold_s = float("inf")
    if meeting.largest(cold_s) == float("inf"):
        torch.cuda.empty_cache()  # not above: the exception held what the call had made
        return None
    estimate_s = cold_s
    left_s = effort.max_time_s - cold_s
    for _ in range(effort.warmup):
        if meeting.largest(-left_s) > 0 or not meeting.goes_on():  # all do the same number
            break
        meeting.wait()
        estimate_s = call()
        left_s -= estimate_s
    repeats = _repeats(meeting.largest(estimate_s), effort)
    times_s: list[float] = []
    while len(times_s) < repeats and meeting.goes_on():
        meeting.wait()
        times_s.append(call())
    is_whole = len(times_s) == repeats
    parts_s = form.time_parts(images, min(repeats, _PARTS_REPEATS)) if is_whole else {}
    torch.cuda.empty_cache()  # the next strategy's processes may be others, on the same GPUs
    return Timed(cold_s=cold_s, times_s=times_s, parts_s=parts_s, is_whole=is_whole)


def _repeats(estimate_s: float, effort: Effort) -> int:
    affordable = int(effort.max_time_s / estimate_s) if estimate_s > 0 else effort.repeats
    return min(effort.repeats, max(_LEAST_REPEATS, affordable))
