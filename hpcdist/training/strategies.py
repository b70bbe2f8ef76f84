"""Ways to train a model: number formats, strategies that spread it over ranks and GPUs, optimizers
by name, and the learning rate over a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel as TorchDataParallel
from torch.nn.parallel import DistributedDataParallel

from hpcdist.job.spec import Train
from hpcdist.rank.context import RankContext
from hpcdist.training.models import find_blocks


@dataclass(frozen=True, kw_only=True)
class Precision:
    """In which format numbers are multiplied; weights are float32."""

    autocast: torch.dtype | None = None
    """Format of matrix products and convolutions where it is not float32."""
    scales_gradients: bool = False
    """float16 has no numbers below 6e-8: the loss is scaled up, and gradients down again."""

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Within it, products are computed in the format of `autocast`; can be entered again."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


PRECISIONS = {
    "fp32": Precision(),
    "bf16-mixed": Precision(autocast=torch.bfloat16),
    "fp16-mixed": Precision(autocast=torch.float16, scales_gradients=True),
}
"""train.precision -> what it means."""


class Autocasting(nn.Module):
    """A model that computes in the format of a precision in whichever thread it is called.

    Those of nn.DataParallel inherit that there is autocast, but not its format: on GPUs they would
    take float16 for bfloat16.
    """

    def __init__(self, net: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.net = net
        self._precision = precision

    def forward(self, images: Tensor) -> Tensor:
        with self._precision.autocasting(images.device):
            logits: Tensor = self.net(images)
        return logits


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


class DataParallel(Single):
    """One rank for several GPUs: each step copies the model to all, and cuts the batch up."""

    def wrap(self, model: nn.Module, context: RankContext, train: Train) -> nn.Module:
        if context.num_gpus <= 1:
            return model
        first = torch.device(context.device).index or 0
        inner = Autocasting(model, PRECISIONS[train.precision])
        return TorchDataParallel(inner, device_ids=list(range(first, first + context.num_gpus)))


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
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(torch.device(context.device).type, (dist.get_world_size(),))
        for block in find_blocks(model):
            if sum(parameter.numel() for parameter in block.parameters()) >= _LEAST_BLOCK:
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def set_sync(self, wrapped: nn.Module, *, is_on: bool) -> None:
        wrapped.set_requires_gradient_sync(is_on)  # type: ignore[operator] # of FSDPModule


STRATEGIES: dict[str, Single] = {
    "single": Single(),
    "data_parallel": DataParallel(),
    "ddp": Ddp(),
    "fsdp": Fsdp(),
}
"""strategy -> how the loop drives it."""


def build_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """Return the optimizer that the job names, in its fused form.

    Fused means one kernel for all of a step. Measured on CPU with fashion_cnn, batches of 64: a
    whole training step takes 0.92 to 0.96 of the time with a loop over the parameters or with
    foreach, for adamw, and 0.97 to 1.00 for sgd. On GPUs it saves the launches of dozens of small
    kernels.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if train.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=train.lr,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
            # torch 2.15 has no fused form of it for parameters that are cut up (DTensor).
            fused=not any(hasattr(each, "device_mesh") for each in parameters),
        )
    adam = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    return adam(parameters, lr=train.lr, weight_decay=train.weight_decay, fused=True)


_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _progress: 1.0,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate(train: Train, *, step: int, epochs_done: float) -> float:
    """Return the rate of the step after `step` steps, `epochs_done` epochs into the run.

    Progress is counted in samples, so that it means the same for any number of ranks. There is
    nothing to save: the optimizer's state holds the rate, the position decides how it goes on.
    """
    progress = epochs_done / train.epochs
    if train.max_steps is not None:  # whichever ends the run first
        progress = max(progress, step / train.max_steps)
    rising = min(1.0, (step + 1) / (train.warmup_steps + 1))
    return train.lr * rising * _SCHEDULES[train.schedule](min(progress, 1.0))
