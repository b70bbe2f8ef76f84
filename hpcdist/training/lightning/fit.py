"""One rank's part in a training by Lightning: made ready, gone on from a checkpoint, run."""

from __future__ import annotations

import logging
import time
import warnings
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.warnings import PossibleUserWarning
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.precision import HalfPrecision, MixedPrecision, Precision
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import nn
from torch.distributed.constants import default_pg_timeout

from hpcdist.data.arrays import DataSet
from hpcdist.data.catalog import load_data
from hpcdist.data.images.memory import share_decoded
from hpcdist.data.order import LEAST_BATCH, EpochPlan
from hpcdist.job.spec import LightningJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import make_timer
from hpcdist.training.checkpoint.resume import (
    describe_training,
    find_start,
    require_same_training,
)
from hpcdist.training.lightning.callback import RunCallback, Stopped
from hpcdist.training.lightning.checkpoints import (
    KEY,
    CheckpointFiles,
    ShardedStrategy,
    go_on_from,
    load,
)
from hpcdist.training.lightning.data import JobData
from hpcdist.training.lightning.module import Classifier
from hpcdist.training.memory import MemoryLog
from hpcdist.training.model.building import build_noted, set_num_threads
from hpcdist.training.model.models import count_parameters, pick_memory_format
from hpcdist.training.optimization import PRECISIONS
from hpcdist.training.progress import Progress
from hpcdist.training.strategies import NO_BUFFER_SYNC

_LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")
_TIMEOUT: timedelta = default_pg_timeout


def fit(context: RankContext, job: LightningJob, *, has_group: bool, begin_s: float) -> bool:
    """Train to the end; False where the agent asked to stop before: then a checkpoint is saved."""
    _keep_quiet()
    data = load_data(job.data, seed=job.train.seed, device=context.device)
    share_decoded(data, context, job, has_group=has_group)
    path = find_start(context, job, has_group=has_group)
    state = None if path is None else load(path)
    progress = Progress(context, job, _plan(context, job, len(data.train)))
    progress.note_device_transform()
    net, memory_format = _build(progress, job, data)
    identity = describe_training(job, context)
    if state is not None:
        require_same_training(state[KEY]["identity"], identity, "the checkpoint")
        go_on_from(state, progress)
    timer = make_timer(context, first_step=progress.position.step)
    memory = MemoryLog(context.events, progress.device)
    batches = JobData(data, progress, timer, memory_format=memory_format)
    module = Classifier(
        net, job, progress=progress, timer=timer, memory=memory, scoring=batches.scoring
    )
    callback = RunCallback(
        progress,
        batches,
        timer=timer,
        memory=memory,
        identity=identity,
        resumed_from=None if state is None else state[KEY],
    )
    trainer = _make_trainer(context, job, callback, CheckpointFiles(context, state))
    progress.write_setup(
        data, parameters=count_parameters(module), setup_time_s=time.perf_counter() - begin_s
    )
    if path is not None and state is not None:
        progress.write_resume(path.name, state[KEY]["identity"], identity)
    resume = None if path is None else str(path)
    if progress.position.samples and (progress.is_finished or progress.is_at_epoch_end):
        # Stopped after the epoch's last step: what follows is due.
        if progress.is_evaluation_due:
            trainer.validate(module, datamodule=batches, ckpt_path=resume, verbose=False)
        callback.end_epoch(module)
    return progress.is_finished or _fit(trainer, module, batches, resume)


def _fit(trainer: Trainer, module: Classifier, data: JobData, resume: str | None) -> bool:
    try:
        trainer.fit(module, datamodule=data, ckpt_path=resume)
    except Stopped:
        return False
    return True


def _keep_quiet() -> None:
    """Leave out of the ranks' logs what Lightning tells of accelerators, tips and ended loops, and
    its guesses about what a user may have meant; warnings and errors stay."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # Lightning 2.6 on torch 2.15


def _plan(context: RankContext, job: LightningJob, num_samples: int) -> EpochPlan:
    return EpochPlan(
        num_samples=num_samples,
        batch_size=job.train.batch_size,
        accumulate=job.train.accumulate,
        rank=context.rank,
        world_size=context.world_size,
    )


def _build(
    progress: Progress, job: LightningJob, data: DataSet
) -> tuple[nn.Module, torch.memory_format]:
    """Return the model, on the CPU, and the memory format of its weights and images."""
    net = build_noted(job, data, progress.context.events)
    precision = PRECISIONS[job.train.precision]
    precision.begin(progress.device)
    progress.note(precision.note(progress.device))
    memory_format = pick_memory_format(
        net,
        setting=job.train.channels_last,
        sharded=job.strategy == "fsdp",
        tensor_cores=precision.uses_tensor_cores,
        device=progress.device,
    )
    net = net.to(memory_format=memory_format)
    if job.train.num_threads is None and progress.device.type == "cpu":
        images = data.train.probe(LEAST_BATCH).images.to(memory_format=memory_format)
        set_num_threads(
            net,
            images,
            batch_size=job.train.batch_size,
            available=progress.context.num_threads,
        )
    return net, memory_format


def _make_trainer(
    context: RankContext, job: LightningJob, callback: RunCallback, files: CheckpointFiles
) -> Trainer:
    """Return the Trainer.

    Lightning's own logger, checkpoints, progress bar, summary and sanity check are off: the run
    has its own events, checkpoints and lines. max_steps is left to the callback, which saves a
    checkpoint that can go on in the midst of an epoch. The variables that torchrun sets say where
    the rank is, whatever those of Slurm, LSF or MPI say of the agent.
    """
    return Trainer(
        callbacks=[callback],
        plugins=[TorchElasticEnvironment(), files, _make_precision(context, job)],
        accelerator=_accelerator(context),
        devices=context.local_world_size,
        num_nodes=context.num_nodes,
        strategy=_make_strategy(context, job),
        max_epochs=job.train.epochs,
        accumulate_grad_batches=job.train.accumulate,
        default_root_dir=context.run.path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,  # each rank's batches are its own already
    )


def _make_precision(context: RankContext, job: LightningJob) -> Precision:
    """Return Lightning's plugin for the job's precision.

    By its name alone the Trainer would take bf16-mixed for fp16-mixed on CPUs, and refuse
    fp16-mixed with fsdp.
    """
    match job.train.precision:
        case "bf16-mixed":
            return MixedPrecision("bf16-mixed", _accelerator(context))
        case "fp16-mixed":
            return MixedPrecision("16-mixed", _accelerator(context))
        case "bf16-true":
            return HalfPrecision("bf16-true")
        case _:  # for tf32, torch is told how to multiply
            return Precision()


def _make_strategy(context: RankContext, job: LightningJob) -> Strategy | str:
    """Return Lightning's strategy, with the options that the torch loop gives its own."""
    if job.strategy == "fsdp":
        return ShardedStrategy(
            data_parallel_size=context.world_size,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=context.backend,
            timeout=_TIMEOUT,
        )
    if context.world_size == 1 and job.strategy == "auto":
        return "auto"
    options: dict[str, Any] = {
        "gradient_as_bucket_view": job.train.gradient_as_bucket_view,
        "static_graph": job.train.static_graph,
        **NO_BUFFER_SYNC,
    }
    return DDPStrategy(process_group_backend=context.backend, timeout=_TIMEOUT, **options)


def _accelerator(context: RankContext) -> str:
    return "cuda" if context.device.startswith("cuda") else "cpu"
