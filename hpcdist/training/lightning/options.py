"""The job's words in Lightning's: precision, strategy, and the Trainer's other arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, Strategy
from torch.distributed.constants import default_pg_timeout

from hpcdist.errors import JobError
from hpcdist.rank import RankContext
from hpcdist.spec import LightningJob
from hpcdist.training.lightning.environment import RankEnvironment
from hpcdist.training.strategies import NO_BUFFER_SYNC

PRECISIONS = {
    "fp32": "32-true",
    "tf32": "32-true",  # and torch is told to multiply so
    "bf16-mixed": "bf16-mixed",
    "fp16-mixed": "16-mixed",
    "bf16-true": "bf16-true",
}
"""train.precision -> Lightning's name."""

_TIMEOUT: timedelta = default_pg_timeout


def trainer_options(context: RankContext, job: LightningJob) -> dict[str, Any]:
    """Arguments of the Trainer, but for plugins and callbacks.

    Lightning's own logger, checkpoints, progress bar, summary and sanity check are off: the run
    has its own events, checkpoints and lines. max_steps is left to the callback, which saves a
    checkpoint that can go on in the midst of an epoch.
    """
    return {
        "accelerator": "cuda" if context.device.startswith("cuda") else "cpu",
        "devices": context.local_world_size,
        "num_nodes": context.num_nodes,
        "strategy": make_strategy(context, job),
        "precision": PRECISIONS[job.train.precision],
        "max_epochs": job.train.epochs,
        "accumulate_grad_batches": job.train.accumulate,
        "gradient_clip_val": job.train.clip_norm,
        "default_root_dir": context.run.path,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,  # each rank's batches are its own already
    }


def make_strategy(context: RankContext, job: LightningJob) -> Strategy | str:
    """Lightning's strategy with what the torch loop gives DistributedDataParallel."""
    if job.strategy == "fsdp":
        require_gpus(context.device, "this run's device")
        return FSDPStrategy(
            cluster_environment=RankEnvironment(context), process_group_backend=context.backend
        )
    if context.world_size == 1 and job.strategy == "auto":
        return "auto"
    options: dict[str, Any] = {
        "gradient_as_bucket_view": job.train.gradient_as_bucket_view,
        "static_graph": job.train.static_graph,
        **NO_BUFFER_SYNC,
    }
    return DDPStrategy(process_group_backend=context.backend, timeout=_TIMEOUT, **options)


def require_gpus(device: str, origin: str) -> None:
    """JobError where fsdp is to run on CPUs."""
    if device == "cpu":
        raise JobError(
            f"strategy is fsdp, but {origin} is cpu: Lightning's fsdp is for GPUs only",
            hint="set strategy to ddp, or ask for GPUs",
        )
