"""Batches of a data set in memory: cut out directly, or by the workers of torch's DataLoader.

Those of image files are made by `hpcdist.data.images.loading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hpcdist.data.arrays import Samples
from hpcdist.data.order import Share
from hpcdist.data.workers import BatchSource, Requests, end_workers, make_loader
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from hpcdist.data.images.samples import BadFile, ImageSamples, PixelSamples


class DirectBatches(BatchSource):
    """Cuts each batch out of whole tensors: for data in memory nothing is faster.

    One index_select per batch takes 0.0035 ms where a DataLoader over a TensorDataset takes 0.15
    ms (64 images of 8 x 8, one CPU thread). On a GPU the data stay on the device.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:  # noqa: ARG002
        order = order.to(self._samples.labels.device)
        for share in shares:
            yield self._samples.at(order[share.begin : share.filled_end])


class WorkerBatches(BatchSource):
    """Has worker processes cut the batches out, ahead of time."""

    def __init__(
        self,
        samples: Samples,
        device: torch.device,
        data: Data,
        *,
        memory_format: torch.memory_format,
    ) -> None:
        self.on_device = device.type == "cpu"
        self._device = device
        self._memory_format = memory_format
        pin = device.type == "cuda" if data.pin_memory == "auto" else data.pin_memory
        self._indices = Requests[list[int]]()
        self._loader = make_loader(_WholeBatches(samples), self._indices, data, pin_memory=pin)

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:  # noqa: ARG002
        lists = [order[share.begin : share.filled_end].tolist() for share in shares]
        self._indices.set(lists, len(lists))
        yield from self._loader

    def bring(self, batch: Samples) -> Samples:
        return batch.to(self._device, non_blocking=True, memory_format=self._memory_format)

    def close(self) -> None:
        end_workers(self._loader)


class _WholeBatches(Dataset[Samples]):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __getitem__(self, indices: list[int]) -> Samples:
        return self._samples.at(torch.tensor(indices))


def make_batches(
    samples: Samples | ImageSamples | PixelSamples,
    device: torch.device,
    data: Data,
    *,
    memory_format: torch.memory_format = torch.preserve_format,
    report_bad: Callable[[BadFile], None] = lambda _: None,
) -> BatchSource:
    """Return the source of batches that the job asks for, in a memory format.

    `report_bad` is called for each file that is no image, once.
    """
    if not isinstance(samples, Samples):
        from hpcdist.data.images.loading import ImageBatches

        return ImageBatches(
            samples, device, data, memory_format=memory_format, report_bad=report_bad
        )
    if data.workers:
        at_home = samples.to(torch.device("cpu"), memory_format=memory_format)
        return WorkerBatches(at_home, device, data, memory_format=memory_format)
    return DirectBatches(samples.to(device, memory_format=memory_format))
