"""Batches of image files, made by torch's DataLoader workers in memory that the rank sees too.

A worker writes the pixels of a batch where the rank reads them, and hands over only which of them
are missing. The places are used in turns, so that no batch costs new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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
from hpcdist.data.workers import BatchSource, Requests, end_workers, make_loader
from hpcdist.job.spec import Data

_WORKER_LOST = "DataLoader worker"
"""The beginning of torch's message."""


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
        """`report_bad` is called for each file that is no image, once."""
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

        A batch is valid until the next one is asked for; see `bring`.
        """
        if not shares:
            return
        maker, loader = self._make_room(max(share.filled_end - share.begin for share in shares))
        lists = [order[share.begin : share.filled_end].tolist() for share in shares]
        self._requests.set(self._in_turn(lists, epoch, maker.shape[0]), len(lists))
        try:
            for indices, made in zip(lists, loader, strict=True):
                yield self._take(indices, made, epoch, maker)
        except RuntimeError as error:
            if not str(error).startswith(_WORKER_LOST):
                raise
            raise HpcdistError(
                f"a worker that loads data was lost: {error}",
                hint="killed by signal Killed mostly means too little memory: raise "
                "resources.mem_gb, or lower data.workers",
            ) from None

    def bring(self, batch: Samples) -> Samples:
        """Return a batch as the model takes it: float32 and normalised, on the device.

        On the CPU it is valid until the next but one is brought.
        """
        if self._device.type == "cpu":
            if batch.images.dtype != torch.uint8:
                return batch.to(self._device, memory_format=self._memory_format)
            images = self._normalize(self._samples.finished(batch))
            return Samples(images=images, labels=batch.labels)
        moved = batch.to(self._device, non_blocking=self._pinned is not None)
        if self._pinned is not None:
            self._pinned.note_copy(self._place)
        images = self._samples.finished(moved)
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
            channels, height, width = self._samples.filled_shape
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

    def _take(self, indices: list[int], made: _Made, epoch: int, maker: _Maker) -> Samples:
        if made.error is not None:
            message, hint = made.error
            raise HpcdistError(message, hint=hint)
        for _, bad in made.bad:
            if bad.index not in self._reported:
                self._reported.add(bad.index)
                self._report_bad(bad)
        self._place = made.place
        pixels = maker.room(made.place, len(indices))
        return self._samples.as_batch(pixels, indices, epoch, made.bad)


class BufferedNormalizer:
    """Normalises on the CPU into memory that is used again: new memory costs more than the work.

    What it gives is valid until the next but one is asked for.
    """

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
        with one_thread():
            for out, image in zip(buffer, images, strict=False):  # one at a time, so that it
                self._into(out, image)  # stays in the CPU's cache
        return buffer[: len(images)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute in this thread alone.

    The threads meet after each of many short pieces of work. Where workers or others use the CPUs,
    one always waits for its turn: 64 images took 160 ms with two threads, 17 with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
