"""Timing calls of a model: the images, how strategies spread a batch, and the calls themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hpcdist.base.errors import HpcdistError
from hpcdist.bench.inference.conclusions import DATA_PARALLEL, PROCESS_PER_GPU
from hpcdist.bench.ranks import num_affordable
from hpcdist.data.catalog import load_data
from hpcdist.job.spec import Inference, InferenceJob
from hpcdist.rank.context import RankContext
from hpcdist.training.strategies import PRECISIONS, Autocasting

_NUM_WARMUPS = 3
_MOST_READ = 1024
"""Images that are read from a data set; larger batches repeat them."""


def load_images(job: InferenceJob) -> tuple[Tensor, int]:
    """Return the images that the job names, [images, channels, height, width] and the same in every
    rank, and the number of classes."""
    setting = job.inference
    if setting.image_shape is None:
        data = load_data(job.data)
        number = min(len(data.test), max(setting.batch_sizes), _MOST_READ)
        return data.test.probe(number).images, data.num_classes
    generator = torch.Generator().manual_seed(0)
    # One image is enough for a batch: how fast a model is does not depend on what it sees.
    return torch.randn((1, *setting.image_shape), generator=generator), setting.num_classes


class Strategy:
    """A way to spread a batch over devices, in one rank.

    single: the whole batch on the first rank's device. data_parallel: nn.DataParallel over the GPUs
    of the first node, driven by one process. process_per_gpu: each rank its share of the batch,
    with a model of its own; ranks exchange nothing.
    """

    def __init__(self, name: str, model: nn.Module, context: RankContext, precision: str) -> None:
        """Take a model that is on the rank's device."""
        self.name = name
        self.uses_all_ranks = name == PROCESS_PER_GPU
        """All ranks take part, and not only the first."""
        self.devices = context.world_size if self.uses_all_ranks else 1
        """Over which a batch is spread."""
        self._rank = context.rank
        self._device: torch.device | None = torch.device(context.device)
        self._module: nn.Module = Autocasting(model, PRECISIONS[precision])
        if name == DATA_PARALLEL and self._device.type == "cuda":
            self.devices = context.local_world_size
            self._module = nn.DataParallel(self._module, device_ids=list(range(self.devices)))
            self._device = None  # it brings each GPU its part itself
        elif name == DATA_PARALLEL:  # without GPUs it calls the model
            self._module = nn.DataParallel(self._module)

    def can_take(self, batch_size: int) -> bool:
        """Return whether a batch of this size can be spread over the ranks."""
        return batch_size >= self.devices or not self.uses_all_ranks

    def share(self, images: Tensor) -> Tensor:
        """Return this rank's part of a batch; parts differ by one image at most."""
        return images.tensor_split(self.devices)[self._rank] if self.uses_all_ranks else images

    def call(self, images: Tensor) -> Tensor:
        """Return the logits of this rank's share; images and logits are on the host."""
        logits = self._module(
            images if self._device is None else images.to(self._device, non_blocking=True)
        )
        if not isinstance(logits, Tensor):
            raise HpcdistError(
                f"the model gives {type(logits).__name__}, must be a tensor",
                hint="have its forward return the outputs of the classes, and nothing else",
            )
        return logits.cpu()  # waits for the GPU


def time_calls(
    strategy: Strategy,
    images: Tensor,
    setting: Inference,
    *,
    largest: Callable[[float], float],
    alive: Callable[[], None],
) -> list[float] | None:
    """Return the seconds of the first call with this rank's share of a batch, then of those that
    count; None where a rank lacks memory for it.

    `largest` waits for the ranks that take part, and returns the largest of their values: ranks
    begin each call together, and each times its own.
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
    estimate_s = largest(cold_s)
    if estimate_s == float("inf"):
        torch.cuda.empty_cache()  # not above: the exception held what the call had made
        return None
    for _ in range(min(_NUM_WARMUPS, int(setting.max_time_s / estimate_s))):
        estimate_s = largest(call())
    times_s: list[float] = []
    for _ in range(num_affordable(setting.repeats, each_s=estimate_s, time_s=setting.max_time_s)):
        largest(0.0)
        times_s.append(call())
    torch.cuda.empty_cache()  # the next strategy's processes may be others, on the same GPUs
    return [cold_s, *times_s]
