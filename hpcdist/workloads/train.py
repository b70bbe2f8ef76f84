"""The trainers: the torch loop and PyTorch Lightning, in every rank of a training job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.job.spec import LightningJob, TrainingJob, TrainJob
from hpcdist.rank.context import RankContext, Workload
from hpcdist.training.checks import (
    check_kind_of_device,
    check_settings,
    check_training,
    prepare_data,
    require_compiler,
    training_modules,
    try_model,
)
from hpcdist.training.group import process_group

TrainingJobT = TypeVar("TrainingJobT", bound=TrainingJob)


class _Training(Workload[TrainingJobT]):
    """The common part of both trainers. Ranks that were asked to stop leave with EXIT_STOPPED."""

    def check(self) -> None:
        """Raise JobError for all that can be known to be wrong without importing torch."""
        check_settings(self.job)
        check_training(self.job)

    def check_device(self, device: str) -> None:
        check_kind_of_device(self.job, device)

    def check_host(self, device: str) -> None:
        """Raise JobError where the job compiles its model and this host has no compiler."""
        if self.job.train.compile:
            require_compiler(device)

    def try_code(self) -> None:
        try_model(self.job.model, self.job.data)

    def prepare(self) -> None:
        prepare_data(self.job)

    def _train(
        self, context: RankContext, train: Callable[..., bool], *, needs_group: bool
    ) -> None:
        """Call `train` with this rank's threads, device and group; it returns False if it stops."""
        import torch

        torch.set_num_threads(self.job.train.num_threads or context.num_threads)
        if context.device.startswith("cuda"):
            torch.cuda.set_device(context.device)
        with process_group(context, needed=needs_group) as has_group:
            is_done = train(context, self.job, has_group=has_group)
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
