"""One rank's part in a training by Lightning: made ready, gone on from a checkpoint, run."""

from __future__ import annotations

import logging
import warnings
from datetime import timedelta
from typing import Any

from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.utilities.warnings import PossibleUserWarning
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.precision import HalfPrecision, MixedPrecision, Precision
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch.distributed.constants import default_pg_timeout

from hpcdist.job.spec import LightningJob
from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint.checkpoint import LIGHTNING_KEY
from hpcdist.training.checkpoint.resume import find_start, require_same_training
from hpcdist.training.lightning.checkpoints import CheckpointFiles, ShardedStrategy, go_on_from
from hpcdist.training.lightning.module import Classifier, Stopped
from hpcdist.training.ranks import TrainingRank
from hpcdist.training.strategies import NO_BUFFER_SYNC

_LOGGERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")
_TIMEOUT: timedelta = default_pg_timeout


def fit(context: RankContext, job: LightningJob, *, has_group: bool, begin_s: float) -> bool:
    """Train to the end; False where the agent asked to stop before: then a checkpoint is saved."""
    # Leave out of the ranks' logs what Lightning tells of accelerators, tips and ended loops, and
    # its guesses about what a user may have meant; warnings and errors stay.
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # Lightning 2.6 on torch 2.15
    rank = TrainingRank(context, job)
    progress = rank.progress
    path = find_start(context, job, has_group=has_group)
    state = None if path is None else checkpoint.load(path, by_lightning=True)
    before = {} if state is None else state[LIGHTNING_KEY]
    if path is not None and state is not None:
        require_same_training(before["identity"], rank.identity, path.name)
        go_on_from(state, progress)
    rank.start_timer()
    module = Classifier(rank, before.get("rng", []))
    trainer = _make_trainer(context, job, CheckpointFiles(context, state))
    rank.write_setup(begin_s)
    if path is not None:
        progress.write_resume(path.name, before["identity"], rank.identity)
    if progress.is_finished and not progress.position.samples:
        return True
    try:
        trainer.fit(module, ckpt_path=path)
    except Stopped:
        return False
    return True


def _make_trainer(context: RankContext, job: LightningJob, files: CheckpointFiles) -> Trainer:
    """Return the Trainer.

    Lightning's own logger, checkpoints, progress bar and summary are off: the run has its own
    events, checkpoints and lines. max_steps is left to the module, which saves a checkpoint that
    can go on in the midst of an epoch. The variables that torchrun sets say where the rank is,
    whatever those of Slurm, LSF or MPI say of the agent.
    """
    return Trainer(
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
        use_distributed_sampler=False,  # each rank's batches are its own already
    )


def _make_precision(context: RankContext, job: LightningJob) -> Precision:
    """Return Lightning's plugin for the job's precision: by its name alone the Trainer would take
    bf16-mixed for fp16-mixed on CPUs, and refuse fp16-mixed with fsdp."""
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
    options: dict[str, Any] = {"gradient_as_bucket_view": True, **NO_BUFFER_SYNC}
    return DDPStrategy(process_group_backend=context.backend, timeout=_TIMEOUT, **options)


def _accelerator(context: RankContext) -> str:
    return "cuda" if context.device.startswith("cuda") else "cpu"
