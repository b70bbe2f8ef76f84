"""The blocks of a model: the parts that fsdp gathers, and that are recomputed, one at a time.

A block is an item of a plain nn.Sequential or nn.ModuleList, such as the residual blocks of a
ResNet or the layers of a transformer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from hpcdist.base.errors import HpcdistError


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost blocks, in the order in which the model has them."""
    is_list = type(module) in {nn.Sequential, nn.ModuleList}  # subclasses are parts of their own
    for child in module.children():
        if is_list and type(child) not in {nn.Sequential, nn.ModuleList}:
            yield child
        else:
            yield from find_blocks(child)


def recompute_blocks(model: nn.Module) -> None:
    """Have each block of several layers keep only its input for the backward pass.

    HpcdistError where the model has none: to recompute a single layer would save nothing.
    """
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
            context_fn=functools.partial(_contexts, block),
        )


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Around the forward pass, and around the one that is done again."""
    return nullcontext(), _without_running_means(block)


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
