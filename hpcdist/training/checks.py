"""Checks of a training, for both trainers: its settings, its model and data.

Imports no torch.
"""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.data.catalog import check_data
from hpcdist.data.images.transforms import check_transform, is_unchanged
from hpcdist.data.trial import try_apart
from hpcdist.job.spec import Data, LightningJob, Model, TrainJob
from hpcdist.training.checkpoint.files import resume_candidates

BUILT_IN = ("fashion_cnn",)
_REGISTERED = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28)}
"""data.name -> shape of its images."""


def is_own(name: str) -> bool:
    """Return whether model.name means a class of the user's."""
    return ":" in name


def is_torchvision(name: str) -> bool:
    return name not in BUILT_IN and not is_own(name)


@functools.cache
def torchvision_models() -> tuple[str, ...]:
    """Return the names of torchvision's classification models, without importing it."""
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        return ()
    sources = sorted((Path(package.origin).parent / "models").glob("*.py"))
    return tuple(name for each in sources for name in _REGISTERED.findall(each.read_text("utf-8")))


def check_model(model: Model) -> None:
    """Raise JobError for a model that does not exist; one of the user's is not looked for."""
    name = model.name
    if is_torchvision(name) and name not in torchvision_models():
        known = (*BUILT_IN, *torchvision_models())
        nearest = ", ".join(nearest_first(name, known)[:8])
        raise JobError(
            f"model.name is {name!r}, which is not a known model",
            hint=f"the nearest of {len(known)} are: {nearest}; a class of your own is named as "
            "package.module:Class",
        )


def try_model(model: Model, data: Data) -> None:
    """Make a model of the user's, or one with arguments, in another process; JobError where there
    is none, or it cannot be made so. A module that is imported can do anything: only what submits
    a job may call this."""
    if is_own(model.name) or model.args:
        shape = _SHAPES.get(data.name, (3, data.size or 224, data.size or 224))
        asked = {"model": msgspec.to_builtins(model), "image_shape": shape}
        try_apart("hpcdist.training.models:try_model", asked)


def check_training(job: TrainJob | LightningJob) -> None:
    """Raise JobError for settings that do not go together, for a model, data or a checkpoint that
    is not there, and for too few data."""
    train, nodes, gpus = job.train, job.resources.nodes, job.resources.gpus
    num_ranks = nodes * gpus  # GPUs, with data_parallel
    if job.strategy == "single" and num_ranks > 1:
        raise JobError(
            f"strategy is single, but resources ask for {num_ranks} ranks: {nodes} nodes x {gpus} "
            "gpus",
            hint="set strategy to ddp or fsdp, or ask for 1 node and 1 gpu",
        )
    if job.strategy == "data_parallel" and nodes > 1:
        raise JobError(
            f"strategy is data_parallel, but resources.nodes is {nodes}: it is one process, which "
            "drives the GPUs of one node",
            hint="set strategy to ddp or fsdp, or resources.nodes to 1",
        )
    if not train.evaluate_every_epochs and (train.patience or train.keep_best):
        stops = "patience" if train.patience else "keep_best"
        raise JobError(
            f"train.{stops} is set, but train.evaluate_every_epochs is 0: nothing says what is "
            "best",
            hint="set train.evaluate_every_epochs to 1 or more, or leave the other out",
        )
    check_model(job.model)
    check_transform(job.data.transform)
    num_samples, global_batch = check_data(job.data).train, train.batch_size * num_ranks
    if global_batch > num_samples:
        most = num_samples // num_ranks
        smaller = f"set train.batch_size to {most} or less, or " if most else ""
        raise JobError(
            f"train.batch_size is {train.batch_size}, with {num_ranks} ranks {global_batch:,} "
            f"samples per step, but {job.data.name} trains on {num_samples:,}",
            hint=f"{smaller}use fewer ranks",
        )
    if job.checkpoint.resume is not None:
        resume_candidates(job.checkpoint.resume)


def training_modules(job: TrainJob | LightningJob) -> list[str]:
    """Heavy modules that a training imports beside its loop."""
    modules = ["torch.distributed.fsdp"] if job.strategy == "fsdp" else []
    modules.append("torch._dynamo")  # optimizers and ddp import it
    if is_torchvision(job.model.name):
        modules.append("torchvision")
    if not is_unchanged(job.data.transform):
        modules.append("torchvision.transforms.v2")
    return modules
