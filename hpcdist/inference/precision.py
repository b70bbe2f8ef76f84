"""The arithmetic of inference.precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_MIXED = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """What a call of the model is within; the weights stay as they are."""
    if precision not in _MIXED:
        return nullcontext()
    return torch.autocast(device.type, dtype=_MIXED[precision])
