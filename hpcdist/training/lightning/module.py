"""The LightningModule: the model, its loss, its optimizer and its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from hpcdist.job.spec import LightningJob
from hpcdist.rank.timing import Timer
from hpcdist.training.evaluation import Score, Scoring
from hpcdist.training.lightning.data import TestBatch, TrainBatch
from hpcdist.training.memory import MemoryLog
from hpcdist.training.model.building import compile_module, recompute_blocks
from hpcdist.training.optimization import Schedule, build_optimizer, set_rate
from hpcdist.training.progress import Progress
from hpcdist.training.strategies import cut_up


class Classifier(LightningModule):
    """A classifier of images, trained as the torch loop trains it.

    Tells the timer what its hooks see: forward and backward passes, and the optimizer. What
    Lightning does between the end of a step and the next batch belongs to no phase.
    """

    def __init__(
        self,
        net: nn.Module,
        job: LightningJob,
        *,
        progress: Progress,
        timer: Timer,
        memory: MemoryLog,
        scoring: Scoring,
    ) -> None:
        super().__init__()
        self.net = net
        self.score: Score | None = None
        """The result of the last evaluation."""
        self.batch_loss_sum = torch.zeros(())
        """Over this rank's samples of the last batch."""
        self.times_communication = False
        """The timer is told of the last gradient: then the rest is communication."""
        self._train = job.train
        self._is_sharded = job.strategy == "fsdp"
        self._is_built = False
        self._call: Callable[[Tensor], Tensor] = net.__call__
        self._schedule = Schedule(train=job.train)
        self._progress = progress
        self._timer = timer
        self._memory = memory
        self._scoring = scoring

    def configure_model(self) -> None:
        """Spread the model as the job says; Lightning calls this in each of its stages."""
        if self._is_built:
            return
        self._is_built = True
        if self._train.activation_checkpointing:
            recompute_blocks(self.net)
        if self._is_sharded:
            mesh = self.device_mesh
            assert mesh is not None
            cut_up(self.net, mesh["data_parallel"])
        compiled = compile_module(self.net, self._progress.device, setting=self._train.compile)
        # A bound method: a module would be a part of this one, and its weights there twice.
        self._call = compiled.__call__

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, channels, height, width]."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: TrainBatch, _batch_idx: int) -> Tensor:
        """Return the share of this batch in the mean loss of its optimizer step."""
        logits, labels = self._call(batch.images).float(), batch.labels
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
        self._optimizer = build_optimizer(self, self._train)
        return self._optimizer

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        """Set the learning rate as the torch loop does, and step."""
        step = self._progress.position.step
        rate = self._schedule.rate(step=step, epochs_done=self._progress.exact_epochs_done)
        for optimizer in self.trainer.optimizers:
            set_rate(optimizer, rate)
        super().optimizer_step(*arguments, **options)
        # Lightning frees the gradients before the next backward pass: they are still there.
        self._memory.step(self, self._optimizer, step=step)
        self._timer.mark("optimizer")

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        *_: Any,  # Lightning's own settings of it
        **__: Any,
    ) -> None:
        """Clip as the torch loop does, also what the optimizer in its fused form would unscale."""
        if self._train.clip_norm is None:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)  # others Lightning has unscaled before
        nn.utils.clip_grad_norm_(self.net.parameters(), self._train.clip_norm)

    def validation_step(self, batch: TestBatch, _batch_idx: int) -> None:
        """Count what the model gets right in a batch."""
        logits = self.net(batch.images)
        if batch.number >= 0:
            self._scoring.add(batch.number, logits, batch.labels)

    def on_validation_epoch_end(self) -> None:
        self.score = self._scoring.score(self._progress.plan.world_size)
