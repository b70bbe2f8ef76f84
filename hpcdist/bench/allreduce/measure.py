"""Measuring all-reduces: how long they take on the slowest rank, and whether the sums are right.

For the check, at each place two ranks, neighbours, have something and all others 0, so that the sum
is exact in every type and for any number of ranks, also where it is rounded after each addition.
Over a stretch of as many numbers as there are ranks, every rank matters. What belongs at a place
depends on the place, so that exchanged parts are seen, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpcdist.bench.allreduce.bandwidth import bus_bandwidth
from hpcdist.bench.cells import TimedCell, percentile, timed_cell
from hpcdist.bench.ranks import num_affordable
from hpcdist.job.spec import Allreduce

_VALUES = 7  # no power of two: parts of buffers begin at powers of two
_BLOCK_NUMBERS = 1 << 18


class WrongSumError(RuntimeError):
    """An all-reduce gave wrong numbers."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All-reduces of one size."""

    num_ranks: int
    num_bytes: int
    total_time_s: float
    """Time of all calls together, on the slowest rank."""
    times_s: list[float]
    """Time of each call, on the slowest rank."""

    def to_cell(self, table: str, keys: Mapping[str, int | str], **fields: Any) -> TimedCell:
        """Return the figures as a cell of a table, with the bus bandwidth by the mean time."""
        mean_s = self.total_time_s / len(self.times_s)
        more = {
            "median_time_s": percentile(self.times_s, 0.5),
            "p95_time_s": percentile(self.times_s, 0.95),
            "algorithm_bytes_per_s": bus_bandwidth(self.num_bytes, mean_s, 2),  # the size over time
        }
        rate = bus_bandwidth(self.num_bytes, mean_s, self.num_ranks)
        fields = {"rate": rate, "more": more, **fields}
        return timed_cell(table, keys, self.times_s, mean_s=mean_s, **fields)


def measure_all_reduce(
    buffer: Tensor,
    setting: Allreduce,
    *,
    group: Any = None,
    alive: Callable[[], None] = lambda: None,
) -> Measured:
    """Time all-reduces of a whole buffer, in place, by all ranks of a group (None: all ranks).

    All ranks start each measurement together, after a barrier. `alive` is called after each
    all-reduce that the host has waited for. Raises WrongSumError; leaves zeros in the buffer.
    """
    num_ranks = dist.get_world_size(group)
    if setting.check:
        rank = dist.get_rank(group)
        _fill(buffer, rank=rank, num_ranks=num_ranks)
        dist.all_reduce(buffer, group=group)
        _require_sums(buffer, rank=dist.get_rank(), num_ranks=num_ranks)
    buffer.zero_()  # what is added up again and again must not grow out of its type

    is_on_gpu = buffer.device.type == "cuda"

    def call() -> None:
        dist.all_reduce(buffer, group=group)

    def time_calls(number: int) -> list[float]:
        dist.barrier(group)
        if is_on_gpu:
            torch.cuda.synchronize(buffer.device)
        return (_time_on_gpu if is_on_gpu else _time_on_cpu)(call, number, alive)

    for _ in range(setting.warmup):
        estimate_s = time_calls(1)[0]
    # The slowest rank's word, so that all do the same number.
    estimate_s = _slowest([estimate_s], buffer.device, group)[0]
    planned = num_affordable(setting.iterations, each_s=estimate_s, time_s=setting.max_time_s)
    total_s, *times_s = _slowest(time_calls(planned), buffer.device, group)
    return Measured(
        num_ranks=num_ranks, num_bytes=buffer.nbytes, total_time_s=total_s, times_s=times_s
    )


def _time_on_cpu(call: Callable[[], None], number: int, alive: Callable[[], None]) -> list[float]:
    """Return the seconds of all calls together, then those of each."""
    clock = time.perf_counter
    readings = [clock()]
    for _ in range(number):
        call()
        readings.append(clock())
        alive()
    return [readings[-1] - readings[0], *(after - before for before, after in pairwise(readings))]


def _time_on_gpu(call: Callable[[], None], number: int, alive: Callable[[], None]) -> list[float]:
    """Time calls by events on the stream, since the host only queues them."""
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
    return [total_s, *(before.elapsed_time(after) / 1e3 for before, after in pairwise(events))]


def _slowest(values: list[float], device: torch.device, group: Any) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    return list(tensor.tolist())


def _fill(buffer: Tensor, *, rank: int, num_ranks: int) -> None:
    place = _places(buffer, num_ranks)
    block = (place % num_ranks == rank) * (1 + place % _VALUES)
    block += ((place + 1) % num_ranks == rank) * 2
    block = block.to(buffer.dtype)
    for part in torch.split(buffer, len(block)):
        part.copy_(block[: len(part)])


def _require_sums(buffer: Tensor, *, rank: int, num_ranks: int) -> None:
    """Raise WrongSumError where a buffer does not hold the sum of what all ranks filled in."""
    expected = (3 + _places(buffer, num_ranks) % _VALUES).to(buffer.dtype)
    num_wrong, first = 0, None
    for begin, part in enumerate(torch.split(buffer, len(expected))):  # comparing needs memory, too
        wrong = (part != expected[: len(part)]).nonzero()
        num_wrong += len(wrong)
        if first is None and len(wrong):
            first = int(wrong[0]) + begin * len(expected)
    if first is not None:
        raise WrongSumError(
            f"rank {rank} has wrong sums over {num_ranks} ranks, of {buffer.nbytes:,} bytes: "
            f"{num_wrong:,} of {buffer.numel():,} numbers; the first, number {first:,}, is "
            f"{float(buffer[first]):g} and must be {float(expected[first % len(expected)]):g}"
        )


def _places(buffer: Tensor, num_ranks: int) -> Tensor:
    """Return the indices of a block that fits the buffer; after it the contributions repeat."""
    period = _VALUES * num_ranks
    num_periods = max(1, _BLOCK_NUMBERS // period)
    return torch.arange(min(buffer.numel(), num_periods * period), device=buffer.device)
