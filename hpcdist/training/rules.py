"""Rules: settings of a training that exclude each other, and needs of a host. Imports no torch."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.job.spec import LightningJob, Train, TrainingJob, TrainJob

_WITHOUT_BLOCKS = ("fashion_cnn", "mlp", "alexnet")


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A setting that some strategies have no use for."""

    key: str
    strategies: frozenset[str]
    """Strategies that cannot have it."""
    reason: str


_EXCLUDED = (
    _Pair(
        key="static_graph",
        strategies=frozenset({"single", "data_parallel", "fsdp"}),
        reason="only ddp has it",
    ),
    _Pair(
        key="gradient_as_bucket_view",
        strategies=frozenset({"single", "data_parallel", "fsdp"}),
        reason="only ddp has buckets",
    ),
    _Pair(
        key="activation_checkpointing",
        strategies=frozenset({"data_parallel"}),
        reason="its copies of the model on other GPUs would compute with the weights of the first",
    ),
    _Pair(
        key="compile",
        strategies=frozenset({"data_parallel"}),
        reason="torch cannot compile a model that is copied in every step",
    ),
)


def strategy_of(job: TrainingJob) -> str:
    """Return the job's strategy, by the torch loop's name."""
    if isinstance(job, LightningJob) and job.strategy == "auto":
        return "ddp" if job.resources.nodes * job.resources.gpus > 1 else "single"
    assert isinstance(job, TrainJob | LightningJob)
    return job.strategy


def check_settings(job: TrainingJob) -> None:
    """Raise JobError for the first two settings that do not go together."""
    if isinstance(job, TrainJob):
        _check_ranks(job)
    _check_pairs(job)
    _check_memory_format(job)
    _check_blocks(job)
    check_kind_of_device(job, job.launch.device)


def _check_ranks(job: TrainJob) -> None:
    nodes, gpus = job.resources.nodes, job.resources.gpus
    if job.strategy == "single" and nodes * gpus > 1:
        raise JobError(
            f"strategy is single, but resources ask for {nodes * gpus} ranks: "
            f"{nodes} nodes x {gpus} gpus",
            hint="set strategy to ddp or fsdp, or ask for 1 node and 1 gpu",
        )
    if job.strategy == "data_parallel" and nodes > 1:
        raise JobError(
            f"strategy is data_parallel, but resources.nodes is {nodes}: it is one process, which "
            "drives the GPUs of one node",
            hint="set strategy to ddp or fsdp, or resources.nodes to 1",
        )


def _check_pairs(job: TrainingJob) -> None:
    default = Train()
    strategy = strategy_of(job)
    for pair in _EXCLUDED:
        value = getattr(job.train, pair.key)
        if value != getattr(default, pair.key) and strategy in pair.strategies:
            raise JobError(
                f"train.{pair.key} is {str(value).lower()}, which strategy {strategy} cannot "
                f"have: {pair.reason}",
                hint=f"leave train.{pair.key} out, or set strategy to ddp",
            )


def _check_memory_format(job: TrainingJob) -> None:
    if job.train.channels_last is True and strategy_of(job) == "fsdp":
        raise JobError(
            "train.channels_last is true, which strategy fsdp cannot have: FSDP2 cuts up weights "
            "in the usual memory format only",
            hint="leave train.channels_last out, or set strategy to ddp",
        )


def can_recompute(job: TrainingJob) -> bool:
    """Return whether train.activation_checkpointing is possible, by the model's name."""
    return strategy_of(job) != "data_parallel" and not _is_without_blocks(job.model.name)


def _is_without_blocks(name: str) -> bool:
    return name in _WITHOUT_BLOCKS or name.startswith("vgg")


def _check_blocks(job: TrainingJob) -> None:
    if not job.train.activation_checkpointing:
        return
    name = job.model.name
    if _is_without_blocks(name):
        raise JobError(
            f"train.activation_checkpointing is true, but {name} has no blocks of several layers "
            "that could be computed again",
            hint="leave it out, or take a smaller train.batch_size with train.accumulate",
        )
    if job.train.compile:
        raise JobError(
            "train.activation_checkpointing and train.compile are both set: torch.compile chooses "
            "by itself what it computes again",
            hint="leave one of them out",
        )


def check_kind_of_device(job: TrainingJob, device: str) -> None:
    """Raise JobError for what a kind of device cannot do: cpu, cuda, or auto, which is not known
    yet."""
    if job.train.precision == "tf32" and device == "cpu":
        raise JobError(
            "train.precision is tf32, which only GPUs have, and the ranks run on CPUs",
            hint="use fp32 or bf16-mixed",
        )
    if job.train.compile == "reduce-overhead" and device == "cpu":
        raise JobError(
            "train.compile is reduce-overhead, which means CUDA graphs, and the ranks run on CPUs",
            hint="set train.compile to true, or leave it out",
        )
    if job.train.compile == "reduce-overhead" or (
        job.train.compile == "max-autotune" and device == "cuda"
    ):
        _check_graphs(job)


def _check_graphs(job: TrainingJob) -> None:
    """Refuse what CUDA graphs cannot do: they use the same memory in each step."""
    mode = job.train.compile
    if strategy_of(job) == "fsdp":
        raise JobError(
            f"train.compile is {mode}, which strategy fsdp cannot have: its parameters are "
            "gathered into other memory in each step, and CUDA graphs want the same",
            hint="set train.compile to true, or strategy to ddp",
        )
    if job.train.accumulate > 1:  # github.com/pytorch/pytorch/issues/169545
        raise JobError(
            f"train.compile is {mode}, but train.accumulate is {job.train.accumulate}: CUDA graphs "
            "put the gradients of each batch where those of the one before are",
            hint="set train.compile to true, or train.accumulate to 1",
        )


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    language: str
    variable: str
    """Names the compiler, where it is set; then no other is looked for."""
    commands: tuple[str, ...]
    """Compilers that are looked for."""


_COMPILERS = {
    # torch/_inductor/config.py: cpp.cxx
    "cpu": _Compiler(language="C++", variable="CXX", commands=("g++",)),
    # Triton compiles what starts its kernels: triton/runtime/build.py
    "cuda": _Compiler(language="C", variable="CC", commands=("gcc", "clang")),
}


def require_compiler(device: str) -> None:
    """JobError where this host lacks what torch.compile needs for a kind of device (cpu, cuda).

    Kernels are compiled where they run, at the first step, and torch would fail in its own words.
    """
    compiler = _COMPILERS[device]
    host = socket.gethostname()
    named = os.environ.get(compiler.variable)
    wanted = (shlex.split(named) or [named])[:1] if named else list(compiler.commands)
    if not any(shutil.which(name) for name in wanted):
        whose = f" (variable {compiler.variable})" if named else ""
        raise JobError(
            f"train.compile is set, but host {host} has no {compiler.language} compiler: "
            f"{' or '.join(wanted)}{whose}",
            hint="load one (a line in the cluster profile's setup), or leave train.compile out",
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise JobError(
            f"train.compile is set, but host {host} has no headers of its Python: {header} is "
            "not there, and what torch compiles includes it",
            hint="install them (package python3-dev or python3-devel), use a Python of conda or "
            "uv, which has them, or leave train.compile out",
        )
