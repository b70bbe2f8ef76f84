"""Batches of image files, made by torch's DataLoader workers in memory that the rank sees too.

A worker writes the pixels of a batch where the rank reads them, and hands over only which of them
are missing. The places are used in turns, so that no batch costs new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from hpcdist.base.errors import HpcdistError
from hpcdist.data.arrays import IGNORED_LABEL, Samples
from hpcdist.data.images.memory import Pinned, SharedMemory
from hpcdist.data.images.samples import BadFile, ImageSamples, PixelSamples, changed
from hpcdist.data.normalizing import BufferedNormalizer
from hpcdist.data.order import Share
from hpcdist.data.workers import BatchMaker, BatchSource, Requests, end_workers, make_loader
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


@dataclass(frozen=True)
class _Places:
    memory: SharedMemory
    shape: tuple[int, ...]
    """(places, samples, height, width, channels)"""
    kind: type[np.uint8 | np.float32]
    """Type of the values that workers hand over."""

    @classmethod
    def make(cls, shape: tuple[int, ...], kind: type[np.uint8 | np.float32]) -> _Places:
        """New ones, which take up memory when they are used."""
        return cls(SharedMemory(int(np.prod(shape)) * np.dtype(kind).itemsize), shape, kind)

    def of(self, place: int, number: int) -> NDArray[Any]:
        """Return room for a batch of so many samples."""
        return self.memory.array(self.shape, self.kind)[place, :number]


class ImageBatches(BatchSource):
    """The batches of one part of a data set, ahead of time where there are workers."""

    def __init__(
        self,
        samples: ImageSamples | PixelSamples,
        device: torch.device,
        data: Data,
        *,
        memory_format: torch.memory_format = torch.channels_last,
        report_bad: Callable[[BadFile], None] = lambda _: None,
    ) -> None:
        """`report_bad` hears of each file that is no image, once."""
        self._samples = samples
        self._device = device
        self._data = data
        self._memory_format = memory_format
        self._report_bad = report_bad
        self._reported: set[int] = set()
        self._normalize = BufferedNormalizer(samples.normalization, memory_format)
        self._requests = Requests[_Request]()
        self._seeds = torch.Generator()  # its own, so that a resumed epoch draws nothing from ours
        self._places: _Places | None = None
        self._loader: DataLoader[_Made] | None = None
        self._pinned: Pinned | None = None
        self._turn = 0

    on_device = False

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:
        """Yield the batches of these shares of an epoch's order, on the CPU, as data.handover says.

        A batch is valid until the next one is asked for; see `bring`.
        """
        if not shares:
            return
        self._make_room(max(share.filled_end - share.begin for share in shares))
        lists = [order[share.begin : share.filled_end].tolist() for share in shares]
        for indices, made in zip(lists, self._made(lists, epoch), strict=True):
            yield self._take(indices, made, epoch)

    def bring(self, batch: Samples) -> Samples:
        """Return a batch as the model takes it: float32 and normalised, on the device.

        On the CPU it is valid until the next but one is brought.
        """
        if self._device.type == "cpu" and batch.images.dtype != torch.uint8:
            return batch.to(self._device, memory_format=self._memory_format)
        if self._device.type == "cpu":
            images = changed(batch, self._samples.for_batches)
            return Samples(images=self._normalize(images), labels=batch.labels)
        moved = batch.to(self._device, non_blocking=self._pinned is not None)
        if self._pinned is not None:
            self._pinned.note_copy(self._place)
        images = changed(moved, self._samples.for_batches)
        if images.dtype == torch.uint8:
            images = self._samples.normalization(images)
        images = images.contiguous(memory_format=self._memory_format)
        return Samples(images=images, labels=moved.labels)

    def close(self) -> None:
        if self._loader is not None and self._data.workers:
            end_workers(self._loader)
        if self._pinned is not None:
            self._pinned.close()
        self._loader = self._places = self._pinned = None

    def _take(self, indices: list[int], made: _Made, epoch: int) -> Samples:
        if made.error is not None:
            message, hint = made.error
            raise HpcdistError(message, hint=hint)
        labels = self._samples.labels[torch.tensor(indices)]
        for position, bad in made.bad:
            labels[position] = IGNORED_LABEL
            if bad.index not in self._reported:
                self._reported.add(bad.index)
                self._report_bad(bad)
        assert self._places is not None
        self._place = made.place
        pixels = self._places.of(made.place, len(indices))
        images = _channels_first(pixels)
        seed = self._samples.batch_seed(indices, epoch)
        return Samples(images=images, labels=labels, transform_seed=seed)

    def _made(self, lists: Sequence[list[int]], epoch: int) -> Iterator[_Made]:
        self._requests.set(self._number(lists, epoch), len(lists))
        assert self._loader is not None
        try:
            yield from self._loader
        except RuntimeError as error:
            if not str(error).startswith(_WORKER_LOST):
                raise
            raise HpcdistError(
                f"a worker that loads data was lost: {error}",
                hint="killed by signal Killed mostly means too little memory: raise "
                "resources.mem_gb, or lower data.workers",
            ) from None

    def _number(self, lists: Sequence[list[int]], epoch: int) -> Iterator[_Request]:
        """Requests, each with the place that is free when it is made."""
        assert self._places is not None
        workers = max(1, self._data.workers)  # which take turns
        for number, indices in enumerate(lists):
            ahead = lists[number + workers] if number + workers < len(lists) else []
            self._turn = (self._turn + 1) % self._places.shape[0]
            if self._pinned is not None:
                self._pinned.wait(self._turn)
            yield _Request(indices, epoch, self._turn, ahead)

    def _make_room(self, batch_size: int) -> None:
        """Places and workers for batches of this size."""
        if self._places is not None and self._places.shape[1] >= batch_size:
            return
        self.close()
        channels, height, width = self._samples.filled_shape
        ahead = self._data.workers * self._data.prefetch_factor
        shape = (ahead + 2, batch_size, height, width, channels)  # one is used, one just done
        kind = np.uint8 if self._data.handover == "uint8" else np.float32
        self._places = _Places.make(shape, kind)
        self._pinned = Pinned(self._places.memory) if self._is_pinned() else None
        self._loader = make_loader(
            _Maker(self._samples, self._places), self._requests, self._data, seeds=self._seeds
        )

    def _is_pinned(self) -> bool:
        wanted = self._data.pin_memory
        return self._device.type == "cuda" and (wanted == "auto" or wanted)


class _Maker(BatchMaker[_Request, _Made]):
    def __init__(self, samples: ImageSamples | PixelSamples, places: _Places) -> None:
        self._samples = samples
        self._places = places

    def __getitems__(self, request: _Request) -> _Made:
        out = self._places.of(request.place, len(request.indices))
        try:
            bad = self._fill(out, request)
            return _Made(request.place, bad)
        except HpcdistError as error:  # torch would make another message of it
            return _Made(request.place, [], error=(error.message, error.hint))

    def _fill(self, out: NDArray[Any], request: _Request) -> list[tuple[int, BadFile]]:
        if out.dtype == np.uint8:
            return self._samples.fill(out, request.indices, request.epoch, request.ahead)
        pixels = np.empty(out.shape, np.uint8)
        bad = self._samples.fill(pixels, request.indices, request.epoch, request.ahead)
        for target, image in zip(_channels_first(out), _channels_first(pixels), strict=True):
            self._samples.normalization.into(target, image)
        return bad


def _channels_first(pixels: NDArray[Any]) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)
