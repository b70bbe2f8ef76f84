"""One rank's part in a training by Lightning: made ready, gone on from a checkpoint, run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from hpcdist.data.arrays import DataSet
from hpcdist.data.catalog import load_data
from hpcdist.data.images.device_transforms import device_note, transform_on
from hpcdist.data.images.memory import share_decoded
from hpcdist.data.order import LEAST_BATCH, EpochPlan
from hpcdist.job.spec import LightningJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import make_timer
from hpcdist.training.bad_files import BadFileNotes
from hpcdist.training.checkpoint.resume import (
    describe_training,
    differences,
    find_start,
    require_same_training,
)
from hpcdist.training.lightning.callback import RunCallback, Stopped
from hpcdist.training.lightning.checkpoints import KEY, CheckpointFiles, go_on_from, load
from hpcdist.training.lightning.data import JobData
from hpcdist.training.lightning.environment import RankEnvironment
from hpcdist.training.lightning.module import Classifier
from hpcdist.training.lightning.options import make_precision, trainer_options
from hpcdist.training.lightning.progress import Progress
from hpcdist.training.lightning.quiet import keep_quiet
from hpcdist.training.memory import MemoryLog
from hpcdist.training.model.building import build_noted, pick_num_threads
from hpcdist.training.model.models import count_parameters, pick_memory_format
from hpcdist.training.optimization import PRECISIONS


def fit(context: RankContext, job: LightningJob, *, has_group: bool, begin_s: float) -> bool:
    """Train to the end; False where the agent asked to stop before: then a checkpoint is saved."""
    keep_quiet()
    data = load_data(job.data, seed=job.train.seed, device=context.device)
    share_decoded(data, context, job, has_group=has_group)
    note = device_note(job.data, context.device)
    if note is not None and context.rank == 0:
        context.note(note)
    path = find_start(context, job, has_group=has_group)
    state = None if path is None else load(path)
    fitting = _prepare(context, job, data, state)
    fitting.write_setup(data, time.perf_counter() - begin_s)
    if path is not None and state is not None:
        fitting.tell_resume(path, state[KEY]["identity"])
    return fitting.run(path)


@dataclass(frozen=True, kw_only=True)
class _Fitting:
    """All that takes part."""

    context: RankContext
    job: LightningJob
    progress: Progress
    module: Classifier
    data: JobData
    callback: RunCallback
    trainer: Trainer
    identity: dict[str, Any]

    def run(self, path: Path | None) -> bool:
        """Train from the position to the end."""
        resume = None if path is None else str(path)
        if self.progress.position.samples and (
            self.callback.is_finished() or self.progress.is_at_epoch_end
        ):
            self._end_epoch(resume)  # stopped after the epoch's last step: what follows is due
        if self.callback.is_finished():
            return True
        try:
            self.trainer.fit(self.module, datamodule=self.data, ckpt_path=resume)
        except Stopped:
            return False
        return True

    def _end_epoch(self, resume: str | None) -> None:
        if self.callback.is_evaluation_due():
            self.trainer.validate(
                self.module, datamodule=self.data, ckpt_path=resume, verbose=False
            )
        self.callback.end_epoch(self.module, epoch_time_s=0.0)

    def write_setup(self, data: DataSet, setup_time_s: float) -> None:
        """The event of a training that is ready."""
        steps = self.progress.plan.num_steps()
        total = self.job.train.epochs * steps
        self.context.events.write(
            "setup",
            setup_time_s=setup_time_s,
            parameters=count_parameters(self.module),
            num_threads=torch.get_num_threads(),
            train_samples=len(data.train),
            test_samples=len(data.test),
            transform_on=transform_on(self.job.data, self.context.device),
            steps_per_epoch=steps,
            total_steps=min(total, self.job.train.max_steps or total),
        )

    def tell_resume(self, path: Path, before: dict[str, Any]) -> None:
        """The event of a training that goes on, and what keeps it from being exact."""
        position, context = self.progress.position, self.context
        differing = differences(before, self.identity)
        context.events.write(
            "resume",
            checkpoint=path.name,
            step=position.step,
            epoch=position.epoch,
            exact=not differing,
            world_size_before=before["world_size"],
        )
        if context.rank != 0:
            return
        context.say(f"going on from {path.name}: step {position.step}, epoch {position.epoch}")
        if differing:
            context.note(f"the resume is not bit for bit exact: {'; '.join(differing)}")


def _prepare(
    context: RankContext, job: LightningJob, data: DataSet, state: dict[str, Any] | None
) -> _Fitting:
    device = torch.device(context.device)
    net = build_noted(job, data, context.events)
    precision = PRECISIONS[job.train.precision]
    precision.begin(device)
    if context.rank == 0 and (told := precision.note(device)) is not None:
        context.note(told)
    memory_format = pick_memory_format(
        net,
        setting=job.train.channels_last,
        sharded=job.strategy == "fsdp",
        tensor_cores=precision.uses_tensor_cores,
        device=device,
    )
    net = net.to(memory_format=memory_format)
    progress = Progress(plan=_plan(context, job, len(data.train)), device=device)
    _set_threads(context, job, net, data, memory_format)
    own = describe_training(job, context)
    if state is not None:
        require_same_training(state[KEY]["identity"], own, "the checkpoint")
        go_on_from(state, progress)
    timer = make_timer(context, first_step=progress.position.step)
    batches = JobData(
        data,
        job,
        progress=progress,
        timer=timer,
        memory_format=memory_format,
        tell_bad=BadFileNotes(context),
    )
    memory = MemoryLog(context.events, device)
    module = Classifier(
        net, job, progress=progress, timer=timer, memory=memory, scoring=batches.scoring
    )
    callback = RunCallback(
        context,
        job,
        progress=progress,
        timer=timer,
        memory=memory,
        identity=own,
        resumed_from=None if state is None else state[KEY],
    )
    trainer = Trainer(
        callbacks=[callback],
        plugins=[
            RankEnvironment(context),
            CheckpointFiles(context, state),
            make_precision(context, job),
        ],
        **trainer_options(context, job),
    )
    return _Fitting(
        context=context,
        job=job,
        progress=progress,
        module=module,
        data=batches,
        callback=callback,
        trainer=trainer,
        identity=own,
    )


def _plan(context: RankContext, job: LightningJob, num_samples: int) -> EpochPlan:
    return EpochPlan(
        num_samples=num_samples,
        batch_size=job.train.batch_size,
        accumulate=job.train.accumulate,
        rank=context.rank,
        world_size=context.world_size,
    )


def _set_threads(
    context: RankContext,
    job: LightningJob,
    net: torch.nn.Module,
    data: DataSet,
    memory_format: torch.memory_format,
) -> None:
    """As many threads as the torch loop would take: they decide in which order sums are made."""
    if context.device != "cpu" or job.train.num_threads is not None:
        return
    images = data.train.probe(LEAST_BATCH).images.to(memory_format=memory_format)
    torch.set_num_threads(
        pick_num_threads(
            net, images, batch_size=job.train.batch_size, available=context.num_threads
        )
    )
