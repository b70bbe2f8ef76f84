"""The batches that the torch loop would take, in its order, for Lightning's loops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor

from hpcdist.data.arrays import DataSet, Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.order import LEAST_BATCH, epoch_order
from hpcdist.data.workers import BatchSource
from hpcdist.rank.timing import Timer
from hpcdist.training.evaluation import Scoring
from hpcdist.training.progress import BadFileNotes, Progress


class TrainBatch(NamedTuple):
    """A batch of a rank, and its part in an optimizer step."""

    images: Tensor
    labels: Tensor
    num_samples: int
    """Own samples: those beyond have no part in the loss."""
    scale: float
    """Factor of the sum of losses, so that gradients averaged over ranks are means over samples."""
    end: int
    """The position in the epoch after this batch's optimizer step."""
    is_last: bool
    """Last batch of its optimizer step."""
    transform_seed: int | None
    """The field of Samples."""


class TestBatch(NamedTuple):
    images: Tensor
    labels: Tensor
    number: int
    """Its number among all; negative: it only fills up, and is not counted."""


class TrainBatches:
    """Gives Lightning the batches of an epoch, or of what is left of it after a resume."""

    def __init__(
        self,
        source: BatchSource,
        progress: Progress,
        timer: Timer,
    ) -> None:
        self.source = source
        self._progress = progress
        self._timer = timer

    def __len__(self) -> int:
        plan = self._progress.plan
        return math.ceil(plan.num_samples / (plan.batch_size * plan.world_size))

    def __iter__(self) -> Iterator[TrainBatch]:
        """Begins when the first batch is asked for: Lightning makes iterators beforehand."""
        self._progress.begin_epoch()
        self._timer.set_epoch(self._progress.position.epoch)
        begin = self._progress.position.samples
        steps = list(self._progress.plan.steps(begin))
        batches = self._batches()
        self._timer.begin()
        for end, shares in steps:
            scale = self._progress.plan.world_size / (end - begin)
            for share in shares:
                self._timer.skip()
                batch = next(batches)
                self._timer.mark("data_wait")
                yield TrainBatch(
                    images=batch.images,
                    labels=batch.labels,
                    num_samples=share.count,
                    scale=scale,
                    end=end,
                    is_last=share is shares[-1],
                    transform_seed=batch.transform_seed,
                )
            begin = end

    def _batches(self) -> Iterator[Samples]:
        position, plan = self._progress.position, self._progress.plan
        order = epoch_order(
            plan.num_samples, seed=self._progress.job.train.seed, epoch=position.epoch
        )
        shares = [share for _, shares in plan.steps(position.samples) for share in shares]
        return self.source.epoch(order, shares, position.epoch)


class TestBatches:
    """The test batches of a rank: as many in each rank, as fsdp needs it."""

    def __init__(self, scoring: Scoring, *, rank: int, world_size: int) -> None:
        self._scoring = scoring
        self._rank = rank
        self._world_size = world_size

    def __len__(self) -> int:
        return math.ceil(self._scoring.num_batches / self._world_size)

    def __iter__(self) -> Iterator[TestBatch]:
        numbers = [turn * self._world_size + self._rank for turn in range(len(self))]
        for number, batch in zip(numbers, self._scoring.batches(numbers), strict=True):
            counts = number < self._scoring.num_batches
            yield TestBatch(batch.images, batch.labels, number if counts else -1)


class JobData(LightningDataModule):
    """The job's data set: the same batches in the same order as the torch loop."""

    def __init__(
        self,
        data: DataSet,
        progress: Progress,
        timer: Timer,
        *,
        memory_format: torch.memory_format,
    ) -> None:
        super().__init__()
        make_source = partial(
            make_batches,
            device=progress.device,
            data=progress.job.data,
            memory_format=memory_format,
            report_bad=BadFileNotes(progress.context),
        )
        self.num_classes = data.num_classes
        self.first_samples = data.train.probe(LEAST_BATCH).to(
            progress.device, memory_format=memory_format
        )
        test = data.test
        if isinstance(test, Samples):
            test = test.to(progress.device, memory_format=memory_format)
        self.scoring = Scoring(test, progress.device, make_source)
        self._batches = TrainBatches(make_source(data.train), progress, timer)
        self._plan = progress.plan
        self._timer = timer

    def train_dataloader(self) -> TrainBatches:
        return self._batches

    def val_dataloader(self) -> TestBatches:
        return TestBatches(self.scoring, rank=self._plan.rank, world_size=self._plan.world_size)

    def transfer_batch_to_device(
        self,
        batch: Any,
        device: torch.device,  # noqa: ARG002 - as Lightning calls it
        dataloader_idx: int,  # noqa: ARG002
    ) -> Any:
        """Bring what is not there yet; test batches are, and they belong to no step."""
        if not isinstance(batch, TrainBatch) or self._batches.source.on_device:
            return batch
        handed = Samples(
            images=batch.images, labels=batch.labels, transform_seed=batch.transform_seed
        )
        brought = self._batches.source.bring(handed)
        self._timer.mark("host_to_device")
        return batch._replace(images=brought.images, labels=brought.labels, transform_seed=None)
