"""Checks and downloads that are done once, where a training is submitted, for both trainers.

Imports no torch.
"""

from __future__ import annotations

from hpcdist.base.errors import JobError
from hpcdist.data.catalog import check_data, download_data, find_data_set
from hpcdist.data.images.device_transforms import check_device_transform
from hpcdist.data.images.transforms import check_transform, is_unchanged
from hpcdist.job.spec import TrainingJob
from hpcdist.training.checkpoint.files import resume_candidates
from hpcdist.training.model.checks import check_model_args, check_model_name, is_torchvision


def check_training(job: TrainingJob) -> None:
    """Raise JobError for a model, data or a checkpoint that is not there, and for too few data."""
    check_model_name(job.model.name)
    check_model_args(job.model)
    check_transform(job.data.transform)
    check_device_transform(job.data)
    _check_sizes(job)
    if job.checkpoint.resume is not None:
        resume_candidates(job.checkpoint.resume)


def prepare_data(job: TrainingJob) -> None:
    """Download the data set where the job asks for it, once, before any rank starts."""
    if find_data_set(job.data).is_complete(job.data):
        return
    download_data(job.data)
    _check_sizes(job)  # could not be known before


def training_modules(job: TrainingJob) -> list[str]:
    """Heavy modules that a training imports beside its loop."""
    modules = ["torch._dynamo"]  # optimizers and ddp import it
    if is_torchvision(job.model.name) or "torchvision" in find_data_set(job.data).modules:
        modules.append("torchvision")
    if not is_unchanged(job.data.transform):
        modules.append("torchvision.transforms.v2")
    return modules


def _check_sizes(job: TrainingJob) -> None:
    sizes = check_data(job.data)
    if sizes is None:
        return
    num_ranks = job.resources.nodes * job.resources.gpus  # GPUs, with data_parallel
    global_batch = job.train.batch_size * num_ranks
    if global_batch > sizes.train:
        most = sizes.train // num_ranks
        ways = [f"set train.batch_size to {most} or less"] if most else []
        if num_ranks > 1:
            ways.append(f"use fewer ranks: at most {max(1, sizes.train // job.train.batch_size)}")
        raise JobError(
            f"train.batch_size is {job.train.batch_size}, with {num_ranks} "
            f"rank{'' if num_ranks == 1 else 's'} {global_batch:,} samples per step, but "
            f"{job.data.name} trains on {sizes.train:,}",
            hint=", or ".join(ways),
        )
