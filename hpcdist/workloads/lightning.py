"""The trainer by PyTorch Lightning: what every rank runs, and what is checked beforehand."""

from __future__ import annotations

import time

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.data.catalog import data_notes
from hpcdist.job.spec import JobSpec, LightningJob
from hpcdist.rank.context import RankContext
from hpcdist.training.checks import check_training, prepare_data, training_modules
from hpcdist.training.group import process_group
from hpcdist.training.rules import check_kind_of_device, check_settings, require_compiler


def check(job: JobSpec) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    assert isinstance(job, LightningJob)
    check_settings(job)
    check_training(job)


def check_device(job: JobSpec, device: str) -> None:
    """Raise JobError for what ranks on CPUs, or on GPUs, cannot do."""
    assert isinstance(job, LightningJob)
    check_kind_of_device(job, device)


def check_host(job: JobSpec, device: str) -> None:
    """Raise JobError for what the job needs and this host lacks."""
    assert isinstance(job, LightningJob)
    if job.train.compile:
        require_compiler(device)


def notes(job: JobSpec) -> list[str]:
    """What the user should know of the data."""
    assert isinstance(job, LightningJob)
    return data_notes(job.data)


def prepare(job: JobSpec) -> None:
    """Download the data set where the job asks for it, once, before any rank starts."""
    assert isinstance(job, LightningJob)
    prepare_data(job)


def preload(job: JobSpec) -> list[str]:
    """Modules to import once per node: Lightning takes longer than torch itself."""
    assert isinstance(job, LightningJob)
    fsdp = ["torch.distributed.fsdp"] if job.strategy == "fsdp" else []
    return ["hpcdist.training.lightning.fit", *fsdp, *training_modules(job)]


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
