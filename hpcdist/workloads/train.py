"""The trainers: the torch loop and PyTorch Lightning, in every rank of a training job."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.data.catalog import find_data_set
from hpcdist.job.spec import LightningJob, TrainJob
from hpcdist.rank.context import RankContext, Workload
from hpcdist.training.checks import (
    check_training,
    training_modules,
    try_model,
)
from hpcdist.training.group import process_group

TrainingJobT = TypeVar("TrainingJobT", TrainJob, LightningJob)


class _Training(Workload[TrainingJobT]):
    """The common part of both trainers. Ranks that were asked to stop leave with EXIT_STOPPED."""

    def check(self) -> None:
        """Raise JobError for all that can be known to be wrong without importing torch."""
        check_training(self.job)

    def try_code(self) -> None:
        try_model(self.job.model, self.job.data)

    def prepare(self) -> None:
        find_data_set(self.job.data).prepare(self.job.data)

    def _train(
        self, context: RankContext, train: Callable[..., bool], *, needs_group: bool
    ) -> None:
        """Call `train` with this rank's threads, device and group; it returns False if it stops."""
        import torch

        torch.set_num_threads(self.job.train.num_threads or context.num_threads)
        if context.device.startswith("cuda"):
            torch.cuda.set_device(context.device)
        with process_group(context) if needs_group else nullcontext():
            is_done = train(context, self.job)
        if not is_done:
            raise SystemExit(EXIT_STOPPED)


class LightningWorkload(_Training[LightningJob]):
    """Training by PyTorch Lightning's Trainer."""

    def preload(self) -> list[str]:
        """Return Lightning, which takes longer to import than torch itself, and what it needs."""
        return ["hpcdist.training.lightning", *training_modules(self.job)]

    def run(self, context: RankContext) -> None:
        from hpcdist.training.lightning import train

        needs_group = context.world_size > 1 or self.job.strategy != "auto"
        self._train(context, train, needs_group=needs_group)


class TrainWorkload(_Training[TrainJob]):
    """Training by the torch loop of this package."""

    def preload(self) -> list[str]:
        """Return the loop, which imports torch, and what the strategy and the data need."""
        return ["hpcdist.training.loop", *training_modules(self.job)]

    def run(self, context: RankContext) -> None:
        from hpcdist.training.loop import train
        from hpcdist.training.strategies import STRATEGIES

        self._train(context, train, needs_group=STRATEGIES[self.job.strategy].uses_group)
