"""How a model is spread over the ranks: one class per strategy, and the table of them."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_SYNC_ARGUMENT = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"  # its name before torch 2.15
)
_NO_BUFFER_SYNC: dict[str, Any] = {_SYNC_ARGUMENT: False}


class Single:
    """One rank, the model as it is."""

    uses_group = False
    """Whether ranks talk to each other in a process group."""

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:  # noqa: ARG002
        """The module whose call runs the model in training."""
        return model

    def without_sync(self, wrapped: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Within it, backward passes add up gradients on this rank only."""
        return nullcontext()

    def align_buffers(self, wrapped: nn.Module) -> None:
        """Make buffers, such as batch norm's running means, the same on all ranks."""


class Ddp(Single):
    """A copy of the model on each rank, gradients averaged in the backward pass."""

    uses_group = True

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model in DistributedDataParallel."""
        return DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,  # gradients live in the buckets: no copy in, none out
            # Broadcasting buffers in each forward pass only serves evaluation: see align_buffers.
            **_NO_BUFFER_SYNC,
        )

    def without_sync(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        """DistributedDataParallel's no_sync."""
        assert isinstance(wrapped, DistributedDataParallel)
        context: AbstractContextManager[None] = wrapped.no_sync()
        return context

    def align_buffers(self, wrapped: nn.Module) -> None:
        """Take those of rank 0, which are also what its checkpoints hold."""
        for buffer in wrapped.buffers():
            dist.broadcast(buffer, src=0)


STRATEGIES: dict[str, Any] = {"single": Single(), "ddp": Ddp()}
"""strategy -> how the loop drives it."""
