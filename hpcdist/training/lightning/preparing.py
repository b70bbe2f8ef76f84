"""What is done between Lightning's set-up and the first step, to begin as the torch loop does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytorch_lightning import Trainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hpcdist.data.arrays import Samples
from hpcdist.rank.timing import GpuTimer, HostTimer, call_when_ready, warm_up
from hpcdist.training.lightning.data import JobData
from hpcdist.training.lightning.module import Classifier

Settings = list[list[dict[str, Any]]]
"""Of each optimizer and group, all but its parameters."""


def settings_of(optimizers: Sequence[Optimizer]) -> Settings:
    """What the job says of its optimizers, such as the weight decay."""
    return [
        [{key: value for key, value in group.items() if key != "params"} for group in one]
        for one in (optimizer.param_groups for optimizer in optimizers)
    ]


def take_over(optimizers: Sequence[Optimizer], settings: Settings) -> None:
    """Give optimizers the job's settings again: a checkpoint brought those of its own job."""
    for optimizer, groups in zip(optimizers, settings, strict=True):
        for group, own in zip(optimizer.param_groups, groups, strict=True):
            group.update(own)


def prepare_ranks(trainer: Trainer, module: Classifier, timer: HostTimer | GpuTimer) -> None:
    """Have the order of ddp's buckets settled, and the timer told of the last gradient.

    With fsdp ranks talk throughout the backward pass, and all of it is one phase.
    """
    wrapped = trainer.strategy.model
    assert isinstance(wrapped, nn.Module)
    batch = _first_batch(trainer)
    data = _data_of(trainer)
    last = warm_up(
        wrapped,
        batch,
        trainer.precision_plugin.forward_context(),
        num_classes=data.num_classes,
    )
    wrapped.train()
    module.times_communication = (
        last is not None and isinstance(wrapped, DistributedDataParallel) and trainer.world_size > 1
    )
    if last is not None and module.times_communication:
        call_when_ready(last, timer.note_last_gradient)


def _data_of(trainer: Trainer) -> JobData:
    data = trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it in fit()
    assert isinstance(data, JobData)
    return data


def _first_batch(trainer: Trainer) -> Samples:
    batch = _data_of(trainer).first_samples.to(trainer.strategy.root_device)
    images = trainer.precision_plugin.convert_input(batch.images)
    return Samples(images=images, labels=batch.labels)
