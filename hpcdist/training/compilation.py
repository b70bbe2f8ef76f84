"""Compiling a model."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from hpcdist.training.compilers import require_compiler


def compile_module(module: nn.Module, device: torch.device) -> nn.Module:
    """The module behind torch.compile, with the same parameters.

    JobError where the machine has no compiler.
    """
    require_compiler(device.type)
    return cast("nn.Module", torch.compile(module))
