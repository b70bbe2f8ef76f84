"""One measured all-reduce: how long it takes on the slowest of the ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpcdist.bench.allreduce import sums
from hpcdist.bench.allreduce.bandwidth import algorithm_bandwidth, bus_bandwidth, percentile

_LEAST_ITERATIONS = 3
_CHUNK_S = 0.25
"""About how long the ranks measure before they ask each other whether to go on."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How thoroughly one size is measured."""

    iterations: int
    warmup: int
    """At least 1."""
    max_time_s: float
    """Iterations are cut down to about this time, but not below three."""
    check: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All-reduces of one size."""

    num_ranks: int
    num_bytes: int
    total_time_s: float
    """For all of them, one after the other, on the slowest rank."""
    times_s: list[float]
    """Of each, on the slowest rank."""
    planned: int
    """As many as there would have been, had no rank been told to leave."""

    @property
    def is_whole(self) -> bool:
        """Whether all that were planned were measured."""
        return len(self.times_s) == self.planned

    def to_event(self) -> dict[str, Any]:
        """The figures as fields of an event."""
        mean_s = self.total_time_s / len(self.times_s)
        return {
            "operation": "all_reduce",
            "ranks": self.num_ranks,
            "bytes": self.num_bytes,
            "iterations": len(self.times_s),
            "mean_time_s": mean_s,
            "median_time_s": statistics.median(self.times_s),
            "p95_time_s": percentile(self.times_s, 0.95),
            "min_time_s": min(self.times_s),
            "algorithm_bytes_per_s": algorithm_bandwidth(self.num_bytes, mean_s),
            "bus_bytes_per_s": bus_bandwidth(self.num_bytes, mean_s, self.num_ranks),
        }


def measure_all_reduce(
    buffer: Tensor,
    effort: Effort,
    *,
    group: Any = None,
    alive: Callable[[], None] = lambda: None,
    is_to_leave: Callable[[], bool] = lambda: False,
) -> Measured | None:
    """All-reduces of a whole buffer, in place, by all ranks of a group (None: of all ranks).

    All ranks start each measurement together, after a barrier. `alive` is called after each
    all-reduce that the host has waited for. Where `is_to_leave` says so on one rank, all end with
    what they have; None where that is nothing. Raises sums.WrongSumError; leaves zeros in the
    buffer.
    """
    num_ranks = dist.get_world_size(group)
    if effort.check:
        rank = dist.get_rank(group)
        sums.fill(buffer, rank=rank, num_ranks=num_ranks)
        dist.all_reduce(buffer, group=group)
        sums.require_sums(buffer, rank=dist.get_rank(), num_ranks=num_ranks)
    buffer.zero_()  # what is added up again and again must not grow out of its type

    def call() -> None:
        dist.all_reduce(buffer, group=group)

    def time_calls(number: int) -> list[float]:
        dist.barrier(group)
        _wait_for(buffer.device)
        return _time_calls(call, number, buffer.device, alive)

    def all_stay() -> bool:
        return not _slowest([float(is_to_leave())], buffer.device, group)[0]

    for _ in range(effort.warmup):
        if not all_stay():
            return None
        estimate_s = time_calls(1)[0]
    # The slowest rank's word, so that all do the same number.
    estimate_s = _slowest([estimate_s], buffer.device, group)[0]
    planned = _iterations(estimate_s, effort)
    total_s, times_s = _time_in_chunks(time_calls, planned, estimate_s, all_stay)
    if not times_s:
        return None
    total_s, *times_s = _slowest([total_s, *times_s], buffer.device, group)
    return Measured(
        num_ranks=num_ranks,
        num_bytes=buffer.nbytes,
        total_time_s=total_s,
        times_s=times_s,
        planned=planned,
    )


def _time_in_chunks(
    time_calls: Callable[[int], list[float]],
    planned: int,
    estimate_s: float,
    all_stay: Callable[[], bool],
) -> tuple[float, list[float]]:
    """Seconds of all calls together, and of each; what the ranks ask each other is not in it."""
    at_once = max(1, int(_CHUNK_S / estimate_s)) if estimate_s > 0 else planned
    total_s = 0.0
    times_s: list[float] = []
    while len(times_s) < planned and all_stay():
        chunk_s, *each_s = time_calls(min(at_once, planned - len(times_s)))
        total_s += chunk_s
        times_s += each_s
    return total_s, times_s


def _iterations(estimate_s: float, effort: Effort) -> int:
    affordable = int(effort.max_time_s / estimate_s) if estimate_s > 0 else effort.iterations
    return min(effort.iterations, max(_LEAST_ITERATIONS, affordable))


def _time_calls(
    call: Callable[[], None], number: int, device: torch.device, alive: Callable[[], None]
) -> list[float]:
    """Seconds of all calls together, then of each."""
    timed = _time_on_gpu if device.type == "cuda" else _time_on_cpu
    return timed(call, number, alive)


def _time_on_cpu(call: Callable[[], None], number: int, alive: Callable[[], None]) -> list[float]:
    clock = time.perf_counter
    readings = [clock()]
    for _ in range(number):
        call()
        readings.append(clock())
        alive()
    return [readings[-1] - readings[0], *_differences(readings)]


def _differences(readings: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(readings)]


def _time_on_gpu(call: Callable[[], None], number: int, alive: Callable[[], None]) -> list[float]:
    """The host only queues: events on the stream tell when each was done."""
    make_event: Any = torch.cuda.Event  # has no types
    events = [make_event(enable_timing=True) for _ in range(number + 1)]
    begin_s = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    total_s = time.perf_counter() - begin_s
    alive()
    return [
        total_s,
        *(before.elapsed_time(after) / 1e3 for before, after in pairwise(events)),
    ]


def _slowest(values: list[float], device: torch.device, group: Any) -> list[float]:
    """Each value's largest over the ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    found: list[float] = tensor.tolist()
    return found


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
