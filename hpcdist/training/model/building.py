"""From the model that a job names to what is trained: building, compiling, blocks, threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from hpcdist.base.errors import HpcdistError
from hpcdist.data.arrays import DataSet
from hpcdist.job.spec import TrainingJob
from hpcdist.training.checkpoint.state import seed_weights
from hpcdist.training.checks import require_compiler
from hpcdist.training.model.models import build_model


def build_seeded(job: TrainingJob, data: DataSet) -> nn.Module:
    """Return the model that the job names, on the CPU, the same weights in all ranks."""
    seed_weights(job.train.seed)
    return build_model(job.model, data.image_shape, data.num_classes)


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks, in the order in which the model has them."""
    is_list = type(module) in {nn.Sequential, nn.ModuleList}  # subclasses are parts of their own
    for child in module.children():
        if is_list and type(child) not in {nn.Sequential, nn.ModuleList}:
            yield child
        else:
            yield from find_blocks(child)


def recompute_blocks(model: nn.Module) -> None:
    """Have each block of several layers keep only its input for the backward pass. HpcdistError
    where the model has none: to recompute a single layer would save nothing."""
    blocks = [block for block in find_blocks(model) if any(True for _ in block.children())]
    if not blocks:
        raise HpcdistError(
            "train.activation_checkpointing is true, but the model has no blocks: modules of "
            "several layers, as items of a Sequential or ModuleList",
            hint="leave it out, or take a smaller train.batch_size with train.accumulate",
        )
    for block in blocks:
        # An attribute of the instance hides the method; names of parameters stay as they are.
        block.forward = functools.partial(
            checkpoint,
            block.forward,
            use_reentrant=False,
            # Around the forward pass, and around the one that is done again.
            context_fn=lambda block=block: (nullcontext(), _without_running_means(block)),
        )


@contextmanager
def _without_running_means(block: nn.Module) -> Iterator[None]:
    """Batch norm must not count the same batch twice into its running means.

    It must be given them all the same: what is saved for the backward pass has to be alike.
    """
    with ExitStack() as stack:
        for part in block.modules():
            if isinstance(part, _BatchNorm) and part.track_running_stats:
                stack.callback(setattr, part, "momentum", part.momentum)
                stack.callback(setattr, part, "num_batches_tracked", part.num_batches_tracked)
                part.momentum, part.num_batches_tracked = 0.0, None
        yield


def compile_module(module: nn.Module, device: torch.device, *, setting: str | bool) -> nn.Module:
    """Return the module compiled as train.compile says; JobError where there is no compiler."""
    if not setting:
        return module
    require_compiler(device.type)
    mode = setting if isinstance(setting, str) else None
    return cast("nn.Module", torch.compile(module, mode=mode))


FLOP_PER_THREAD = 100e6
"""Work of one forward pass for which a thread pays.

Measured with FashionCNN on 2 CPUs, 2 threads against 1: 1.1 times as fast at 22 MFLOP (the digits,
32 per batch), 0.9 at 100, 1.2 at 177, 1.7 at 271 (FashionMNIST, 32 per batch). What little two
threads gain on less work they lose twentyfold as soon as another program wants a CPU, since each of
them spins until the other has had its turn.
"""


def pick_num_threads(model: nn.Module, images: Tensor, *, batch_size: int, available: int) -> int:
    """Return the threads that pay in steps of `batch_size` images on the CPU, at most `available`.

    A function of the model and the batch alone, and of no clock: the number of threads decides in
    which order numbers are added up, and so must not differ between a run and its resume.
    """
    if available == 1:
        return 1
    from torch.utils.flop_counter import FlopCounterMode

    was_training = model.training
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    model.train(was_training)
    flop = counter.get_total_flops() / len(images) * batch_size
    return max(1, min(available, int(flop / FLOP_PER_THREAD)))
