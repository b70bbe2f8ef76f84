"""Checks of a training, for both trainers: its settings, its model and data, and its hosts.

Imports no torch.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import socket
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.data.catalog import check_data, find_data_set
from hpcdist.data.images.transforms import check_transform, is_unchanged
from hpcdist.data.trial import try_apart
from hpcdist.job.spec import Data, LightningJob, Model, TrainingJob, TrainJob
from hpcdist.training.checkpoint.files import resume_candidates

BUILT_IN = ("fashion_cnn", "mlp")
_REGISTERED = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_TORCHVISION_GIVEN = {
    "num_classes": "has one output for each class of the data",
    "weights": "starts from freshly drawn weights",
}
"""Argument that all of torchvision's models are made with -> what it is."""
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
    module, _, class_name = name.partition(":")
    if is_torchvision(name):
        if name not in torchvision_models():
            known = (*BUILT_IN, *torchvision_models())
            nearest = ", ".join(nearest_first(name, known)[:8])
            raise JobError(
                f"model.name is {name!r}, which is not a known model",
                hint=f"the nearest of {len(known)} are: {nearest}; a class of your own is named as "
                "package.module:Class",
            )
        for given in _TORCHVISION_GIVEN.keys() & model.args:
            raise JobError(
                f"model.args has {given}, but {name} {_TORCHVISION_GIVEN[given]}",
                hint="leave it out",
            )
    elif is_own(name) and not all(part.isidentifier() for part in [*module.split("."), class_name]):
        raise JobError(
            f"model.name is {name!r}, which is not of the form package.module:Class",
            hint="such as model.name=my_models:Net, for the class Net in my_models.py",
        )


def try_model(model: Model, data: Data) -> None:
    """Make a model of the user's, or one with arguments, in another process; JobError where there
    is none, or it cannot be made so. A module that is imported can do anything: only what submits
    a job may call this."""
    if is_own(model.name) or model.args:
        shape = _SHAPES.get(data.name, (3, data.size or 224, data.size or 224))
        asked = {"model": msgspec.to_builtins(model), "image_shape": shape}
        try_apart("hpcdist.training.models:try_model", asked)


def check_training(job: TrainingJob) -> None:
    """Raise JobError for a model, data or a checkpoint that is not there, and for too few data."""
    check_model(job.model)
    check_transform(job.data.transform)
    _check_sizes(job)
    if job.checkpoint.resume is not None:
        resume_candidates(job.checkpoint.resume)


def prepare_data(job: TrainingJob) -> None:
    """Make what is missing of the data set, once, before any rank starts."""
    find_data_set(job.data).prepare(job.data)


def training_modules(job: TrainingJob) -> list[str]:
    """Heavy modules that a training imports beside its loop."""
    modules = ["torch.distributed.fsdp"] if strategy_of(job) == "fsdp" else []
    modules.append("torch._dynamo")  # optimizers and ddp import it
    if is_torchvision(job.model.name):
        modules.append("torchvision")
    if not is_unchanged(job.data.transform):
        modules.append("torchvision.transforms.v2")
    return modules


def _check_sizes(job: TrainingJob) -> None:
    sizes = check_data(job.data)
    num_ranks = job.resources.nodes * job.resources.gpus  # GPUs, with data_parallel
    global_batch = job.train.batch_size * num_ranks
    if global_batch <= sizes.train:
        return
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


def strategy_of(job: TrainingJob) -> str:
    """Return the job's strategy, by the torch loop's name."""
    if isinstance(job, LightningJob) and job.strategy == "auto":
        return "ddp" if job.resources.nodes * job.resources.gpus > 1 else "single"
    assert isinstance(job, TrainJob | LightningJob)
    return job.strategy


_EXCLUDED = (
    (
        *("activation_checkpointing", (False,), "data_parallel"),
        "its copies of the model on other GPUs would compute with the weights of the first",
    ),
    (
        *("compile", (False,), "data_parallel"),
        "torch cannot compile a model that is copied in every step",
    ),
    (
        *("channels_last", ("auto", False), "fsdp"),
        "FSDP2 cuts up weights in the usual memory format only",
    ),
)
"""A key of train, its values that all strategies can have, one that cannot have others, and why."""
_WITHOUT_BLOCKS = ("fashion_cnn", "mlp", "alexnet", "vgg")


def check_settings(job: TrainingJob) -> None:
    """Raise JobError for the first two settings that do not go together."""
    strategy, train = strategy_of(job), job.train
    nodes, gpus = job.resources.nodes, job.resources.gpus
    _refuse_if(
        strategy == "single" and nodes * gpus > 1,
        f"strategy is single, but resources ask for {nodes * gpus} ranks: {nodes} nodes x "
        f"{gpus} gpus",
        hint="set strategy to ddp or fsdp, or ask for 1 node and 1 gpu",
    )
    _refuse_if(
        strategy == "data_parallel" and nodes > 1,
        f"strategy is data_parallel, but resources.nodes is {nodes}: it is one process, which "
        "drives the GPUs of one node",
        hint="set strategy to ddp or fsdp, or resources.nodes to 1",
    )
    for key, allowed, excluded, reason in _EXCLUDED:
        value = getattr(train, key)
        _refuse_if(
            value not in allowed and strategy == excluded,
            f"train.{key} is {str(value).lower()}, which strategy {strategy} cannot have: {reason}",
            hint=f"leave train.{key} out, or set strategy to ddp",
        )
    stops = "patience" if train.patience else "keep_best"
    _refuse_if(
        not train.evaluate_every_epochs and bool(train.patience or train.keep_best),
        f"train.{stops} is set, but train.evaluate_every_epochs is 0: nothing says what is best",
        hint="set train.evaluate_every_epochs to 1 or more, or leave the other out",
    )
    _refuse_if(
        train.activation_checkpointing and job.model.name.startswith(_WITHOUT_BLOCKS),
        f"train.activation_checkpointing is true, but {job.model.name} has no blocks of several "
        "layers that could be computed again",
        hint="leave it out, or take a smaller train.batch_size with train.accumulate",
    )
    _refuse_if(
        train.activation_checkpointing and bool(train.compile),
        "train.activation_checkpointing and train.compile are both set: torch.compile chooses by "
        "itself what it computes again",
        hint="leave one of them out",
    )
    check_kind_of_device(job, job.launch.device)


def check_kind_of_device(job: TrainingJob, device: str) -> None:
    """Raise JobError for what a kind of device (cpu, cuda; auto: not known yet) cannot do."""
    mode = job.train.compile
    _refuse_if(
        job.train.precision == "tf32" and device == "cpu",
        "train.precision is tf32, which only GPUs have, and the ranks run on CPUs",
        hint="use fp32 or bf16-mixed",
    )
    _refuse_if(
        mode == "reduce-overhead" and device == "cpu",
        "train.compile is reduce-overhead, which means CUDA graphs, and the ranks run on CPUs",
        hint="set train.compile to true, or leave it out",
    )
    # CUDA graphs use the same memory in each step.
    has_graphs = mode == "reduce-overhead" or (mode == "max-autotune" and device == "cuda")
    _refuse_if(
        has_graphs and strategy_of(job) == "fsdp",
        f"train.compile is {mode}, which strategy fsdp cannot have: its parameters are gathered "
        "into other memory in each step, and CUDA graphs want the same",
        hint="set train.compile to true, or strategy to ddp",
    )
    _refuse_if(  # github.com/pytorch/pytorch/issues/169545
        has_graphs and job.train.accumulate > 1,
        f"train.compile is {mode}, but train.accumulate is {job.train.accumulate}: CUDA graphs "
        "put the gradients of each batch where those of the one before are",
        hint="set train.compile to true, or train.accumulate to 1",
    )


def _refuse_if(is_wrong: bool, message: str, *, hint: str) -> None:
    if is_wrong:
        raise JobError(message, hint=hint)


_COMPILERS = {
    "cpu": ("C++", "CXX", ("g++",)),  # torch/_inductor/config.py: cpp.cxx
    # Triton compiles what starts its kernels: triton/runtime/build.py
    "cuda": ("C", "CC", ("gcc", "clang")),
}
"""Kind of device -> language, variable that names its compiler, compilers tried without it."""


def require_compiler(device: str) -> None:
    """Raise JobError where this host lacks what torch.compile needs for a device (cpu, cuda).

    Kernels are compiled where they run, at the first step, and torch would fail in its own words.
    """
    language, variable, commands = _COMPILERS[device]
    named = os.environ.get(variable)
    wanted = (shlex.split(named) or [named])[:1] if named else list(commands)
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not any(shutil.which(name) for name in wanted):
        whose = f" (variable {variable})" if named else ""
        lacking = f"no {language} compiler: {' or '.join(wanted)}{whose}"
        hint = "load one (a line in the cluster profile's setup)"
    elif not header.exists():
        lacking = f"no headers of its Python: {header} is not there"
        hint = "install python3-dev or python3-devel, or use a Python of conda or uv"
    else:
        return
    raise JobError(
        f"train.compile is set, but host {socket.gethostname()} has {lacking}",
        hint=f"{hint}, or leave train.compile out",
    )
