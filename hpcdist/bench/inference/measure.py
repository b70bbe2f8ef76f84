"""Timing calls of a model: the images, how strategies spread a batch, and the calls themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpcdist.base.errors import HpcdistError
from hpcdist.bench.inference.figures import DATA_PARALLEL, PROCESS_PER_GPU, SINGLE, share_of
from hpcdist.bench.ranks import num_affordable
from hpcdist.data.catalog import load_data
from hpcdist.job.spec import Inference, InferenceJob
from hpcdist.rank.context import RankContext
from hpcdist.training.models import Shape
from hpcdist.training.optimization import PRECISIONS, Autocasting

_MOST_READ = 1024
"""Images that are read from a data set; larger batches repeat them."""
_PARTS_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images to take batches from."""

    images: Tensor
    """[images, channels, height, width]"""
    num_classes: int

    @property
    def shape(self) -> Shape:
        """(channels, height, width) of an image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def batch(self, size: int, memory_format: torch.memory_format, *, pin: bool) -> Tensor:
        """Return the first `size` images, repeated where there are fewer."""
        indices = torch.arange(size) % len(self.images)
        batch = self.images[indices].contiguous(memory_format=memory_format)
        return batch.pin_memory() if pin else batch


def load_images(job: InferenceJob) -> Images:
    """Load the images that the job names, the same in every rank."""
    setting = job.inference
    if setting.image_shape is None:
        data = load_data(job.data)
        number = min(len(data.test), max(setting.batch_sizes), _MOST_READ)
        return Images(images=data.test.probe(number).images, num_classes=data.num_classes)
    generator = torch.Generator().manual_seed(setting.seed)
    # One image is enough for a batch: how fast a model is does not depend on what it sees.
    images = torch.randn((1, *setting.image_shape), generator=generator)
    return Images(images=images, num_classes=setting.num_classes)


class Single:
    """The whole batch on the first rank's device."""

    uses_all_ranks = False
    """All ranks take part, and not only the first."""

    def __init__(self, model: nn.Module, context: RankContext, precision: str) -> None:
        """Take a model that is on the rank's device."""
        self.context = context
        self.devices = 1
        """Over which a batch is spread."""
        self._module: nn.Module = Autocasting(model, PRECISIONS[precision])
        self._device = torch.device(context.device)

    def can_take(self, batch_size: int) -> bool:
        """Return whether a batch of this size can be spread over the devices."""
        return batch_size >= 1

    def share(self, images: Tensor) -> Tensor:
        """Return this rank's part of a batch."""
        return images

    def call(self, images: Tensor) -> Tensor:
        """Return the logits of this rank's share; images and logits are on the host."""
        logits = self._module(self._to_model(images))
        if not isinstance(logits, Tensor):
            raise HpcdistError(
                f"the model gives {type(logits).__name__}, must be a tensor",
                hint="have its forward return the outputs of the classes, and nothing else",
            )
        return logits.cpu()  # waits for the GPU

    def _to_model(self, images: Tensor) -> Tensor:
        return images.to(self._device, non_blocking=True)

    def time_parts(self, images: Tensor, repeats: int) -> dict[str, float]:  # noqa: ARG002
        """Return the mean seconds of a call in parts that only this strategy has."""
        return {}


class DataParallel(Single):
    """nn.DataParallel over the GPUs of the first node, driven by one process.

    Without GPUs it has nothing to spread a batch over, and calls the model.
    """

    def __init__(self, model: nn.Module, context: RankContext, precision: str) -> None:
        """Wrap a model that is on the node's first GPU."""
        super().__init__(model, context, precision)
        if self._device.type == "cuda":
            self.devices = context.local_world_size
            self._module = nn.DataParallel(self._module, device_ids=list(range(self.devices)))
        elif not torch.cuda.is_available():
            self._module = nn.DataParallel(self._module)

    def can_take(self, batch_size: int) -> bool:
        """Return False where CPUs are asked for on a machine with GPUs, which it would take."""
        return batch_size >= 1 and isinstance(self._module, nn.DataParallel)

    def _to_model(self, images: Tensor) -> Tensor:
        return images  # it brings each GPU its part itself

    def time_parts(self, images: Tensor, repeats: int) -> dict[str, float]:
        """Return the seconds in replicate, scatter and gather, of extra calls, as waiting for each
        part costs time."""
        if self.devices == 1:
            return {}
        with _timed_parts(self._module) as totals_s:
            for _ in range(repeats):
                self.call(images)
        return {name: total_s / repeats for name, total_s in totals_s.items()}


class ProcessPerGpu(Single):
    """Each rank its share of the batch, with a model of its own; ranks exchange nothing."""

    uses_all_ranks = True

    def __init__(self, model: nn.Module, context: RankContext, precision: str) -> None:
        super().__init__(model, context, precision)
        self.devices = context.world_size

    def can_take(self, batch_size: int) -> bool:
        """Each rank needs an image."""
        return batch_size >= self.devices

    def share(self, images: Tensor) -> Tensor:
        begin, end = share_of(len(images), self.context.rank, self.devices)
        return images[begin:end]


@contextmanager
def _timed_parts(module: Any) -> Iterator[dict[str, float]]:
    """Time the parts of nn.DataParallel within this block, waiting for the GPUs after each."""
    totals_s = dict.fromkeys(("replicate", "scatter", "gather"), 0.0)

    def wait() -> None:
        for device in module.device_ids:
            torch.cuda.synchronize(device)

    def timed(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            wait()
            begin_s = time.perf_counter()
            result = part(*args, **kwargs)
            wait()
            totals_s[name] += time.perf_counter() - begin_s
            return result

        return call

    for name in totals_s:
        setattr(module, name, timed(name, getattr(module, name)))
    try:
        yield totals_s
    finally:
        for name in totals_s:
            delattr(module, name)  # the class's own shows again


STRATEGIES: dict[str, type[Single]] = {
    SINGLE: Single,
    DATA_PARALLEL: DataParallel,
    PROCESS_PER_GPU: ProcessPerGpu,
}
"""inference.strategies -> how it is run."""


def left_out(
    strategies: Sequence[str], batch_sizes: Sequence[int], context: RankContext
) -> list[str]:
    """Return notes on strategies that are not measured, or show little, on these devices."""
    on_gpus = context.device.startswith("cuda")
    note = "data_parallel: one process reaches the GPUs of one node, node 0's"
    if not on_gpus and torch.cuda.is_available():
        note = (
            "data_parallel: not measured, as launch.device is cpu, and nn.DataParallel would "
            "take the GPUs that are here"
        )
    elif not on_gpus:
        note = (
            "data_parallel: nn.DataParallel spreads a batch over GPUs only; on CPUs it calls "
            "the model, and what is measured is the same as single"
        )
    is_told = DATA_PARALLEL in strategies and (context.num_nodes > 1 or not on_gpus)
    notes = [note] if is_told else []
    small = [size for size in batch_sizes if size < context.world_size]
    if PROCESS_PER_GPU in strategies and small:
        listed = ", ".join(map(str, small))
        notes.append(
            f"process_per_gpu: not measured with {listed} per batch, fewer than the "
            f"{context.world_size} ranks"
        )
    return notes


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The calls that one rank timed."""

    cold_s: float
    times_s: list[float]
    """Fewer than planned, or none, where a rank was asked to leave."""
    parts_s: dict[str, float]
    is_whole: bool


def time_calls(
    strategy: Single,
    images: Tensor,
    setting: Inference,
    *,
    largest: Callable[[float], float],
    is_to_leave: Callable[[], bool],
    alive: Callable[[], None],
) -> Timed | None:
    """Time calls with this rank's share of a batch; return None where a rank lacks memory for it.

    `largest` waits for the ranks that take part, and returns the largest of their values: ranks
    begin each call together, and each times its own. Where one is asked to leave, all return what
    they have.
    """

    def call() -> float:
        begin_s = time.perf_counter()
        strategy.call(images)
        time_s = time.perf_counter() - begin_s
        alive()
        return time_s

    try:
        cold_s = call()
    except torch.OutOfMemoryError:
        cold_s = float("inf")
    if largest(cold_s) == float("inf"):
        torch.cuda.empty_cache()  # not above: the exception held what the call had made
        return None
    estimate_s = cold_s
    left_s = setting.max_time_s - cold_s
    for _ in range(setting.warmup):
        if largest(float(left_s < 0 or is_to_leave())):  # all do the same number
            break
        estimate_s = call()
        left_s -= estimate_s
    repeats = num_affordable(setting.repeats, each_s=largest(estimate_s), time_s=setting.max_time_s)
    times_s: list[float] = []
    while len(times_s) < repeats and not largest(float(is_to_leave())):
        times_s.append(call())
    is_whole = len(times_s) == repeats
    parts_s = strategy.time_parts(images, min(repeats, _PARTS_REPEATS)) if is_whole else {}
    torch.cuda.empty_cache()  # the next strategy's processes may be others, on the same GPUs
    return Timed(cold_s=cold_s, times_s=times_s, parts_s=parts_s, is_whole=is_whole)
