"""Strategies spread a model over ranks and GPUs: one class for each, and the table of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel as TorchDataParallel
from torch.nn.parallel import DistributedDataParallel

from hpcdist.job.spec import Train
from hpcdist.rank.context import RankContext
from hpcdist.training.model.building import find_blocks
from hpcdist.training.optimization import PRECISIONS, Autocasting

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SYNC_ARGUMENT = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"  # its name before torch 2.15
)
NO_BUFFER_SYNC: dict[str, Any] = {_SYNC_ARGUMENT: False}
"""Argument of DistributedDataParallel: no broadcast of buffers in each forward pass."""

_LEAST_BLOCK = 1 << 16
"""Parameters of a block that is gathered by itself: with fewer, the call costs too much."""


class Single:
    """One rank, the model as it is."""

    uses_group = False
    """Ranks talk to each other in a process group."""
    tells_last_gradient = False
    """A step waits for other ranks only after its own last gradient."""
    is_sharded = False
    """Each rank holds a part of the model: then all must call it equally often, and each
    writes its part of a checkpoint."""

    def wrap(self, model: nn.Module, context: RankContext, train: Train) -> nn.Module:  # noqa: ARG002
        """Return the module whose call runs the model in training, on the rank's devices."""
        return model

    def without_sync(self, wrapped: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Within it, backward passes add up gradients on this rank only."""
        return nullcontext()

    def align_buffers(self, wrapped: nn.Module) -> None:
        """Make buffers, such as batch norm's running means, the same on all ranks."""

    def note(self, context: RankContext) -> str | None:  # noqa: ARG002
        """Return a note for the user on the strategy on the rank's devices; None: there is none."""
        return None


class DataParallel(Single):
    """One rank for several GPUs: each step copies the model to all, and cuts the batch up."""

    def wrap(self, model: nn.Module, context: RankContext, train: Train) -> nn.Module:
        if context.num_gpus <= 1:
            return model
        first = torch.device(context.device).index or 0
        inner = Autocasting(model, PRECISIONS[train.precision])
        return TorchDataParallel(inner, device_ids=list(range(first, first + context.num_gpus)))

    def note(self, context: RankContext) -> str | None:
        if context.num_gpus > 1:
            return None
        gpus = "one GPU" if context.num_gpus else "no GPU"
        return (
            f"strategy data_parallel has {gpus} here: the training computes what it would on "
            "several GPUs, whose batches are added up in one step, but nothing is copied or "
            "computed in parallel, so times say nothing about data_parallel"
        )


class Ddp(Single):
    """A copy of the model on each rank, gradients averaged in the backward pass."""

    uses_group = True
    tells_last_gradient = True

    def wrap(self, model: nn.Module, context: RankContext, train: Train) -> nn.Module:  # noqa: ARG002
        return DistributedDataParallel(
            model,
            device_ids=[context.device] if context.device.startswith("cuda") else None,
            # Gradients live in the buckets: no copy in, none out.
            gradient_as_bucket_view=True,
            # Broadcasting buffers in each forward pass only serves evaluation: see align_buffers.
            **NO_BUFFER_SYNC,
        )

    def without_sync(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        assert isinstance(wrapped, DistributedDataParallel)
        context: AbstractContextManager[None] = wrapped.no_sync()
        return context

    def align_buffers(self, wrapped: nn.Module) -> None:
        """Take those of rank 0, which are also what its checkpoints hold."""
        for buffer in wrapped.buffers():
            dist.broadcast(buffer, src=0)


class Fsdp(Ddp):
    """Parameters, gradients and optimizer state cut up over the ranks (FSDP2).

    The parameters of a block are gathered when it is their turn; gradients are averaged and cut up
    in the backward pass, while it goes on, so waiting for others is part of it.
    """

    tells_last_gradient = False
    is_sharded = True

    def wrap(self, model: nn.Module, context: RankContext, train: Train) -> nn.Module:  # noqa: ARG002
        from torch.distributed.device_mesh import init_device_mesh

        kind = torch.device(context.device).type
        cut_up(model, init_device_mesh(kind, (dist.get_world_size(),)))
        return model

    def without_sync(self, wrapped: nn.Module) -> AbstractContextManager[None]:
        return unsynchronized(wrapped)


def cut_up(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cut up the parameters of a model over the ranks of a mesh, block by block (fully_shard)."""
    from torch.distributed.fsdp import fully_shard

    for block in find_blocks(model):
        if sum(parameter.numel() for parameter in block.parameters()) >= _LEAST_BLOCK:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


@contextmanager
def unsynchronized(wrapped: Any) -> Iterator[None]:
    """Within it, the gradients of a model that was cut up stay whole, and on this rank."""
    wrapped.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        wrapped.set_requires_gradient_sync(True)


STRATEGIES: dict[str, Single] = {
    "single": Single(),
    "data_parallel": DataParallel(),
    "ddp": Ddp(),
    "fsdp": Fsdp(),
}
"""strategy -> how the loop drives it."""
