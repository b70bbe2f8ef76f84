"""Measuring one way of loading in one rank, all ranks at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import torch

from hpcdist.bench.dataload.effort import Effort, first_batches, fit
from hpcdist.bench.dataload.figures import Passes, Setting
from hpcdist.bench.dataload.page_cache import forget, temperature
from hpcdist.bench.dataload.passes import Batches, Shape, Timed, time_pass
from hpcdist.bench.dataload.sources import Source
from hpcdist.rank.context import RankContext

_FIRST_SHARE = 0.3
"""Of the time of a turn, for its first pass."""

_STAGE_IMAGES = 256


class Way:
    """One way of loading, which is measured in one turn or more; workers live as long as a turn."""

    def __init__(
        self,
        context: RankContext,
        source: Source,
        setting: Setting,
        *,
        seed: int,
        each: Callable[[], None],
        should_stop: Callable[[], bool],
        largest: Callable[[float], float],
    ) -> None:
        """`each` is called after every batch, `should_stop` before every pass that counts;
        `largest` waits for all ranks, and gives the largest of what they say.
        """
        self._context = context
        self._source = source
        self._device = torch.device(context.device)
        self._each = each
        self._should_stop = should_stop
        self._largest = largest
        self._shape = Shape(
            num_samples=len(source),
            batch_size=setting.batch_size,
            rank=context.rank,
            world_size=context.world_size,
            seed=seed,
        )
        self._number = 0  # of passes: each has an order of its own
        self._batches: int | None = None
        self._stages_s = self._time_stages()

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds per image in each stage before the hand-over; neither reading nor decoding where
        decoded pictures were kept in the last turn."""
        spared = ("read", "decode") if self._source.is_kept else ()
        return {name: stage_s for name, stage_s in self._stages_s.items() if name not in spared}

    def measure(self, effort: Effort, *, time_s: float) -> Passes:
        """One turn: a first pass, and those that count; about as many as fit into the time, and
        none where there was a stop before."""
        first_files, number = self._forget_files(effort, time_s)
        self._meet()
        begun_s = time.perf_counter()
        with self._source.open(self._context) as batches:
            first = self._pass(batches, number, weigh=True, begun_s=begun_s)
            batch_time_s = self._largest(first.time_s / number)
            effort = fit(
                Effort(passes=effort.passes, batches=self._batches or effort.batches),
                batch_time_s=batch_time_s,
                time_s=time_s * (1 - _FIRST_SHARE),
            )
            self._batches = effort.batches  # later turns have passes of the same length at most
            timed: list[Timed] = []
            while len(timed) < effort.passes and not self._should_stop():
                timed.append(self._pass(batches, effort.batches))
        return Passes(
            batches=[effort.batches] * len(timed),
            times_s=[each.time_s for each in timed],
            starts_s=[first.first_s],
            firsts_s=[first.time_s / number],
            first_files=first_files,
            worker_bytes=first.worker_bytes,
        )

    def _time_stages(self) -> dict[str, float]:
        batches = -(-_STAGE_IMAGES // self._shape.batch_size)
        self._warm_up(batches)
        self._meet()
        return self._source.stages(self._own_indices(batches), self._each)

    def _warm_up(self, batches: int) -> None:
        """Load what is loaded at the first image: libraries, and pages of memory."""
        self._source.stages(self._own_indices(batches)[:2], self._each)

    def _own_indices(self, batches: int) -> list[int]:
        order, shares = self._shape.order(batches, self._number), self._shape.shares(batches)
        return [int(index) for share in shares for index in order[share.begin : share.end]]

    def _forget_files(
        self, effort: Effort, time_s: float
    ) -> tuple[Literal["cold", "warm", "unknown", "memory"], int]:
        """Whether the first pass finds its files in memory, and how many batches it has."""
        number = first_batches(
            effort.batches,
            distinct=self._shape.distinct_batches,
            batch_time_s=self._largest(sum(self._stages_s.values())) * self._shape.batch_size,
            time_s=time_s * _FIRST_SHARE,
        )
        paths = self._source.paths(self._own_indices(number))
        if not paths:
            return "memory", number
        forget(paths)
        self._meet()  # ranks can have files in common where the data set begins again
        return temperature(paths), number

    def _pass(
        self,
        batches: Batches,
        number: int,
        *,
        weigh: bool = False,
        begun_s: float | None = None,
    ) -> Timed:
        if begun_s is None:
            self._meet()
        timed = time_pass(
            batches,
            self._shape,
            self._device,
            num_batches=number,
            number=self._number,
            weigh=weigh,
            each=self._each,
            begun_s=begun_s,
        )
        self._number += 1
        return timed

    def _meet(self) -> None:
        """Wait for all ranks."""
        self._largest(0.0)
