"""The job `lightning`: a plain training by Lightning, and the callback that records any of them."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.warnings import PossibleUserWarning
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.utils.data import DataLoader

from hpcdist.base.errors import EXIT_STOPPED, HpcdistError
from hpcdist.data.arrays import DataSet, Samples
from hpcdist.data.batches import loader_options, make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.order import derive_seed
from hpcdist.job.spec import LightningJob
from hpcdist.rank import own_loop as record
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import call_when_ready, is_sharded, note_order
from hpcdist.runs.events import Epoch, Resume, Setup
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.evaluation import Score, record_epoch, score_model
from hpcdist.training.models import count_parameters, make_model, seed_all
from hpcdist.training.strategies import DDP_OPTIONS, STRATEGIES, build_optimizer, learning_rate

_LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")
_PRECISIONS: dict[str, Any] = {"fp32": "32-true", "fp16-mixed": "16-mixed"}
"""train.precision -> Lightning's name, where that is another."""


class LightningCallback(Callback):
    """Records the steps of a Trainer, and stops it with a checkpoint when that is asked for:

    trainer = Trainer(callbacks=[record.LightningCallback()], ...)
    trainer.fit(model, loader, ckpt_path=record.LightningCallback.newest())
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        """`folder`: for the checkpoint at a stop; None: checkpoints/ in the run directory."""
        self._folder = _checkpoints_folder() if folder is None else Path(folder)
        self._order: list[nn.Parameter] = []
        self._hooks: list[Any] = []
        self._tells_waiting = self._has_saved = False
        self._step = self._samples = 0
        self._rate: float | None = None

    @staticmethod
    def newest(folder: str | Path | None = None) -> Path | None:
        """Return the newest checkpoint that such a stop has saved; None: there is none."""
        place = _checkpoints_folder() if folder is None else Path(folder)
        saved = checkpoint_files.list_checkpoints(place) if place.is_dir() else []
        return next((path for path in saved if path.suffix == checkpoint_files.LIGHTNING), None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = trainer.global_step
        record.start(first_step=self._step)  # in the midst of an epoch, no other begins
        if trainer.world_size > 1 and not is_sharded(pl_module.parameters()):
            self._hooks = note_order(pl_module, self._order)

    def on_train_epoch_start(self, trainer: Trainer, _: LightningModule) -> None:
        record.start(first_step=trainer.global_step)

    def on_train_batch_start(self, *_: Any) -> None:
        record.mark("checkpoint" if self._has_saved else "data_wait")
        self._has_saved = False

    def on_save_checkpoint(self, *_: Any) -> None:
        self._has_saved = True

    def on_after_backward(self, *_: Any) -> None:
        timer = record.current_timer()
        if timer is not None and self._tells_waiting:
            timer.mark_backward()
        else:
            record.mark("forward_backward")
        if timer is not None and self._hooks and self._order:
            for hook in self._hooks:
                hook.remove()
            self._hooks, self._tells_waiting = [], True
            # What follows the last gradient in a backward pass is waiting for other ranks.
            call_when_ready(self._order[-1], timer.note_last_gradient)

    def on_before_optimizer_step(self, _: Any, __: Any, optimizer: torch.optim.Optimizer) -> None:
        self._rate = optimizer.param_groups[0]["lr"]  # before the schedule goes on

    def on_train_batch_end(
        self, trainer: Trainer, _: LightningModule, outputs: Any, batch: Any, __: int
    ) -> None:
        self._samples += _size_of(batch)
        if trainer.global_step == self._step:  # gradients are added up
            return
        self._step = trainer.global_step
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        record.mark("optimizer")
        record.step(samples=self._samples, loss=loss, learning_rate=self._rate)
        self._samples = 0
        if record.should_stop():
            name = checkpoint_files.file_name(self._step, checkpoint_files.LIGHTNING)
            trainer.save_checkpoint(self._folder / name)  # by all ranks: Lightning waits for them
            sys.exit(EXIT_STOPPED)


def _checkpoints_folder() -> Path:
    return Path(os.environ.get("HPCDIST_RUN_DIR", "."), "checkpoints")


def _size_of(batch: Any) -> int:
    """Return the samples of a batch, by its first tensor."""
    while isinstance(batch, dict | list | tuple) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch) if hasattr(batch, "__len__") else 1


class Classifier(LightningModule):
    """A classifier of images. Its evaluation is that of the torch loop, which counts every sample
    once whatever the number of ranks."""

    def __init__(self, context: RankContext, job: LightningJob, data: DataSet) -> None:
        super().__init__()
        self._context, self._job, self._data = context, job, data
        self._device_of_rank = device = torch.device(context.device)
        self.net, self._memory_format = make_model(job, data, device)
        self._test_source = make_batches(
            data.test, device, job.data, memory_format=self._memory_format
        )
        self._losses: list[Tensor] = []

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a plain loader: Lightning gives it a sampler for each rank."""
        options = loader_options(self._job.data, self._device_of_rank)
        train: Any = self._data.train
        return DataLoader(
            train, self._job.train.batch_size, shuffle=True, drop_last=True, **options
        )

    def configure_optimizers(self) -> Any:
        train = self._job.train
        optimizer = build_optimizer(self, train)
        assert self.trainer.estimated_stepping_batches  # counts the batches of an epoch
        epoch_steps = -(-int(self.trainer.num_training_batches) // train.accumulate)

        def factor(step: int) -> float:
            epochs_done = step / epoch_steps
            return learning_rate(train, step=step, epochs_done=epochs_done) / train.lr

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_start(self) -> None:
        self._begin_s = time.perf_counter()
        step, epoch = self.trainer.global_step, self.trainer.current_epoch
        total_steps = int(self.trainer.estimated_stepping_batches)
        setup = Setup(parameters=count_parameters(self.net), total_steps=total_steps)
        self._context.events.write(setup)
        seed = derive_seed(self._job.train.seed, self._context.rank, step, 1)
        seed_all(seed, self._device_of_rank)
        if self.trainer.ckpt_path is None:
            return
        name = Path(self.trainer.ckpt_path).name
        resume = Resume(checkpoint=name, step=step, epoch=epoch, exact=False)
        self._context.events.write(resume)
        if self._context.rank == 0:
            self._context.say(f"going on from {name}: step {step}, epoch {epoch}")

    def on_train_epoch_start(self) -> None:
        self._begin_s = time.perf_counter()
        self._losses.clear()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        (images, labels), train = batch, self._data.train
        if isinstance(train, Samples):
            images = images.to(memory_format=self._memory_format)
        else:
            images = train.normalize(images, self._memory_format)
        loss = F.cross_entropy(self.net(images).float(), labels)
        self._losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        """Evaluate where that is due, and record the epoch."""
        train = self._job.train
        time_s = time.perf_counter() - self._begin_s
        is_complete, step = self.trainer.is_last_batch, self.trainer.global_step
        epoch = self.current_epoch + is_complete
        is_last = epoch == train.epochs or step == train.max_steps
        every = train.evaluate_every_epochs
        is_due = is_last or (is_complete and epoch % max(1, every) == 0)
        score = self._evaluate() if every and is_due else None
        if score is not None:
            self.log_dict({"loss": score.loss, "accuracy": score.accuracy}, rank_zero_only=False)
        begun_of = None if is_complete else int(self.trainer.estimated_stepping_batches)
        loss = float(torch.stack(self._losses).mean()) if self._losses else None
        event = Epoch(epoch=epoch, step=step, loss=loss, epoch_time_s=time_s)
        record_epoch(self._context, event, score, epochs=train.epochs, begun_of=begun_of)

    def _evaluate(self) -> Score:
        if self._context.world_size > 1:
            STRATEGIES["ddp"].align_buffers(self.net)
        autocast = self.trainer.precision_plugin.forward_context()
        source, num_samples = self._test_source, len(self._data.test)
        return score_model(self.net, source, num_samples, self._context, autocast=autocast)


def train(context: RankContext, job: LightningJob) -> bool:
    """Train to the end; leave with EXIT_STOPPED, and a checkpoint, where the agent asks to stop."""
    # Leave out of the ranks' logs what Lightning tells of accelerators, tips and ended loops, and
    # its guesses about what a user may have meant; warnings and errors stay.
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    # At checkpoint.resume, and at a restart.
    warnings.filterwarnings("ignore", "The dirpath has changed|Checkpoint directory .* exists")
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # Lightning 2.6 on torch 2.15
    path = checkpoint.find_start(context, job.checkpoint.resume)  # which every node must see
    if path is not None and path.suffix != checkpoint_files.LIGHTNING:
        raise HpcdistError(
            f"{path} is not a checkpoint that the job lightning can go on from",
            hint="name one of a job with workload lightning with checkpoint.resume",
        )
    module = Classifier(context, job, load_data(job.data, seed=job.train.seed))
    trainer = _make_trainer(context, job)
    try:
        trainer.fit(module, ckpt_path=path, weights_only=True)
    finally:
        record.finish()
    return True


def _make_trainer(context: RankContext, job: LightningJob) -> Trainer:
    """Return the Trainer. The variables that torchrun sets say where the rank is, whatever those of
    Slurm, LSF or MPI say of the agent."""
    train, setting = job.train, job.checkpoint
    accelerator = "cuda" if context.device.startswith("cuda") else "cpu"
    save = partial(
        ModelCheckpoint,
        dirpath=context.run.checkpoints_folder,
        auto_insert_metric_name=False,
        enable_version_counter=False,
    )
    newest = partial(
        save, filename="step-{step:08d}", monitor="step", mode="max", save_top_k=setting.keep
    )
    mode = "max" if train.monitor == "accuracy" else "min"
    strategy: Strategy | str = "auto"
    if context.world_size > 1 or job.strategy == "ddp":
        options: dict[str, Any] = {**DDP_OPTIONS, "timeout": default_pg_timeout}
        strategy = DDPStrategy(process_group_backend=context.backend, **options)
    callbacks: list[Callback] = [LightningCallback(context.run.checkpoints_folder)]
    if train.patience:
        patience = train.patience * max(1, train.evaluate_every_epochs)
        callbacks.append(
            EarlyStopping(
                train.monitor,
                patience=patience,
                mode=mode,
                strict=False,
                check_on_train_epoch_end=True,
            )
        )
    if setting.every_steps:
        callbacks.append(newest(every_n_train_steps=setting.every_steps))
    if setting.every_epochs:
        callbacks.append(newest(every_n_epochs=setting.every_epochs, save_on_train_epoch_end=True))
    if train.keep_best:
        best = save(filename="best", monitor=train.monitor, mode=mode, save_on_train_epoch_end=True)
        callbacks.append(best)
    return Trainer(
        plugins=[TorchElasticEnvironment()],
        accelerator=accelerator,
        devices=context.local_world_size,
        num_nodes=context.num_nodes,
        strategy=strategy,
        precision=_PRECISIONS.get(train.precision, train.precision),
        max_epochs=train.epochs,
        max_steps=train.max_steps or -1,
        accumulate_grad_batches=train.accumulate,
        callbacks=callbacks,
        default_root_dir=context.run.path,
        logger=False,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
