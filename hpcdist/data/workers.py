"""Sources of batches, and DataLoaders whose workers make whole batches."""

from __future__ import annotations

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpcdist.data.arrays import Samples
from hpcdist.data.order import Share
from hpcdist.job.spec import Data
from hpcdist.machine.process import die_with_parent
from hpcdist.rank.exit import shield_worker

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


class Requests(Generic[Request]):
    """The requests for the batches of the next epoch."""

    def __init__(self) -> None:
        self.set((), 0)

    def set(self, requests: Iterable[Request], number: int) -> None:
        """Set the requests of the next epoch; they are taken one by one, as batches are made."""
        self._requests = requests
        self._number = number

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __len__(self) -> int:
        return self._number


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
