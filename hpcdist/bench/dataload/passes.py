"""Timing passes over batches, and the memory of the workers that make them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hpcdist.data.arrays import Samples
from hpcdist.data.order import Share, epoch_order
from hpcdist.machine.memory import proportional_bytes


class Batches(Protocol):
    """What a training takes its batches from."""

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int, /) -> Iterator[Samples]:
        """The batches of these shares of an order."""

    def bring(self, batch: Samples) -> Samples:
        """A batch as the model takes it, on its device."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which samples a rank loads: as in a training, the next piece of a common order."""

    num_samples: int
    batch_size: int
    rank: int
    world_size: int
    seed: int

    @property
    def distinct_batches(self) -> int:
        """Batches of a rank until the data set begins again."""
        return max(1, self.num_samples // (self.batch_size * self.world_size))

    def order(self, num_batches: int, number: int) -> Tensor:
        """The samples of a pass; the data set in another order where it begins again."""
        needed = num_batches * self.batch_size * self.world_size
        rounds = -(-needed // self.num_samples)
        orders = [
            epoch_order(self.num_samples, seed=self.seed, epoch=number + turn, most_filled=0)
            for turn in range(rounds)
        ]
        return torch.cat(orders)[:needed]

    def shares(self, num_batches: int) -> list[Share]:
        """What this rank loads of the order: its batches."""
        step = self.batch_size * self.world_size
        begins = [turn * step + self.rank * self.batch_size for turn in range(num_batches)]
        return [
            Share(begin=begin, end=begin + self.batch_size, filled_end=begin + self.batch_size)
            for begin in begins
        ]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A pass."""

    time_s: float
    first_s: float
    """Until its first batch."""
    worker_bytes: int | None


def time_pass(
    batches: Batches,
    shape: Shape,
    device: torch.device,
    *,
    num_batches: int,
    number: int,
    weigh: bool,
    each: Callable[[], None],
    begun_s: float | None = None,
) -> Timed:
    """Load so many batches up to the device.

    `number` chooses the order; `weigh` measures the workers' memory before the last batch, which
    the time is without; `each` is called after each batch; `begun_s` is when the
    time begins, by time.perf_counter.
    """
    order, shares = shape.order(num_batches, number), shape.shares(num_batches)
    begin_s = time.perf_counter() if begun_s is None else begun_s
    first_s, paused_s, worker_bytes = 0.0, 0.0, None
    with closing(batches.epoch(order, shares, number)) as loaded:  # type: ignore[type-var]
        for done, batch in enumerate(loaded, start=1):
            batches.bring(batch)
            if done == 1:
                first_s = time.perf_counter() - begin_s
            if weigh and done == max(1, num_batches - 1):
                pause_s = time.perf_counter()
                worker_bytes = memory_per_worker()
                paused_s = time.perf_counter() - pause_s
            each()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    time_s = time.perf_counter() - begin_s - paused_s
    return Timed(time_s=time_s, first_s=first_s, worker_bytes=worker_bytes)


def memory_per_worker() -> int | None:
    """Mean of this process's workers, pages shared with others counted in part; None: it has none.

    Workers are the processes that multiprocessing has started, by whatever method.
    """
    found = [
        proportional_bytes(child.pid) for child in multiprocessing.active_children() if child.pid
    ]
    return round(sum(found) / len(found)) if found else None
