"""The Callback: what Lightning's training records, saves and when it stops, as the torch loop."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict
from typing import Any

import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer

from hpcdist.job.spec import LightningJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import GpuTimer, HostTimer
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.checkpoint.saving import gather, note_saved
from hpcdist.training.checkpoint.state import get_rng_state, seed_rank, set_rng_state
from hpcdist.training.epoch_line import epoch_line
from hpcdist.training.lightning.checkpoints import KEY
from hpcdist.training.lightning.data import TrainBatch
from hpcdist.training.lightning.module import Classifier
from hpcdist.training.lightning.preparing import prepare_ranks, settings_of, take_over
from hpcdist.training.lightning.progress import Progress
from hpcdist.training.memory import MemoryLog

SUFFIX = ".ckpt"


class Stopped(Exception):  # noqa: N818 - no error: it leaves Lightning's loops
    """The agent asked to stop, and a checkpoint is saved."""


class RunCallback(Callback):
    """Brings Lightning's training into the run: its events, checkpoints and stops."""

    def __init__(
        self,
        context: RankContext,
        job: LightningJob,
        *,
        progress: Progress,
        timer: HostTimer | GpuTimer,
        memory: MemoryLog,
        identity: dict[str, Any],
        resumed_from: dict[str, Any] | None,
    ) -> None:
        """`resumed_from`: what the checkpoint says under `KEY`."""
        self._context = context
        self._job = job
        self._progress = progress
        self._timer = timer
        self._memory = memory
        self._identity = identity
        self._resumed_from = resumed_from
        self._saved: Position | None = None
        self._evaluation_begin_s = 0.0
        self._epoch_time_s = 0.0
        self._signals: dict[int, Any] = {}

    # The begin.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Remember who listens to SIGTERM: Lightning would end the training in its own way."""
        self._signals = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Remember the job's settings of the optimizer, before a checkpoint's are loaded."""
        self._settings = settings_of(trainer.optimizers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring all to where the torch loop would be before its next step."""
        for signum, handler in self._signals.items():
            signal.signal(signum, handler)
        assert isinstance(pl_module, Classifier)
        take_over(trainer.optimizers, self._settings)
        prepare_ranks(trainer, pl_module, self._timer)
        self._restore_rng()

    def _restore_rng(self) -> None:
        states = self._resumed_from["rng"] if self._resumed_from else []
        if len(states) == self._context.world_size:
            set_rng_state(states[self._context.rank], self._progress.device)
            return
        step = self._progress.position.step
        rank, seed = self._context.rank, self._job.train.seed
        seed_rank(seed, rank=rank, step=step, device=self._progress.device)

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
        progress = self._progress
        progress.loss_sum += pl_module.batch_loss_sum
        progress.samples += batch.num_samples
        self._step_samples += batch.num_samples
        if not batch.is_last:
            return
        progress.step(batch.end)
        loss = pl_module.batch_loss_sum / batch.num_samples if batch.num_samples else None
        self._timer.step(samples=self._step_samples, loss=loss)
        self._step_samples = 0
        self._at_boundary(trainer)

    _step_samples = 0

    def _at_boundary(self, trainer: Trainer) -> None:
        if self._should_stop():
            self._stop(trainer)
        is_last = self._is_at_max_steps()
        if is_last:
            trainer.should_stop = True
        if is_last or self._progress.is_at_epoch_end:
            self._timer.wait()
            self._epoch_time_s = time.perf_counter() - self._progress.begin_s
            trainer.limit_val_batches = 1.0 if self.is_evaluation_due() else 0
        if self._is_step_to_save(is_last=is_last):
            self._save(trainer)
            self._timer.mark("checkpoint")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Record the last window, and what was held."""
        self._finish()

    def _finish(self) -> None:
        self._timer.finish()
        self._memory.end(step=self._progress.position.step)

    def _stop(self, trainer: Trainer) -> None:
        self._finish()
        if self._saved != self._progress.position:
            self._save(trainer)
        position = self._progress.position
        self._context.events.write("stop", step=position.step, epoch=position.epoch)
        if self._context.rank == 0:
            self._context.say(
                f"stopped at step {position.step}, as was asked; a checkpoint is saved"
            )
        raise Stopped

    # Evaluation.

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Make buffers, such as batch norm's running means, those of rank 0, as ddp does not."""
        self._evaluation_begin_s = time.perf_counter()
        if self._context.world_size > 1:
            for buffer in pl_module.buffers():
                dist.broadcast(buffer, src=0)

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Tell the agent that the rank is alive."""
        if self._context.progress is not None:
            self._context.progress.alive()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Record what was found."""
        assert isinstance(pl_module, Classifier)
        assert pl_module.score is not None
        self._context.events.write(
            "evaluate",
            epoch=self._progress.epochs_done,
            step=self._progress.position.step,
            evaluate_time_s=time.perf_counter() - self._evaluation_begin_s,
            **asdict(pl_module.score),
        )

    # The end of an epoch.

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the epoch, or what there was of it, and save where that is due."""
        assert isinstance(pl_module, Classifier)
        complete = self._progress.is_at_epoch_end
        self.end_epoch(pl_module, epoch_time_s=self._epoch_time_s)
        if complete and self._is_epoch_to_save():
            self._save(trainer)

    def end_epoch(self, module: Classifier, *, epoch_time_s: float) -> None:
        """Count the epoch, where it is complete, and tell of it."""
        progress = self._progress
        if progress.is_at_epoch_end:
            progress.end_epoch()
        loss = float(progress.loss_sum) / progress.samples if progress.samples else None
        self._context.events.write(
            "epoch",
            epoch=progress.position.epoch,
            step=progress.position.step,
            loss=loss,
            epoch_time_s=epoch_time_s,
        )
        score, module.score = module.score, None
        if self._context.rank == 0:
            self._context.say(
                epoch_line(
                    progress.position,
                    epochs=self._job.train.epochs,
                    world_size=self._context.world_size,
                    loss=loss,
                    score=score,
                    samples_per_s=progress.global_samples / epoch_time_s if epoch_time_s else 0.0,
                )
            )

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
        position = self._saved = self._progress.position
        folder = self._context.run.checkpoints_folder
        path = folder / checkpoint_files.file_name(position.step, SUFFIX)
        trainer.save_checkpoint(path, weights_only=False)
        if self._context.rank != 0:
            return
        checkpoint_files.remove_old(folder, self._job.checkpoint.keep)
        note_saved(
            self._context,
            path,
            step=position.step,
            epoch=self._progress.epochs_done,
            num_bytes=path.stat().st_size,
            begin_s=begin_s,
        )

    # When.

    def is_finished(self) -> bool:
        """Whether there is no step left to train."""
        return self._progress.epochs_done >= self._job.train.epochs or self._is_at_max_steps()

    def is_evaluation_due(self) -> bool:
        """Whether to evaluate at this end of an epoch, or of the training."""
        every = self._job.train.evaluate_every_epochs
        if not every:
            return False
        by_epoch = self._progress.is_at_epoch_end and self._progress.epochs_done % every == 0
        return self.is_finished() or by_epoch

    def _should_stop(self) -> bool:
        return self._context.progress is not None and self._context.progress.should_stop()

    def _is_at_max_steps(self) -> bool:
        limit = self._job.train.max_steps
        return limit is not None and self._progress.position.step >= limit

    def _is_step_to_save(self, *, is_last: bool) -> bool:
        """Whether to save in the midst of an epoch; at its end it is done with the epoch."""
        setting = self._job.checkpoint
        if self._progress.is_at_epoch_end or self._saved == self._progress.position:
            return False
        if is_last:
            return bool(setting.every_epochs or setting.every_steps)
        return bool(setting.every_steps) and self._progress.position.step % setting.every_steps == 0

    def _is_epoch_to_save(self) -> bool:
        setting, position = self._job.checkpoint, self._progress.position
        if self.is_finished() and (setting.every_epochs or setting.every_steps):
            return True
        by_epoch = bool(setting.every_epochs) and position.epoch % setting.every_epochs == 0
        by_step = bool(setting.every_steps) and position.step % setting.every_steps == 0
        return by_epoch or by_step
