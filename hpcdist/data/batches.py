"""Batches: cut directly out of a data set in memory, or made by the workers of torch's DataLoader.

Of image files, a worker writes the pixels of a batch to memory that the rank sees too, and hands
over only which of them are missing. The places there are used in turns, so that no batch costs new
memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpcdist.base.errors import HpcdistError
from hpcdist.data.arrays import Normalization, Samples
from hpcdist.data.images.memory import Pinned, SharedMemory
from hpcdist.data.images.samples import BadFile, ImageSamples, PixelSamples, channels_first
from hpcdist.data.order import Share
from hpcdist.job.spec import Data
from hpcdist.machine.process import die_with_parent, shield_worker

_WORKER_LOST = "DataLoader worker"
"""The beginning of torch's message."""

Request = TypeVar("Request")
Batch = TypeVar("Batch")


class BatchSource(ABC):
    """A source of batches, cut into the shares of an epoch's order."""

    on_device = True
    """Batches come as the model takes them: `bring` has nothing to do."""

    @abstractmethod
    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:
        """Yield the batches of these shares, as they are handed over."""

    def bring(self, batch: Samples) -> Samples:
        """Return a batch as the model takes it, on the device."""
        return batch

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what is only needed while batches are made, such as workers."""


def make_batches(
    samples: Samples | ImageSamples | PixelSamples,
    device: torch.device,
    data: Data,
    *,
    memory_format: torch.memory_format = torch.preserve_format,
    report_bad: Callable[[BadFile], None] = lambda _: None,
) -> BatchSource:
    """Return the source of batches that the job asks for, in a memory format. `report_bad` is
    called for each file that is no image, once."""
    if not isinstance(samples, Samples):
        return ImageBatches(
            samples, device, data, memory_format=memory_format, report_bad=report_bad
        )
    if data.workers:
        at_home = samples.to(torch.device("cpu"), memory_format=memory_format)
        return WorkerBatches(at_home, device, data, memory_format=memory_format)
    return DirectBatches(samples.to(device, memory_format=memory_format))


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
        parts = (order[share.begin : share.filled_end] for share in shares)
        self._indices.of_epoch = [part.tolist() for part in parts]
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


class _Request(NamedTuple):
    indices: list[int]
    epoch: int
    place: int
    ahead: list[int]
    """Samples that the same worker will be asked for next."""


class _Made(NamedTuple):
    """A batch that is made, or why it is not."""

    place: int
    bad: list[tuple[int, BadFile]]
    error: tuple[str, str] | None = None
    """Message and hint."""


class _Maker(Dataset[_Made]):
    """Makes batches in places that the rank and its workers share."""

    def __init__(
        self,
        samples: ImageSamples | PixelSamples,
        shape: tuple[int, ...],
        kind: type[np.uint8 | np.float32],
    ) -> None:
        """`shape`: (places, samples, height, width, channels); memory is taken as it is used."""
        self._samples = samples
        self.shape = shape
        self._kind = kind
        self.memory = SharedMemory(int(np.prod(shape)) * np.dtype(kind).itemsize)

    def room(self, place: int, number: int) -> NDArray[Any]:
        """Return room for a batch of so many samples."""
        return self.memory.array(self.shape, self._kind)[place, :number]

    def __getitem__(self, request: _Request) -> _Made:
        out = self.room(request.place, len(request.indices))
        pixels = out if self._kind is np.uint8 else np.empty(out.shape, np.uint8)
        try:
            bad = self._samples.fill(pixels, request.indices, request.epoch, request.ahead)
        except HpcdistError as error:  # torch would make another message of it
            return _Made(request.place, [], error=(error.message, error.hint))
        if pixels is not out:
            for target, image in zip(channels_first(out), channels_first(pixels), strict=True):
                self._samples.normalization.into(target, image)
        return _Made(request.place, bad)


class ImageBatches(BatchSource):
    """The batches of one part of a data set, ahead of time where there are workers."""

    on_device = False

    def __init__(
        self,
        samples: ImageSamples | PixelSamples,
        device: torch.device,
        data: Data,
        *,
        memory_format: torch.memory_format = torch.channels_last,
        report_bad: Callable[[BadFile], None] = lambda _: None,
    ) -> None:
        self._samples = samples
        self._device = device
        self._data = data
        self._memory_format = memory_format
        self._report_bad = report_bad
        self._reported: set[int] = set()
        self._normalize = BufferedNormalizer(samples.normalization, memory_format)
        self._requests = Requests[_Request]()
        self._maker: _Maker | None = None
        self._loader: DataLoader[_Made] | None = None
        self._pinned: Pinned | None = None
        self._turn = 0

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:
        """Yield the batches of these shares of an epoch's order, on the CPU, as data.handover says.
        A batch is valid until the next one is asked for; see `bring`."""
        if not shares:
            return
        maker, loader = self._make_room(max(share.filled_end - share.begin for share in shares))
        lists = [order[share.begin : share.filled_end].tolist() for share in shares]
        self._requests.of_epoch = self._in_turn(lists, epoch, maker.shape[0])
        try:
            for indices, made in zip(lists, loader, strict=True):
                yield self._take(indices, made, maker)
        except RuntimeError as error:
            if not str(error).startswith(_WORKER_LOST):
                raise
            raise HpcdistError(f"a worker that loads data was lost: {error}") from error

    def bring(self, batch: Samples) -> Samples:
        """Return a batch as the model takes it: float32 and normalised, on the device. On the CPU
        it is valid until the next but one is brought."""
        if self._device.type == "cpu":
            if batch.images.dtype != torch.uint8:
                return batch.to(self._device, memory_format=self._memory_format)
            images = self._normalize(batch.images)
            return Samples(images=images, labels=batch.labels)
        moved = batch.to(self._device, non_blocking=self._pinned is not None)
        if self._pinned is not None:
            self._pinned.note_copy(self._place)
        images = moved.images
        if images.dtype == torch.uint8:
            images = self._samples.normalization(images)
        images = images.contiguous(memory_format=self._memory_format)
        return Samples(images=images, labels=moved.labels)

    def close(self) -> None:
        if self._loader is not None and self._data.workers:
            end_workers(self._loader)
        if self._pinned is not None:
            self._pinned.close()
        self._loader = self._maker = self._pinned = None

    def _make_room(self, batch_size: int) -> tuple[_Maker, DataLoader[_Made]]:
        """Return places and workers for batches of this size."""
        if self._maker is None or self._loader is None or self._maker.shape[1] < batch_size:
            self.close()
            channels, height, width = self._samples.shape
            ahead = self._data.workers * self._data.prefetch_factor
            shape = (ahead + 2, batch_size, height, width, channels)  # one is used, one just done
            kind = np.uint8 if self._data.handover == "uint8" else np.float32
            self._maker = _Maker(self._samples, shape, kind)
            if self._device.type == "cuda" and self._data.pin_memory in {"auto", True}:
                self._pinned = Pinned(self._maker.memory)
            self._loader = make_loader(self._maker, self._requests, self._data)
        return self._maker, self._loader

    def _in_turn(
        self, lists: Sequence[list[int]], epoch: int, num_places: int
    ) -> Iterator[_Request]:
        """Yield requests, each with the place that is free when it is made."""
        workers = max(1, self._data.workers)  # which take turns
        for number, indices in enumerate(lists):
            ahead = lists[number + workers] if number + workers < len(lists) else []
            self._turn = (self._turn + 1) % num_places
            if self._pinned is not None:
                self._pinned.wait(self._turn)
            yield _Request(indices, epoch, self._turn, ahead)

    def _take(self, indices: list[int], made: _Made, maker: _Maker) -> Samples:
        if made.error is not None:
            message, hint = made.error
            raise HpcdistError(message, hint=hint)
        for _, bad in made.bad:
            if bad.index not in self._reported:
                self._reported.add(bad.index)
                self._report_bad(bad)
        self._place = made.place
        pixels = maker.room(made.place, len(indices))
        return self._samples.as_batch(pixels, indices, made.bad)


class BufferedNormalizer:
    """Normalises on the CPU into memory that is used again: new memory costs more than the work.
    What it gives is valid until the next but one is asked for."""

    def __init__(self, normalization: Normalization, memory_format: torch.memory_format) -> None:
        self._into = normalization.into
        self._memory_format = memory_format
        self._buffers = [torch.empty(0), torch.empty(0)]

    def __call__(self, images: Tensor) -> Tensor:
        """float32 of uint8 images on the CPU."""
        buffer = self._buffers.pop(0)
        if len(buffer) < len(images):
            buffer = torch.empty(images.shape, memory_format=self._memory_format)
        self._buffers.append(buffer)
        # Threads would meet after each of many short pieces of work. Where workers or others use
        # the CPUs, one waits for its turn each time: 64 images took 160 ms with two, 17 with one.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for out, image in zip(buffer, images, strict=False):  # one at a time, so that it
                self._into(out, image)  # stays in the CPU's cache
        finally:
            torch.set_num_threads(num_threads)
        return buffer[: len(images)]


class Requests(Generic[Request]):
    """The requests for the batches of the next epoch, taken one by one, as batches are made."""

    of_epoch: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.of_epoch)


def make_loader(
    maker: Dataset[Batch], requests: Requests[Any], data: Data, *, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Return a loader with the job's workers, which get a whole batch of `maker` per request."""
    workers: dict[str, Any] = {}
    if data.workers:
        workers = {
            "prefetch_factor": data.prefetch_factor,
            "persistent_workers": data.persistent_workers,
            "multiprocessing_context": data.multiprocessing_context,
            "worker_init_fn": partial(_start_worker, os.getpid()),
        }
    return DataLoader(
        maker,
        batch_size=None,
        sampler=requests,
        num_workers=data.workers,
        collate_fn=_keep,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # a resumed epoch must draw nothing from the training's
        **workers,
    )


def _keep(batch: Batch) -> Batch:
    return batch


def _start_worker(rank_pid: int, _worker: int) -> None:
    """Leave all signals to the rank, and end with it, however that ends."""
    shield_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the rank's to answer
    # Where a fork server is the parent of this worker, torch watches the rank.
    if type(multiprocessing.current_process()).__name__ != "ForkServerProcess":
        die_with_parent(rank_pid)


def end_workers(loader: DataLoader[Any]) -> None:
    """End the workers that a DataLoader keeps, for which it has no public method."""
    iterator: Any = loader._iterator  # noqa: SLF001
    loader._iterator = None  # noqa: SLF001 - the next epoch starts new ones
    if iterator is not None:
        iterator._shutdown_workers()  # noqa: SLF001
