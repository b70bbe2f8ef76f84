"""The LightningModule: the model, its loss, its optimizer and its learning rate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from hpcdist.spec import TrainingJob
from hpcdist.training.evaluation import Score, Scoring
from hpcdist.training.lightning.data import TestBatch, TrainBatch
from hpcdist.training.lightning.progress import Progress
from hpcdist.training.optimization import Schedule, build_optimizer, set_rate
from hpcdist.training.timing import GpuTimer, HostTimer


class Classifier(LightningModule):
    """A classifier of images, trained as the torch loop trains it.

    Tells the timer what its hooks see: forward and backward passes, and the optimizer. What
    Lightning does between the end of a step and the next batch belongs to no phase.
    """

    def __init__(
        self,
        net: nn.Module,
        job: TrainingJob,
        *,
        progress: Progress,
        timer: HostTimer | GpuTimer,
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.net = net
        self.score: Score | None = None
        """What the last evaluation found."""
        self.batch_loss_sum = torch.zeros(())
        """Over this rank's samples of the last batch."""
        self.times_communication = False
        """Whether the timer is told of the last gradient: then the rest is communication."""
        self._train = job.train
        self._schedule = Schedule(train=job.train)
        self._progress = progress
        self._timer = timer
        self._scoring = scoring

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, channels, height, width]."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: TrainBatch, _batch_idx: int) -> Tensor:
        """The share of this batch in the mean loss of its optimizer step."""
        logits, labels = self.net(batch.images), batch.labels
        if batch.num_samples < len(labels):
            logits, labels = logits[: batch.num_samples], labels[: batch.num_samples]
        loss_sum = F.cross_entropy(logits, labels, reduction="sum")
        self.batch_loss_sum = loss_sum.detach()
        self._is_last = batch.is_last
        # Lightning divides by the number of accumulated batches, which the scale knows already.
        return loss_sum * (batch.scale * self._train.accumulate)

    def on_after_backward(self) -> None:
        """The gradients of a batch are there, averaged over the ranks where they are due."""
        if self._is_last and self.times_communication:
            self._timer.mark_backward()
        else:
            self._timer.mark("forward_backward")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The job's optimizer."""
        return build_optimizer(self, self._train)

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        """Set the learning rate as the torch loop does, and step."""
        position = self._progress.position
        epochs_done = position.epoch + position.samples / self._progress.plan.num_samples
        rate = self._schedule.rate(step=position.step, epochs_done=epochs_done)
        for optimizer in self.trainer.optimizers:
            set_rate(optimizer, rate)
        super().optimizer_step(*arguments, **options)
        self._timer.mark("optimizer")

    def optimizer_zero_grad(
        self,
        epoch: int,  # noqa: ARG002 - as Lightning calls it
        batch_idx: int,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Free the gradients."""
        optimizer.zero_grad(set_to_none=True)

    def validation_step(self, batch: TestBatch, _batch_idx: int) -> None:
        """Count what the model gets right in a batch."""
        logits = self.net(batch.images)
        if batch.number >= 0:
            self._scoring.add(batch.number, logits, batch.labels)

    def on_validation_epoch_end(self) -> None:
        """Add up over all ranks."""
        self.score = self._scoring.score(self._progress.plan.world_size)
