"""The Callback: what Lightning's training records, saves and when it stops, as the torch loop."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcdist.data.arrays import Samples
from hpcdist.rank.timing import Timer, call_when_ready, warm_up
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.saving import gather, note_saved
from hpcdist.training.checkpoint.state import get_rng_state, seed_rank, set_rng_state
from hpcdist.training.lightning.checkpoints import KEY, SUFFIX
from hpcdist.training.lightning.data import JobData, TrainBatch
from hpcdist.training.lightning.module import Classifier
from hpcdist.training.memory import MemoryLog
from hpcdist.training.optimization import get_settings, restore_settings
from hpcdist.training.progress import Progress


class Stopped(Exception):  # noqa: N818 - no error: it leaves Lightning's loops
    """The agent asked to stop, and a checkpoint is saved."""


class RunCallback(Callback):
    """Brings Lightning's training into the run: its events, checkpoints and stops."""

    def __init__(
        self,
        progress: Progress,
        data: JobData,
        *,
        timer: Timer,
        memory: MemoryLog,
        identity: dict[str, Any],
        resumed_from: dict[str, Any] | None,
    ) -> None:
        """`resumed_from`: what the checkpoint says under `KEY`."""
        self._progress = progress
        self._context = progress.context
        self._data = data
        self._timer = timer
        self._memory = memory
        self._identity = identity
        self._resumed_from = resumed_from
        self._step_samples = 0
        self._evaluation_begin_s = 0.0

    # The begin.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Remember who listens to SIGTERM: Lightning would end the training in its own way."""
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Remember the job's settings of the optimizer, before a checkpoint's are loaded."""
        self._settings = [get_settings(optimizer) for optimizer in trainer.optimizers]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have the job's settings again, try the model, and go on with the random generators."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for optimizer, settings in zip(trainer.optimizers, self._settings, strict=True):
            restore_settings(optimizer, settings)
        assert isinstance(pl_module, Classifier)
        self._warm_up(trainer, pl_module)
        states = self._resumed_from["rng"] if self._resumed_from else []
        if len(states) == self._context.world_size:
            set_rng_state(states[self._context.rank], self._progress.device)
        else:
            seed_rank(
                self._progress.job.train.seed,
                rank=self._context.rank,
                step=self._progress.position.step,
                device=self._progress.device,
            )

    def _warm_up(self, trainer: Trainer, module: Classifier) -> None:
        """Try the model on a batch, and have the timer told of the last gradient.

        With fsdp ranks talk throughout the backward pass, and all of it is one phase.
        """
        wrapped = trainer.strategy.model
        assert isinstance(wrapped, nn.Module)
        plugin = trainer.precision_plugin
        batch = self._data.first_samples.to(trainer.strategy.root_device)
        batch = Samples(images=plugin.convert_input(batch.images), labels=batch.labels)
        last = warm_up(wrapped, batch, plugin.forward_context(), num_classes=self._data.num_classes)
        wrapped.train()
        is_ddp = isinstance(wrapped, DistributedDataParallel) and trainer.world_size > 1
        if last is not None and is_ddp:
            module.times_communication = True
            call_when_ready(last, self._timer.note_last_gradient)

    # Steps.

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002 - as Lightning calls it
        batch: TrainBatch,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Count the batch; after the last of a step, record, stop or save as is due."""
        assert isinstance(pl_module, Classifier)
        loss_sum = pl_module.batch_loss_sum
        self._progress.add_loss(loss_sum, batch.num_samples)
        self._step_samples += batch.num_samples
        if not batch.is_last:
            return
        self._progress.step(batch.end)
        loss = loss_sum / batch.num_samples if batch.num_samples else None
        self._timer.step(samples=self._step_samples, loss=loss)
        self._step_samples = 0
        self._end_step(trainer)

    def _end_step(self, trainer: Trainer) -> None:
        progress = self._progress
        if progress.should_stop():
            self._stop(trainer)
        is_last = progress.is_at_max_steps
        if is_last:
            trainer.should_stop = True
        if is_last or progress.is_at_epoch_end:
            self._timer.wait()
            progress.end_steps()
            trainer.limit_val_batches = 1.0 if progress.is_evaluation_due else 0
        is_save_due = progress.is_end_to_save if is_last else progress.is_step_to_save
        if is_save_due and not progress.is_at_epoch_end:  # there it is saved with the epoch
            self._save(trainer)
            self._timer.mark("checkpoint")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Record the last window, and what was held."""
        self._timer.finish()
        self._memory.end(step=self._progress.position.step)

    def _stop(self, trainer: Trainer) -> None:
        self._timer.finish()
        self._memory.end(step=self._progress.position.step)
        if self._progress.saved != self._progress.position:
            self._save(trainer)
        self._progress.write_stop()
        raise Stopped

    # Evaluation, and the end of an epoch.

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Make buffers, such as batch norm's running means, those of rank 0, as ddp does not."""
        self._evaluation_begin_s = time.perf_counter()
        if self._context.world_size > 1:
            for buffer in pl_module.buffers():
                dist.broadcast(buffer, src=0)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        self._progress.tell_alive()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        assert isinstance(pl_module, Classifier)
        assert pl_module.score is not None
        self._progress.write_evaluation(pl_module.score, self._evaluation_begin_s)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the epoch, or what there was of it, and save where that is due."""
        assert isinstance(pl_module, Classifier)
        is_complete = self._progress.is_at_epoch_end
        self.end_epoch(pl_module)
        is_last = self._progress.is_finished and self._progress.is_end_to_save
        if is_complete and (is_last or self._progress.is_epoch_to_save):
            self._save(trainer)

    def end_epoch(self, module: Classifier) -> None:
        """Count the epoch, where it is complete, and record it."""
        score, module.score = module.score, None
        self._progress.end_epoch(score)

    # Saving.

    def on_save_checkpoint(
        self,
        trainer: Trainer,  # noqa: ARG002 - as Lightning calls it
        pl_module: LightningModule,  # noqa: ARG002
        checkpoint: dict[str, Any],
    ) -> None:
        """Add what Lightning does not know of; called by all ranks."""
        checkpoint[KEY] = {
            "position": asdict(self._progress.position),
            "rng": gather(self._context, get_rng_state(self._progress.device)),
            "identity": self._identity,
        }

    def _save(self, trainer: Trainer) -> None:
        begin_s = time.perf_counter()
        position = self._progress.saved = self._progress.position
        folder = self._context.run.checkpoints_folder
        path = folder / checkpoint_files.file_name(position.step, SUFFIX)
        trainer.save_checkpoint(path, weights_only=False)
        if self._context.rank != 0:
            return
        checkpoint_files.remove_old(folder, self._progress.job.checkpoint.keep)
        note_saved(
            self._context,
            path,
            step=position.step,
            epoch=self._progress.epochs_done,
            num_bytes=path.stat().st_size,
            begin_s=begin_s,
        )
