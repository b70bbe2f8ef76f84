"""Compiling a model, and what that needs on the machine."""

from __future__ import annotations

import os
import shutil
import socket
from typing import cast

import torch
from torch import nn

from hpcdist.errors import HpcdistError

_COMPILERS = ("g++", "clang++", "c++")


def compile_module(module: nn.Module, device: torch.device) -> nn.Module:
    """The module behind torch.compile, with the same parameters.

    HpcdistError where the machine has no compiler.
    """
    if device.type == "cpu":
        _require_compiler()
    return cast("nn.Module", torch.compile(module))


def _require_compiler() -> None:
    """Kernels for CPUs are C++, compiled where they run; torch would fail in its own words."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else list(_COMPILERS)
    if not any(shutil.which(name) for name in wanted):
        raise HpcdistError(
            f"train.compile is true, but host {socket.gethostname()} has no C++ compiler: "
            f"{' or '.join(wanted)}",
            hint="load one (a line in the cluster profile's setup), or leave train.compile out",
        )
