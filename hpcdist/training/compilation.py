"""Compiling a model."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from hpcdist.training.compilers import require_compiler


def compile_module(module: nn.Module, device: torch.device, *, setting: str | bool) -> nn.Module:
    """The module behind torch.compile, with the same parameters; as it is where `setting`, that of
    train.compile, is false.

    JobError where the machine has no compiler.
    """
    if not setting:
        return module
    require_compiler(device.type)
    mode = setting if isinstance(setting, str) else None
    return cast("nn.Module", torch.compile(module, mode=mode))
