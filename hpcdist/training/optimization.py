"""Number formats, optimizers by name, and the learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpcdist.job.spec import Train

_AMPERE = 8
"""First generation of GPUs whose tensor cores take TF32 and bfloat16 (compute capability 8.0)."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """In which format numbers are kept, and in which they are multiplied."""

    name: str
    weights: torch.dtype = torch.float32
    """Format of parameters, and so of gradients and of the optimizer's state."""
    autocast: torch.dtype | None = None
    """Format of matrix products and convolutions where it is not that of the weights."""
    scales_gradients: bool = False
    """float16 has no numbers below 6e-8: the loss is scaled up, and gradients down again."""
    matmul: str = "highest"
    """Argument of torch.set_float32_matmul_precision."""

    def begin(self) -> None:
        """Set what torch keeps per process."""
        torch.set_float32_matmul_precision(self.matmul)

    def note(self, device: torch.device) -> str | None:
        """Return a note for the user on the precision on a device; None: there is none."""
        needs_cores = self.matmul == "high" or torch.bfloat16 in {self.weights, self.autocast}
        if device.type != "cuda" or not needs_cores:
            return None
        major, minor = torch.cuda.get_device_capability(device)
        if major >= _AMPERE:
            return None
        return (
            f"train.precision is {self.name}, which {torch.cuda.get_device_name(device)} (compute "
            f"capability {major}.{minor}) computes without tensor cores, and slowly; they take "
            f"bfloat16 and TF32 from {_AMPERE}.0 on, and float16 (fp16-mixed) from 7.0 on"
        )

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Within it, products are computed in the format of `autocast`; can be entered again."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision(name="fp32"),
        Precision(name="tf32", matmul="high"),
        Precision(name="bf16-mixed", autocast=torch.bfloat16),
        Precision(name="fp16-mixed", autocast=torch.float16, scales_gradients=True),
        Precision(name="bf16-true", weights=torch.bfloat16),
    )
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


def build_optimizer(model: nn.Module, train: Train, *, fused: bool = True) -> torch.optim.Optimizer:
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
            fused=fused and not any(hasattr(each, "device_mesh") for each in parameters),
        )
    adam = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
    return adam(parameters, lr=train.lr, weight_decay=train.weight_decay, fused=fused)


_STAIR = 0.1  # of the schedule called step
_NUM_STAIRS = 3
_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda _progress: 1.0,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "step": lambda progress: _STAIR ** int(progress * _NUM_STAIRS),
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
    return train.lr * rising * _SHAPES[train.schedule](min(progress, 1.0))
