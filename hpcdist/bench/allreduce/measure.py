"""Measuring all-reduces: how long they take on the slowest rank, and whether the sums are right.

For the check, at each place two ranks, neighbours, have something and all others 0, so that the sum
is exact in every type and for any number of ranks, also where it is rounded after each addition.
Over a stretch of as many numbers as there are ranks, every rank matters. What belongs at a place
depends on the place, so that exchanged parts are seen, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpcdist.bench.cells import TimedCell, percentile, timed_cell
from hpcdist.bench.ranks import num_affordable
from hpcdist.job.spec import Allreduce

_VALUES = 7  # no power of two: parts of buffers begin at powers of two
_BLOCK_NUMBERS = 1 << 18


class WrongSumError(RuntimeError):
    """An all-reduce gave wrong numbers."""


def measure_all_reduce(
    buffer: Tensor, setting: Allreduce, *, alive: Callable[[], None] = lambda: None
) -> TimedCell:
    """Time all-reduces of a whole buffer, in place, by all ranks; times are the slowest rank's, and
    the rate is the bus bandwidth by their mean.

    All ranks start each measurement together, after a barrier. `alive` is called after each
    all-reduce that the host has waited for. Raises WrongSumError; leaves zeros in the buffer.
    """
    num_ranks = dist.get_world_size()
    rank = dist.get_rank()
    _fill(buffer, rank=rank, num_ranks=num_ranks)
    dist.all_reduce(buffer)
    _require_sums(buffer, rank=rank, num_ranks=num_ranks)
    buffer.zero_()  # what is added up again and again must not grow out of its type

    def time_calls(number: int) -> list[float]:
        dist.barrier()
        if buffer.device.type != "cuda":
            return _time_on_cpu(buffer, number, alive)
        torch.cuda.synchronize(buffer.device)
        return _time_on_gpu(buffer, number, alive)

    for _ in range(setting.warmup):
        estimate_s = time_calls(1)[0]
    # The slowest rank's word, so that all do the same number.
    estimate_s = _slowest([estimate_s], buffer.device)[0]
    planned = num_affordable(setting.iterations, each_s=estimate_s, time_s=setting.max_time_s)
    total_s, *times_s = _slowest(time_calls(planned), buffer.device)
    algorithm_bytes_per_s = buffer.nbytes * planned / total_s
    return timed_cell(
        "all_reduce",
        {"size_bytes": buffer.nbytes},
        times_s,
        mean_s=total_s / planned,
        rate=algorithm_bytes_per_s * 2 * (num_ranks - 1) / num_ranks,
        more={
            "median_time_s": percentile(times_s, 0.5),
            "p95_time_s": percentile(times_s, 0.95),
            "algorithm_bytes_per_s": algorithm_bytes_per_s,
        },
    )


def _time_on_cpu(buffer: Tensor, number: int, alive: Callable[[], None]) -> list[float]:
    """Return the seconds of all calls together, then those of each."""
    clock = time.perf_counter
    readings = [clock()]
    for _ in range(number):
        dist.all_reduce(buffer)
        readings.append(clock())
        alive()
    return [readings[-1] - readings[0], *(after - before for before, after in pairwise(readings))]


def _time_on_gpu(buffer: Tensor, number: int, alive: Callable[[], None]) -> list[float]:
    """Time calls by events on the stream, since the host only queues them."""
    make_event: Any = torch.cuda.Event  # has no types
    events = [make_event(enable_timing=True) for _ in range(number + 1)]
    begin_s = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        dist.all_reduce(buffer)
        event.record()
    torch.cuda.synchronize()
    total_s = time.perf_counter() - begin_s
    alive()
    return [total_s, *(before.elapsed_time(after) / 1e3 for before, after in pairwise(events))]


def _slowest(values: list[float], device: torch.device) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
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
