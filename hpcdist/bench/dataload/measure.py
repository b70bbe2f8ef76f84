"""Measuring one way of loading in one rank, while all ranks load; and training steps of a model."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcdist.bench.dataload.figures import Passes, Setting, Temperature
from hpcdist.bench.dataload.sources import Source, forget, temperature
from hpcdist.bench.ranks import BenchmarkRank, num_affordable
from hpcdist.data.arrays import Samples
from hpcdist.data.batches import BatchSource
from hpcdist.data.order import Share, epoch_order
from hpcdist.job.spec import Model, TimedModel, Train
from hpcdist.machine.memory import proportional_bytes

LEAST_PASSES = 2
"""Passes of a turn at least, where the job wants so many: a single one has no spread."""
_FIRST_SHARE = 0.3
"""Share of a turn's time for its first pass."""

_STAGE_IMAGES = 256
_WORKER_THREADS = 1
"""torch gives one to each worker of a DataLoader."""

_WARMUP = 2
_STEPS = 20
_MAX_TIME_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Passes, and the batches of each."""

    passes: int
    batches: int


def first_batches(wanted: int, *, distinct: int, batch_time_s: float, time_s: float) -> int:
    """Return the batches of a first pass: none twice, and no more than fit into the time."""
    fitting = int(time_s / batch_time_s) if batch_time_s > 0 else wanted
    return max(1, min(wanted, distinct, fitting))


def fit(wanted: Effort, *, batch_time_s: float, time_s: float) -> Effort:
    """Return what can be measured in so many seconds: fewer passes, then shorter ones."""
    if batch_time_s <= 0:
        return wanted
    least = min(wanted.passes, LEAST_PASSES)
    affordable = int(time_s / (batch_time_s * wanted.batches))
    passes = min(wanted.passes, max(least, affordable))
    batches = int(time_s / (batch_time_s * passes)) if passes else wanted.batches
    return Effort(passes=passes, batches=max(1, min(wanted.batches, batches)))


@dataclass(frozen=True, kw_only=True)
class _Pass:
    time_s: float
    first_s: float
    """Until its first batch."""
    worker_bytes: int | None


class Way:
    """One way of loading, which is measured in one turn or more; workers live as long as a turn."""

    def __init__(
        self,
        rank: BenchmarkRank,
        source: Source,
        setting: Setting,
        *,
        seed: int,
        threads: int,
        should_stop: Callable[[], bool],
    ) -> None:
        """The rank loads with so many `threads`, and without workers makes batches with them.

        `should_stop` is called before every pass that counts, equally often by all ranks.
        """
        self._rank = rank
        self._source = source
        self._device = torch.device(rank.context.device)
        self._batch_size = setting.batch_size
        self._seed = seed
        self._should_stop = should_stop
        self._number = 0  # of passes: each has an order of its own
        self._batches: int | None = None
        self._threads = threads
        torch.set_num_threads(_WORKER_THREADS if setting.workers else threads)
        self.passes = Passes(threads=torch.get_num_threads())
        own = self._own_indices(-(-_STAGE_IMAGES // setting.batch_size))
        source.stages(own[:2], rank.alive)  # loads libraries, and pages of memory
        self._meet()
        self._stages_s = source.stages(own, rank.alive)

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds per image in each stage before the hand-over."""
        return self._stages_s

    def measure(self, effort: Effort, *, time_s: float) -> None:
        """Measure a turn: a first pass, then as many that count as fit into the time, and none
        after a stop."""
        torch.set_num_threads(self._threads)
        first_files, number = self._forget_files(effort, time_s)
        self._meet()
        begun_s = time.perf_counter()
        with self._source.open(self._rank.context) as batches:
            first = self._pass(batches, number, begun_s=begun_s)
            batch_time_s = self._rank.largest(first.time_s / number)
            effort = fit(
                Effort(passes=effort.passes, batches=self._batches or effort.batches),
                batch_time_s=batch_time_s,
                time_s=time_s * (1 - _FIRST_SHARE),
            )
            self._batches = effort.batches  # later turns have passes of the same length at most
            num_timed = 0
            while num_timed < effort.passes and not self._should_stop():
                self.passes.times_s.append(self._pass(batches, effort.batches).time_s)
                self.passes.batches.append(effort.batches)
                num_timed += 1
        if not self.passes.firsts_s:
            self.passes.first_files = first_files
        self.passes.starts_s.append(first.first_s)
        self.passes.firsts_s.append(first.time_s / number)
        if first.worker_bytes:
            self.passes.worker_bytes = max(first.worker_bytes, self.passes.worker_bytes or 0)

    def _forget_files(self, effort: Effort, time_s: float) -> tuple[Temperature, int]:
        """Return whether the first pass finds its files in memory, and its number of batches."""
        number = first_batches(
            effort.batches,
            distinct=max(1, len(self._source) // self._num_samples(1)),
            batch_time_s=self._rank.largest(sum(self._stages_s.values())) * self._batch_size,
            time_s=time_s * _FIRST_SHARE,
        )
        paths = self._source.paths(self._own_indices(number))
        if not paths:
            return "memory", number
        forget(paths)
        self._meet()  # ranks can have files in common where the data set begins again
        return temperature(paths), number

    def _pass(
        self, batches: BatchSource, num_batches: int, *, begun_s: float | None = None
    ) -> _Pass:
        """Load so many batches up to the device, in an order that no other pass has.

        Ranks begin together. Of a first pass, `begun_s` is when it began, by time.perf_counter, and
        the workers' memory is measured before the last batch, which the time does not contain.
        """
        if begun_s is None:
            self._meet()
        order, shares = self._order(num_batches), self._shares(num_batches)
        begin_s = time.perf_counter() if begun_s is None else begun_s
        first_s, paused_s, worker_bytes = 0.0, 0.0, None
        loading = batches.epoch(order, shares, self._number)
        with closing(loading) as loaded:  # type: ignore[type-var]
            for done, batch in enumerate(loaded, start=1):
                batches.bring(batch)
                if done == 1:
                    first_s = time.perf_counter() - begin_s
                if begun_s is not None and done == max(1, num_batches - 1):
                    pause_s = time.perf_counter()
                    worker_bytes = _memory_per_worker()
                    paused_s = time.perf_counter() - pause_s
                self._rank.alive()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._number += 1
        time_s = time.perf_counter() - begin_s - paused_s
        return _Pass(time_s=time_s, first_s=first_s, worker_bytes=worker_bytes)

    def _meet(self) -> None:
        self._rank.largest(0.0)

    # The samples that a rank loads: as in a training, the next piece of a common order.

    def _num_samples(self, number: int) -> int:
        """Return the samples in so many batches of every rank."""
        return number * self._batch_size * self._rank.context.world_size

    def _order(self, num_batches: int) -> Tensor:
        """Return the samples of a pass; where the data set begins again, in another order."""
        needed = self._num_samples(num_batches)
        orders = [
            epoch_order(
                len(self._source), seed=self._seed, epoch=self._number + turn, most_filled=0
            )
            for turn in range(-(-needed // len(self._source)))
        ]
        return torch.cat(orders)[:needed]

    def _shares(self, num_batches: int) -> list[Share]:
        """Return this rank's batches of the order."""
        size, rank = self._batch_size, self._rank.context.rank
        begins = [self._num_samples(turn) + rank * size for turn in range(num_batches)]
        return [Share(begin=begin, end=begin + size, filled_end=begin + size) for begin in begins]

    def _own_indices(self, num_batches: int) -> list[int]:
        order = self._order(num_batches)
        shares = self._shares(num_batches)
        return [int(index) for share in shares for index in order[share.begin : share.end]]


def _memory_per_worker() -> int | None:
    """Return the mean memory of the processes that multiprocessing has started, by whatever method,
    shared pages counted in part; None without."""
    children = multiprocessing.active_children()
    sizes = [proportional_bytes(child.pid) for child in children if child.pid]
    return round(sum(sizes) / len(sizes)) if sizes else None


def time_steps(
    setting: TimedModel,
    batch: Samples,
    num_classes: int,
    *,
    device: torch.device,
    alive: Callable[[], None],
) -> list[float]:
    """Return the seconds of each of some steps, forward, backward and optimizer, after a few to
    warm up."""
    from torch.nn import functional as F  # noqa: N812 - as everybody calls it

    from hpcdist.training.models import build_model
    from hpcdist.training.optimization import build_optimizer

    assert setting.name is not None
    model_setting = Model(name=setting.name, args=setting.args, image_size=setting.image_size)
    channels, height, width = batch.images.shape[1:]
    torch.manual_seed(0)
    model = build_model(model_setting, (channels, height, width), num_classes).to(device).train()
    optimizer = build_optimizer(model, Train())
    batch = batch.to(device)

    def step() -> float:
        begin_s = time.perf_counter()
        loss = F.cross_entropy(model(batch.images), batch.labels)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        alive()
        return time.perf_counter() - begin_s

    for _ in range(_WARMUP):
        step_s = step()
    return [step() for _ in range(num_affordable(_STEPS, each_s=step_s, time_s=_MAX_TIME_S))]
