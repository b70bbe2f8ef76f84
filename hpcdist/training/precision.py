"""The number formats of a training: one value per name of train.precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpcdist.base.errors import HpcdistError

_AMPERE = 8
"""First generation of GPUs whose tensor cores take TF32 and bfloat16 (compute capability 8.0)."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """In which format numbers are kept, and in which they are multiplied."""

    name: str
    weights: torch.dtype = torch.float32
    """Of parameters, and so of gradients and of the optimizer's state."""
    autocast: torch.dtype | None = None
    """Of matrix products and convolutions where it is not that of the weights."""
    scales_gradients: bool = False
    """float16 has no numbers below 6e-8: the loss is scaled up, and gradients down again."""
    matmul: str = "highest"
    """What torch.set_float32_matmul_precision is given."""

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether products are computed in a format that GPUs have special hardware for."""
        return self.name != "fp32"

    def begin(self, device: torch.device) -> None:
        """Set what torch keeps per process; HpcdistError where the device cannot do it."""
        if self.name in _NEEDS_AMPERE and device.type == "cuda":
            _require_ampere(self.name, device)
        torch.set_float32_matmul_precision(self.matmul)

    def note(self, device: torch.device) -> str | None:
        """What a user should know of the precision on a device."""
        if device.type != "cuda" or torch.bfloat16 not in {self.weights, self.autocast}:
            return None
        major, minor = torch.cuda.get_device_capability(device)
        if major >= _AMPERE:
            return None
        return (
            f"train.precision is {self.name}, which {torch.cuda.get_device_name(device)} (compute "
            f"capability {major}.{minor}) computes without tensor cores, and slowly; they take "
            f"bfloat16 from {_AMPERE}.0 on, and float16 (fp16-mixed) from 7.0 on"
        )

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Within it, products are computed in the format of `autocast`; can be entered again."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)

    def make_scaler(self, device: torch.device) -> torch.amp.GradScaler:
        """Scales gradients where the precision needs it, and else does nothing."""
        return torch.amp.GradScaler(device.type, enabled=self.scales_gradients)


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

_NEEDS_AMPERE = {"tf32"}


class Autocasting(nn.Module):
    """A model that computes in the format of a precision in whichever thread it is called.

    Those of nn.DataParallel inherit that there is autocast, but not its format: on GPUs they would
    take float16 for bfloat16.
    """

    def __init__(self, net: nn.Module, precision: Precision) -> None:
        """Put `net` within autocast; its parameters stay as they are."""
        super().__init__()
        self.net = net
        self._precision = precision

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images."""
        with self._precision.autocasting(images.device):
            logits: Tensor = self.net(images)
        return logits


def _require_ampere(name: str, device: torch.device) -> None:
    major, minor = torch.cuda.get_device_capability(device)
    if major < _AMPERE:
        raise HpcdistError(
            f"train.precision is {name}, which {torch.cuda.get_device_name(device)} cannot do: its "
            f"compute capability is {major}.{minor}, must be {_AMPERE}.0 or more",
            hint="use fp32 or fp16-mixed",
        )
