"""The job `lightning`: a plain training by Lightning, and the callback that records any of them."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.warnings import PossibleUserWarning
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.utils.data import DataLoader

from hpcdist.base.errors import EXIT_STOPPED, HpcdistError
from hpcdist.data.arrays import DataSet, Samples, to_unit_range
from hpcdist.data.batches import loader_options, make_batches
from hpcdist.data.catalog import load_data
from hpcdist.job.spec import LightningJob
from hpcdist.rank import own_loop as record
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import call_when_ready, is_sharded, note_order
from hpcdist.runs.events import Epoch, Evaluation, Resume, Setup
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.evaluation import Score, evaluate
from hpcdist.training.models import (
    build_model,
    compile_module,
    count_parameters,
    pick_memory_format,
    recompute_blocks,
)
from hpcdist.training.optimization import PRECISIONS, build_optimizer, learning_rate
from hpcdist.training.strategies import DDP_OPTIONS, STRATEGIES, cut_up

_LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")
_TIMEOUT: timedelta = default_pg_timeout
_PRECISIONS: dict[str, Any] = {"fp32": "32-true", "tf32": "32-true", "fp16-mixed": "16-mixed"}
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
        checkpoint.seed_weights(job.train.seed)
        self.net = build_model(job.model, data.image_shape, data.num_classes)
        self._is_built = False
        self._memory_format = pick_memory_format(
            self.net,
            setting=job.train.channels_last,
            sharded=job.strategy == "fsdp",
            tensor_cores=job.train.precision != "fp32",
            device=device,
        )
        self.net.to(memory_format=self._memory_format)
        self._call: Any = self.net.__call__
        self._weights = PRECISIONS[job.train.precision].weights
        self._test_source = make_batches(
            data.test,
            device=device,
            data=msgspec.structs.replace(job.data, workers=0),
            memory_format=self._memory_format,
        )
        self._losses: list[Tensor] = []

    def configure_model(self) -> None:
        """Spread the model as the job says; Lightning calls this in each of its stages."""
        if self._is_built:
            return
        self._is_built = True
        if self._job.train.activation_checkpointing:
            recompute_blocks(self.net)
        if self._job.strategy == "fsdp":
            assert self.device_mesh is not None
            cut_up(self.net, self.device_mesh["data_parallel"])
        compiled = compile_module(self.net, self._device_of_rank, setting=self._job.train.compile)
        # A bound method: a module would be a part of this one, and its weights there twice.
        self._call = compiled.__call__

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a plain loader: Lightning gives it a sampler for each rank."""
        options = loader_options(self._job.data, self._device_of_rank)
        train: Any = self._data.train
        return DataLoader(
            train, self._job.train.batch_size, shuffle=True, drop_last=True, **options
        )

    def configure_optimizers(self) -> Any:
        train = self._job.train
        # Lightning clips no gradients that a fused optimizer unscales.
        is_fused = not (train.clip_norm and train.precision.endswith("mixed"))
        optimizer = build_optimizer(self, train, fused=is_fused)
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
        checkpoint.seed_rank(self._job.train.seed, rank=self._context.rank, step=step)
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

    def forward(self, images: Tensor) -> Tensor:
        """Logits [samples, classes] of images [samples, channels, height, width]."""
        logits: Tensor = self._call(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        if not isinstance(self._data.train, Samples):
            images = to_unit_range(images)
        images = images.to(self._weights, memory_format=self._memory_format)
        loss = F.cross_entropy(self(images).float(), labels)
        self._losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        """Evaluate where that is due, and record the epoch."""
        context, train = self._context, self._job.train
        time_s = time.perf_counter() - self._begin_s
        is_complete, step = self.trainer.is_last_batch, self.trainer.global_step
        epoch = self.current_epoch + is_complete
        is_last = epoch == train.epochs or step == train.max_steps
        every = train.evaluate_every_epochs
        is_due = is_last or (is_complete and epoch % max(1, every) == 0)
        score = self._evaluate() if every and is_due else None
        if score is not None:
            context.events.write(Evaluation(epoch=epoch, step=step, **asdict(score)))
            self.log_dict({"loss": score.loss, "accuracy": score.accuracy}, rank_zero_only=False)
        loss = float(torch.stack(self._losses).mean()) if self._losses else None
        context.events.write(Epoch(epoch=epoch, step=step, loss=loss, epoch_time_s=time_s))
        if context.rank == 0:
            accuracy = f"  accuracy {100 * score.accuracy:.2f} %" if score else ""
            own = " (rank 0)" if context.world_size > 1 else ""
            shown = "" if loss is None else f"  loss {loss:.4f}{own}"
            total = int(self.trainer.estimated_stepping_batches)
            begin = f"epoch {epoch}/{train.epochs}"
            if not is_complete:
                begin = f"step {step:,}/{total:,} in epoch {epoch + 1}"
            context.say(f"{begin}{shown}{accuracy}")

    def _evaluate(self) -> Score:
        if self._context.world_size > 1:
            STRATEGIES["ddp"].align_buffers(self.net)
        self.net.eval()
        with torch.inference_mode(), self.trainer.precision_plugin.forward_context():
            score = evaluate(
                lambda images: self.net(images.to(self._weights)),
                self._test_source,
                len(self._data.test),
                self._device_of_rank,
                rank=self._context.rank,
                world_size=self._context.world_size,
                together=self._job.strategy == "fsdp",
                after_batch=self._context.progress.alive,
            )
        self.net.train()
        return score

    def on_train_end(self) -> None:
        """Save the last state, unless nothing is to be saved, or that was done."""
        setting, step = self._job.checkpoint, self.trainer.global_step
        folder = self._context.run.checkpoints_folder
        path = folder / checkpoint_files.file_name(step, checkpoint_files.LIGHTNING)
        is_there = self.trainer.strategy.broadcast(path.exists())
        if (setting.every_epochs or setting.every_steps) and not is_there:
            self.trainer.save_checkpoint(path)


def train(context: RankContext, job: LightningJob, *, has_group: bool) -> bool:
    """Train to the end; False where the agent asked to stop before: then a checkpoint is saved."""
    # Leave out of the ranks' logs what Lightning tells of accelerators, tips and ended loops, and
    # its guesses about what a user may have meant; warnings and errors stay.
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    # At checkpoint.resume, and at a restart.
    warnings.filterwarnings("ignore", "The dirpath has changed|Checkpoint directory .* exists")
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # Lightning 2.6 on torch 2.15
    PRECISIONS[job.train.precision].begin()
    path = _find_start(context, job, has_group=has_group)
    module = Classifier(context, job, load_data(job.data, seed=job.train.seed))
    trainer = _make_trainer(context, job)
    # What is asked of the loader here is asked of none that trains.
    parameters = count_parameters(module)
    steps = len(module.train_dataloader()) // context.world_size
    steps = -(-steps // job.train.accumulate) * job.train.epochs
    total_steps = min(steps, job.train.max_steps or steps)
    context.events.write(Setup(parameters=parameters, total_steps=total_steps))
    try:
        trainer.fit(module, ckpt_path=path, weights_only=True)
    except SystemExit as leaving:
        if leaving.code != EXIT_STOPPED:
            raise
        return False
    finally:
        record.finish()
    return True


def _find_start(context: RankContext, job: LightningJob, *, has_group: bool) -> Path | None:
    """Return the checkpoint to go on from, which every node must see."""
    path = checkpoint.find_start(context, job.checkpoint.resume, has_group=has_group)
    if path is None:
        return None
    if path.suffix != checkpoint_files.LIGHTNING:
        raise HpcdistError(
            f"{path} is not a checkpoint that the job lightning can go on from",
            hint="name one of a job with workload lightning with checkpoint.resume",
        )
    seen: list[Any] = [path.exists()] * context.world_size
    if has_group:
        dist.all_gather_object(seen, seen[0])
    if all(seen):
        return path
    if context.rank == 0:
        context.note(f"not all nodes see {path.name}: the training begins anew")
    return None


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
        strategy=_make_strategy(context, job),
        precision=_PRECISIONS.get(train.precision, train.precision),
        max_epochs=train.epochs,
        max_steps=train.max_steps or -1,
        accumulate_grad_batches=train.accumulate,
        gradient_clip_val=train.clip_norm,
        callbacks=callbacks,
        default_root_dir=context.run.path,
        logger=False,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _make_strategy(context: RankContext, job: LightningJob) -> Strategy | str:
    """Return Lightning's strategy, with the options that the torch loop gives its own."""
    if job.strategy == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=context.world_size,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=context.backend,
            timeout=_TIMEOUT,
        )
    if context.world_size == 1 and job.strategy == "auto":
        return "auto"
    options: dict[str, Any] = {**DDP_OPTIONS}
    return DDPStrategy(process_group_backend=context.backend, timeout=_TIMEOUT, **options)
