"""The trainer by PyTorch Lightning: what every rank runs, and what is checked beforehand."""

from __future__ import annotations

import time

from hpcdist.errors import EXIT_STOPPED, JobError
from hpcdist.rank import RankContext
from hpcdist.spec import JobSpec, LightningJob
from hpcdist.training.checks import check_training, prepare_data, training_modules
from hpcdist.training.group import process_group
from hpcdist.training.rules import check_precision


def check(job: JobSpec) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    assert isinstance(job, LightningJob)
    if job.strategy == "fsdp" and job.launch.device == "cpu":
        raise JobError(
            "strategy is fsdp, but launch.device is cpu: Lightning's fsdp is for GPUs only",
            hint="set strategy to ddp, or launch.device to cuda",
        )
    _check_options(job)
    check_training(job)


def check_device(job: JobSpec, device: str) -> None:
    """Raise JobError for what ranks on CPUs, or on GPUs, cannot do."""
    assert isinstance(job, LightningJob)
    check_precision(job, device)


def _check_options(job: LightningJob) -> None:
    check_precision(job, job.launch.device)
    for key in ("activation_checkpointing", "compile"):
        if getattr(job.train, key):
            raise JobError(
                f"train.{key} is true, which the Lightning trainer does not have",
                hint="leave it out, or submit the job ddp",
            )
    if job.train.clip_norm is not None and job.train.precision == "fp16-mixed":
        raise JobError(
            f"train.clip_norm is {job.train.clip_norm:g} and train.precision is fp16-mixed: "
            "Lightning does not clip where the optimizer undoes the scaling of gradients itself",
            hint="use bf16-mixed, or submit the job ddp",
        )


def prepare(job: JobSpec) -> None:
    """Download the data set where the job asks for it, once, before any rank starts."""
    assert isinstance(job, LightningJob)
    prepare_data(job)


def preload(job: JobSpec) -> list[str]:
    """Modules to import once per node: Lightning takes longer than torch itself."""
    assert isinstance(job, LightningJob)
    return ["hpcdist.training.lightning.fit", *training_modules(job)]


def run(context: RankContext) -> None:
    """Train, in this rank; leaves with EXIT_STOPPED where the agent asked to stop."""
    import torch

    from hpcdist.training.lightning.fit import fit

    job = context.job
    assert isinstance(job, LightningJob)
    begin_s = time.perf_counter()
    torch.set_num_threads(job.train.num_threads or context.num_threads)
    if context.device.startswith("cuda"):
        torch.cuda.set_device(context.device)
    needs_group = context.world_size > 1 or job.strategy != "auto"
    with process_group(context, needed=needs_group) as has_group:
        is_done = fit(context, job, has_group=has_group, begin_s=begin_s)
    if not is_done:
        raise SystemExit(EXIT_STOPPED)
