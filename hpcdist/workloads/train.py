"""The trainer: what every rank of a training job runs, and what is checked beforehand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.data.catalog import data_notes
from hpcdist.job.spec import JobSpec, TrainJob
from hpcdist.rank.context import RankContext
from hpcdist.training.checks import check_training, prepare_data, training_modules
from hpcdist.training.group import process_group
from hpcdist.training.rules import check_kind_of_device, check_settings, require_compiler

if TYPE_CHECKING:
    from hpcdist.data.arrays import DataSet
    from hpcdist.training.loop import Trainer


def check(job: JobSpec) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    assert isinstance(job, TrainJob)
    check_settings(job)
    check_training(job)


def check_device(job: JobSpec, device: str) -> None:
    """Raise JobError for what ranks on CPUs, or on GPUs, cannot do."""
    assert isinstance(job, TrainJob)
    check_kind_of_device(job, device)


def check_host(job: JobSpec, device: str) -> None:
    """Raise JobError for what the job needs and this host lacks."""
    assert isinstance(job, TrainJob)
    if job.train.compile:
        require_compiler(device)


def notes(job: JobSpec) -> list[str]:
    """What the user should know of the data."""
    assert isinstance(job, TrainJob)
    return data_notes(job.data)


def prepare(job: JobSpec) -> None:
    """Download the data set where the job asks for it, once, before any rank starts."""
    assert isinstance(job, TrainJob)
    prepare_data(job)


def preload(job: JobSpec) -> list[str]:
    """Modules to import once per node: this package's loop brings torch along."""
    assert isinstance(job, TrainJob)
    fsdp = (
        ["torch.distributed.fsdp", "hpcdist.training.checkpoint.sharded"]
        if job.strategy == "fsdp"
        else []
    )
    return ["hpcdist.training.loop", *fsdp, *training_modules(job)]


def run(context: RankContext) -> None:
    """Train, in this rank; leaves with EXIT_STOPPED where the agent asked to stop."""
    import torch

    from hpcdist.training.strategies import STRATEGIES

    job = context.job
    assert isinstance(job, TrainJob)
    begin_s = time.perf_counter()
    torch.set_num_threads(job.train.num_threads or context.num_threads)
    if context.device.startswith("cuda"):
        torch.cuda.set_device(context.device)
    needs_group = STRATEGIES[job.strategy].uses_group
    with process_group(context, needed=needs_group) as has_group:
        trainer = _make_trainer(context, job, begin_s, has_group=has_group)
        _resume(trainer, has_group=has_group)
        is_done = trainer.train()
    if not is_done:
        raise SystemExit(EXIT_STOPPED)


def _make_trainer(
    context: RankContext, job: TrainJob, begin_s: float, *, has_group: bool
) -> Trainer:
    from hpcdist.data.catalog import load_data
    from hpcdist.data.images.memory import share_decoded
    from hpcdist.training.loop import Trainer
    from hpcdist.training.model.building import build_noted
    from hpcdist.training.model.models import count_parameters

    data = load_data(job.data, seed=job.train.seed, device=context.device)
    share_decoded(data, context, job, has_group=has_group)
    model = build_noted(job, data, context.events)
    trainer = Trainer(context, job, model, data)
    _write_setup(trainer, data, count_parameters(model), time.perf_counter() - begin_s)
    return trainer


def _write_setup(trainer: Trainer, data: DataSet, parameters: int, setup_time_s: float) -> None:
    import torch

    from hpcdist.data.images.whole_batch.choice import transform_on

    trainer.context.events.write(
        "setup",
        setup_time_s=setup_time_s,
        parameters=parameters,
        num_threads=torch.get_num_threads(),
        train_samples=len(data.train),
        test_samples=len(data.test),
        transform_on=transform_on(trainer.job.data, trainer.context.device),
        steps_per_epoch=trainer.plan.num_steps(),
        total_steps=trainer.total_steps(),
    )


def _resume(trainer: Trainer, *, has_group: bool) -> None:
    """Take over the checkpoint to go on from, if there is one, and say so."""
    from hpcdist.training.checkpoint.resume import load_start

    context = trainer.context
    loaded = load_start(context, trainer.job, has_group=has_group)
    if loaded is None:
        return
    differing = trainer.restore(loaded)
    position = loaded.position
    context.events.write(
        "resume",
        checkpoint=loaded.path.name,
        step=position.step,
        epoch=position.epoch,
        exact=not differing,
        world_size_before=loaded.state["identity"]["world_size"],
    )
    if context.rank != 0:
        return
    context.say(f"going on from {loaded.path.name}: step {position.step}, epoch {position.epoch}")
    if differing:
        context.note(f"the resume is not bit for bit exact: {'; '.join(differing)}")
