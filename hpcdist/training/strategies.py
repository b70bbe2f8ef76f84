"""Strategies spread a model over ranks and GPUs: one class for each, and the table of them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel as TorchDataParallel
from torch.nn.parallel import DistributedDataParallel

from hpcdist.job.spec import Train
from hpcdist.rank.context import RankContext
from hpcdist.training.models import find_blocks
from hpcdist.training.optimization import PRECISIONS, Autocasting

_SYNC_ARGUMENT = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"  # its name before torch 2.15
)
DDP_OPTIONS: dict[str, Any] = {"gradient_as_bucket_view": True, _SYNC_ARGUMENT: False}
"""Arguments of DistributedDataParallel. Gradients live in the buckets: no copy in, none out. A
broadcast of the buffers in each forward pass would only serve evaluation: see align_buffers."""

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

    def set_sync(self, wrapped: nn.Module, *, is_on: bool) -> None:
        """Set whether the next passes average the gradients of all ranks, or add them up here."""

    def align_buffers(self, model: nn.Module) -> None:
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
        devices = [context.device] if context.device.startswith("cuda") else None
        return DistributedDataParallel(model, device_ids=devices, **DDP_OPTIONS)

    def set_sync(self, wrapped: nn.Module, *, is_on: bool) -> None:
        assert isinstance(wrapped, DistributedDataParallel)
        wrapped.require_backward_grad_sync = is_on  # as its no_sync() does

    def align_buffers(self, model: nn.Module) -> None:
        """Take those of rank 0, which are also what its checkpoints hold."""
        for buffer in model.buffers():
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

    def set_sync(self, wrapped: nn.Module, *, is_on: bool) -> None:
        wrapped.set_requires_gradient_sync(is_on)  # type: ignore[operator] # of FSDPModule


def cut_up(model: nn.Module, mesh: object) -> None:
    """Cut up the parameters of a model over the ranks of a DeviceMesh, block by block."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    assert isinstance(mesh, DeviceMesh)
    for block in find_blocks(model):
        if sum(parameter.numel() for parameter in block.parameters()) >= _LEAST_BLOCK:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


STRATEGIES: dict[str, Single] = {
    "single": Single(),
    "data_parallel": DataParallel(),
    "ddp": Ddp(),
    "fsdp": Fsdp(),
}
"""strategy -> how the loop drives it."""
