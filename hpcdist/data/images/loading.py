"""Batches of image files, made by torch's DataLoader workers in memory that the rank sees too.

A worker writes the pixels of a batch where the rank reads them, and hands over only which of them
are missing. The places are used in turns, so that no batch costs new memory.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from hpcdist.data.arrays import IGNORED_LABEL, Samples
from hpcdist.data.images.memory import SharedMemory
from hpcdist.data.images.samples import BadFile, ImageSamples, PixelSamples
from hpcdist.data.normalizing import BufferedNormalizer
from hpcdist.data.order import Share
from hpcdist.death_signal import die_with_parent
from hpcdist.errors import HpcdistError
from hpcdist.shield import shield_worker
from hpcdist.spec import Data

_WORKER_LOST = "DataLoader worker"
"""How torch's message begins."""


class _Request(NamedTuple):
    """A batch to be made."""

    indices: list[int]
    epoch: int
    place: int


class _Made(NamedTuple):
    """A batch that is made, or why it is not."""

    place: int
    bad: list[tuple[int, BadFile]]
    error: tuple[str, str] | None = None
    """Message and hint."""


@dataclass(frozen=True)
class _Places:
    """Memory for several batches."""

    memory: SharedMemory
    shape: tuple[int, ...]
    """(places, samples, height, width, channels)"""

    def of(self, place: int, number: int) -> NDArray[np.uint8]:
        """Room for a batch of so many samples."""
        pixels: NDArray[np.uint8] = self.memory.array(self.shape, np.uint8)[place, :number]
        return pixels


class ImageBatches:
    """The batches of one part of a data set, ahead of time where there are workers."""

    def __init__(
        self,
        samples: ImageSamples | PixelSamples,
        device: torch.device,
        data: Data,
        *,
        memory_format: torch.memory_format = torch.channels_last,
        tell_bad: Callable[[BadFile], None] = lambda _: None,
    ) -> None:
        """`tell_bad` hears of each file that is no image, once."""
        self._samples = samples
        self._device = device
        self._data = data
        self._memory_format = memory_format
        self._tell_bad = tell_bad
        self._told: set[int] = set()
        self._normalize = BufferedNormalizer(samples.normalization, memory_format)
        self._requests = _Requests()
        self._seeds = torch.Generator()  # its own, so that a resumed epoch draws nothing from ours
        self._places: _Places | None = None
        self._loader: DataLoader[_Made] | None = None
        self._turn = 0

    on_device = False

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:
        """The batches of these shares of an epoch's order, as uint8 on the CPU.

        A batch is valid until the next one is asked for; see `bring`.
        """
        if not shares:
            return
        self._make_room(max(share.filled_end - share.begin for share in shares))
        lists = [order[share.begin : share.filled_end].tolist() for share in shares]
        for indices, made in zip(lists, self._made(lists, epoch), strict=True):
            yield self._take(indices, made)

    def bring(self, batch: Samples) -> Samples:
        """A batch as the model takes it: float32 and normalised, on the device.

        On the CPU it is valid until the next but one is brought.
        """
        if self._device.type == "cpu":
            return Samples(images=self._normalize(batch.images), labels=batch.labels)
        moved = batch.to(self._device, non_blocking=True)
        images = self._samples.normalization(moved.images)
        images = images.contiguous(memory_format=self._memory_format)
        return Samples(images=images, labels=moved.labels)

    def close(self) -> None:
        """End the workers."""
        iterator: Any = self._loader and self._loader._iterator  # noqa: SLF001 - it has no close
        self._loader = None
        if iterator is not None and self._data.workers:
            iterator._shutdown_workers()  # noqa: SLF001

    def _take(self, indices: list[int], made: _Made) -> Samples:
        if made.error is not None:
            message, hint = made.error
            raise HpcdistError(message, hint=hint)
        labels = self._samples.labels[torch.tensor(indices)]
        for position, bad in made.bad:
            labels[position] = IGNORED_LABEL
            if bad.index not in self._told:
                self._told.add(bad.index)
                self._tell_bad(bad)
        assert self._places is not None
        pixels = torch.from_numpy(self._places.of(made.place, len(indices)))
        return Samples(images=pixels.permute(0, 3, 1, 2), labels=labels)

    def _made(self, lists: Sequence[list[int]], epoch: int) -> Iterator[_Made]:
        self._requests.waiting = self._number(lists, epoch)
        self._requests.count = len(lists)
        assert self._loader is not None
        try:
            yield from self._loader
        except RuntimeError as error:
            if not str(error).startswith(_WORKER_LOST):
                raise
            raise HpcdistError(
                f"a worker that loads data was lost: {error}",
                hint="killed by signal Killed is mostly for want of memory: raise "
                "resources.mem_gb, or lower data.workers",
            ) from None

    def _number(self, lists: Sequence[list[int]], epoch: int) -> Iterator[_Request]:
        """Requests, each with the place that is free when it is made."""
        assert self._places is not None
        for indices in lists:
            self._turn = (self._turn + 1) % self._places.shape[0]
            yield _Request(indices, epoch, self._turn)

    def _make_room(self, batch_size: int) -> None:
        """Places and workers for batches of this size."""
        if self._places is not None and self._places.shape[1] >= batch_size:
            return
        self.close()
        channels, height, width = self._samples.shape
        ahead = self._data.workers * self._data.prefetch_factor
        shape = (ahead + 2, batch_size, height, width, channels)  # one is used, one just done
        self._places = _Places(SharedMemory(int(np.prod(shape))), shape)
        self._loader = self._make_loader(self._places)

    def _make_loader(self, places: _Places) -> DataLoader[_Made]:
        data = self._data
        workers: dict[str, Any] = {}
        if data.workers:
            workers = {
                "prefetch_factor": data.prefetch_factor,
                "persistent_workers": data.persistent_workers,
                "multiprocessing_context": data.multiprocessing_context,
                "worker_init_fn": partial(_start_worker, os.getpid()),
            }
        return DataLoader(
            _Maker(self._samples, places),
            batch_sampler=self._requests,  # type: ignore[arg-type]  # gives requests, not lists
            num_workers=data.workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]  # what __getitems__ gives is no list
            generator=self._seeds,
            **workers,
        )


class _Requests(Sampler[_Request]):
    """The requests that are set for the next epoch."""

    def __init__(self) -> None:
        self.waiting: Iterator[_Request] = iter(())
        self.count = 0

    def __iter__(self) -> Iterator[_Request]:
        return self.waiting

    def __len__(self) -> int:
        return self.count


class _Maker(Dataset[_Made]):
    """Makes whole batches: DataLoader's workers call __getitems__ once per batch."""

    def __init__(self, samples: ImageSamples | PixelSamples, places: _Places) -> None:
        self._samples = samples
        self._places = places

    def __getitems__(self, request: _Request) -> _Made:
        out = self._places.of(request.place, len(request.indices))
        try:
            bad = self._samples.fill(out, request.indices, request.epoch)
        except HpcdistError as error:  # torch would make another message of it
            return _Made(request.place, [], (error.message, error.hint))
        return _Made(request.place, bad)

    def __getitem__(self, index: int) -> _Made:
        raise NotImplementedError(index)


def _as_it_is(batch: _Made) -> _Made:
    return batch


def _start_worker(rank_pid: int, _worker: int) -> None:
    """Leave all signals to the rank, and end with it, however that ends."""
    shield_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the rank's to answer
    if os.getppid() == rank_pid or not _has_server():
        die_with_parent(rank_pid)


def _has_server() -> bool:
    """Whether this worker's parent is multiprocessing's fork server: torch watches the rank."""
    import multiprocessing

    return type(multiprocessing.current_process()).__name__ == "ForkServerProcess"
