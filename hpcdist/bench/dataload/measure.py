"""Measuring one way of loading in one rank, while all ranks load."""

from __future__ import annotations

import time
from contextlib import closing

import torch
from msgspec import Struct
from torch import Tensor

from hpcdist.bench.dataload.sources import Source
from hpcdist.bench.dataload.ways import Way
from hpcdist.bench.ranks import BenchmarkRank
from hpcdist.data.batches import BatchSource
from hpcdist.data.order import Share, derive_seed
from hpcdist.job.spec import Dataload

_LEAST_PASSES = 2
"""Passes of a turn at least, where the job wants so many: a single one has no spread."""
_FIRST_SHARE = 0.3
"""Share of a turn's time for its first pass."""
_STAGE_IMAGES = 256


def fit(passes: int, batches: int, *, batch_time_s: float, time_s: float) -> tuple[int, int]:
    """Return the passes, and the batches of each, that can be measured in so many seconds: fewer
    passes, at least two, then shorter ones."""
    if batch_time_s <= 0:
        return passes, batches
    passes = min(passes, max(_LEAST_PASSES, int(time_s / (batch_time_s * batches))))
    return passes, max(1, min(batches, int(time_s / (batch_time_s * passes))))


class Passes(Struct, kw_only=True):
    """One rank's measurements of one way of loading, which grow with every turn; times are those
    per batch."""

    times_s: list[float] = []
    """By pass that counts."""
    first_batches_s: list[float] = []
    """Time to the first batch of each turn, with the start of its workers."""
    parts_s: dict[str, float] = {}
    """Seconds per sample in each stage before the hand-over, in the rank itself."""


class Loader:
    """One way of loading, which is measured in one turn or more; workers live as long as a turn."""

    def __init__(self, rank: BenchmarkRank, source: Source, way: Way, setting: Dataload) -> None:
        self._rank, self._source, self._way, self._setting = rank, source, way, setting
        self._device = torch.device(rank.context.device)
        self._number = 0  # of passes: each has an order of its own
        own = self._order(-(-_STAGE_IMAGES // way.batch_size)).tolist()
        source.stages(own[:2])  # loads libraries, and pages of memory
        rank.largest(0.0)
        self.passes = Passes(parts_s=source.stages(own))

    def measure(self, passes: int, batches: int, *, time_s: float) -> None:
        """Measure a turn: a first pass, then as many that count as fit into the time, and none
        after a stop."""
        own, size = self.passes, self._way.batch_size
        estimate_s = self._rank.largest(sum(own.parts_s.values())) * size
        affordable = int(_FIRST_SHARE * time_s / estimate_s) if estimate_s else batches
        number = max(1, min(batches, affordable))
        with closing(self._source.open(self._device)) as source:
            pass_s, first_s = self._pass(source, number)
            own.first_batches_s.append(first_s)
            batch_time_s = self._rank.largest(pass_s)
            time_s *= 1 - _FIRST_SHARE
            passes, batches = fit(passes, batches, batch_time_s=batch_time_s, time_s=time_s)
            for _ in range(passes):
                if self._rank.should_stop():
                    break
                own.times_s.append(self._pass(source, batches)[0])

    def _pass(self, source: BatchSource, batches: int) -> tuple[float, float]:
        """Load so many batches up to the device, in an order that no other pass has. Ranks begin
        together. Return the time per batch, and that until the first batch."""
        size, order = self._way.batch_size, self._order(batches)
        begins = range(0, batches * size, size)
        shares = [Share(begin=at, end=at + size, filled_end=at + size) for at in begins]
        self._rank.largest(0.0)
        begin_s, first_s = time.perf_counter(), 0.0
        for batch in source.epoch(order, shares, self._number):
            source.bring(batch)
            first_s = first_s or time.perf_counter() - begin_s
            self._rank.context.progress.alive()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._number += 1
        return (time.perf_counter() - begin_s) / batches, first_s

    def _order(self, batches: int) -> Tensor:
        """Return the samples that this rank loads in the next pass: its pieces of a common order,
        as in a training. Where the data set ends, it begins again in another order."""
        context, size, length = self._rank.context, self._way.batch_size, len(self._source)
        needed = batches * context.world_size * size
        generator = torch.Generator().manual_seed(derive_seed(0, self._number))
        orders = [torch.randperm(length, generator=generator) for _ in range(0, needed, length)]
        pieces = torch.cat(orders)[:needed].view(batches, context.world_size, size)
        return pieces[:, context.rank].flatten()
