"""The LightningModule: steps, records, checkpoints and stops of the torch loop in its hooks."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from hpcdist.training.checkpoint.checkpoint import LIGHTNING_KEY
from hpcdist.training.lightning.checkpoints import SUFFIX
from hpcdist.training.model.building import compile_module, recompute_blocks
from hpcdist.training.optimization import build_optimizer, get_settings, restore_settings
from hpcdist.training.ranks import TrainingRank
from hpcdist.training.strategies import cut_up


class Stopped(Exception):  # noqa: N818 - no error: it leaves Lightning's loops
    """The agent asked to stop, and a checkpoint is saved."""


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


class TrainBatches:
    """Gives Lightning the batches of an epoch, or of what is left of it after a resume."""

    def __init__(self, rank: TrainingRank) -> None:
        self._rank = rank

    def __len__(self) -> int:
        plan = self._rank.plan
        return math.ceil(plan.num_samples / (plan.batch_size * plan.world_size))

    def __iter__(self) -> Iterator[TrainBatch]:
        """Begin when the first batch is asked for: Lightning makes iterators beforehand."""
        steps, batches = self._rank.begin_epoch()
        begin = self._rank.progress.position.samples
        for end, shares in steps:
            for share in shares:
                self._rank.timer.skip()
                batch = self._rank.next_batch(batches)
                yield TrainBatch(
                    images=batch.images,
                    labels=batch.labels,
                    num_samples=share.count,
                    scale=self._rank.plan.world_size / (end - begin),
                    end=end,
                    is_last=share is shares[-1],
                )
            begin = end


class Classifier(LightningModule):
    """A classifier of images, trained as the torch loop trains it.

    Tells the timer what its hooks see: forward and backward passes, and the optimizer. What
    Lightning does between the end of a step and the next batch belongs to no phase. Evaluation is
    the torch loop's own: Lightning's has no part in it.
    """

    def __init__(self, rank: TrainingRank, rng_states: list[dict[str, Any]]) -> None:
        """`rng_states`: those of the random generators in the checkpoint to go on from."""
        super().__init__()
        self.net = rank.model
        self._rank = rank
        self._train = rank.job.train
        self._rng_states = rng_states
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._is_built = False
        self._call: Callable[[Tensor], Tensor] = self.net.__call__
        self._step_samples = 0

    def configure_model(self) -> None:
        """Spread the model as the job says; Lightning calls this in each of its stages."""
        if self._is_built:
            return
        self._is_built = True
        if self._train.activation_checkpointing:
            recompute_blocks(self.net)
        if self._rank.strategy.is_sharded:
            mesh = self.device_mesh
            assert mesh is not None
            cut_up(self.net, mesh["data_parallel"])
        compiled = compile_module(self.net, self._rank.device, setting=self._train.compile)
        # A bound method: a module would be a part of this one, and its weights there twice.
        self._call = compiled.__call__

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self._optimizer = build_optimizer(self, self._train)
        self._settings = get_settings(self._optimizer)
        return self._optimizer

    def train_dataloader(self) -> TrainBatches:
        return TrainBatches(self._rank)

    def on_train_start(self) -> None:
        """Try the model, and go on with what Lightning has changed, or does not know of."""
        # Lightning would end the training in its own way.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        restore_settings(self._optimizer, self._settings)  # those of the checkpoint were loaded
        wrapped = self.trainer.strategy.model
        assert isinstance(wrapped, nn.Module)
        self._rank.time_communication(self._rank.warm_up(wrapped))
        wrapped.train()
        self._rank.seed(self._rng_states)
        progress = self._rank.progress
        if progress.position.samples and (progress.is_finished or progress.is_at_epoch_end):
            self._rank.end_epoch()  # stopped after the epoch's last step: what follows is due
            self.trainer.should_stop = progress.is_finished

    # Steps.

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, channels, height, width]."""
        logits: Tensor = self.net(images)
        return logits

    def training_step(self, batch: TrainBatch, _batch_idx: int) -> Tensor:
        """Return the share of this batch in the mean loss of its optimizer step."""
        logits = self._call(batch.images)
        loss_sum = self._rank.sum_losses(logits, batch.labels, batch.num_samples)
        self._batch_loss_sum = loss_sum.detach()
        self._is_last = batch.is_last
        # Lightning divides by the number of accumulated batches, which the scale knows already.
        return loss_sum * (batch.scale * self._train.accumulate)

    def on_after_backward(self) -> None:
        """Mark the gradients of a batch, averaged over the ranks where they are due."""
        self._rank.mark_backward(is_last=self._is_last)

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        """Set the learning rate as the torch loop does, and step."""
        self._rank.set_rate(self._optimizer)
        super().optimizer_step(*arguments, **options)
        # Lightning frees the gradients before the next backward pass: they are still there.
        self._rank.memory.step(self, self._optimizer)
        self._rank.timer.mark("optimizer")

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

    def on_train_batch_end(self, outputs: Any, batch: TrainBatch, batch_idx: int) -> None:  # noqa: ARG002
        """Count the batch; after the last of a step, record, stop or save as is due."""
        progress, loss_sum = self._rank.progress, self._batch_loss_sum
        progress.add_loss(loss_sum, batch.num_samples)
        self._step_samples += batch.num_samples
        if not batch.is_last:
            return
        progress.step(batch.end)
        loss = loss_sum / batch.num_samples if batch.num_samples else None
        self._rank.end_step(samples=self._step_samples, loss=loss)
        self._step_samples = 0
        if progress.should_stop():
            self._rank.stop(self._save)
            raise Stopped
        is_save_due = progress.is_step_to_save
        if progress.is_at_max_steps:
            self.trainer.should_stop = True
            is_save_due = progress.is_end_to_save
        if is_save_due and not progress.is_at_epoch_end:  # there it is saved with the epoch
            self._save()
            self._rank.timer.mark("checkpoint")

    def on_train_epoch_end(self) -> None:
        """Record the epoch, or what there was of it, and save where that is due."""
        progress = self._rank.progress
        is_complete = progress.is_at_epoch_end
        self._rank.end_epoch()
        is_last = progress.is_finished and progress.is_end_to_save
        if is_complete and (is_last or progress.is_epoch_to_save):
            self._save()

    def on_train_end(self) -> None:
        self._rank.finish()

    # Checkpoints.

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not know of; called by all ranks."""
        checkpoint[LIGHTNING_KEY] = self._rank.describe_state()

    def _save(self) -> None:
        self._rank.save(SUFFIX, lambda path: self.trainer.save_checkpoint(path, weights_only=False))
