"""The job's words in Lightning's: precision, strategy, and the Trainer's other arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pytorch_lightning.plugins.precision import HalfPrecision, MixedPrecision, Precision
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch.distributed.constants import default_pg_timeout

from hpcdist.job.spec import LightningJob
from hpcdist.rank.context import RankContext
from hpcdist.training.lightning.sharded import ShardedStrategy
from hpcdist.training.strategies import NO_BUFFER_SYNC

_TIMEOUT: timedelta = default_pg_timeout


def trainer_options(context: RankContext, job: LightningJob) -> dict[str, Any]:
    """Arguments of the Trainer, but for plugins and callbacks.

    Lightning's own logger, checkpoints, progress bar, summary and sanity check are off: the run
    has its own events, checkpoints and lines. max_steps is left to the callback, which saves a
    checkpoint that can go on in the midst of an epoch.
    """
    return {
        "accelerator": _accelerator(context),
        "devices": context.local_world_size,
        "num_nodes": context.num_nodes,
        "strategy": make_strategy(context, job),
        "max_epochs": job.train.epochs,
        "accumulate_grad_batches": job.train.accumulate,
        "default_root_dir": context.run.path,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,  # each rank's batches are its own already
    }


def make_precision(context: RankContext, job: LightningJob) -> Precision:
    """Lightning's plugin for the job's precision.

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


def make_strategy(context: RankContext, job: LightningJob) -> Strategy | str:
    """Lightning's strategy with what the torch loop gives its own."""
    if job.strategy == "fsdp":
        return ShardedStrategy(
            world_size=context.world_size, backend=context.backend, timeout=_TIMEOUT
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
