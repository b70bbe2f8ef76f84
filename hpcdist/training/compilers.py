"""What torch.compile needs of a machine: told before it is needed. Imports no torch."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import JobError


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    language: str
    variable: str
    """Names the compiler, where it is set; then no other is looked for."""
    commands: tuple[str, ...]
    """That are looked for."""


_COMPILERS = {
    # torch/_inductor/config.py: cpp.cxx
    "cpu": _Compiler(language="C++", variable="CXX", commands=("g++",)),
    # Triton compiles what starts its kernels: triton/runtime/build.py
    "cuda": _Compiler(language="C", variable="CC", commands=("gcc", "clang")),
}


def require_compiler(device: str) -> None:
    """JobError where this host lacks what torch.compile needs for a kind of device (cpu, cuda).

    Kernels are compiled where they run, at the first step, and torch would fail in its own words.
    """
    compiler = _COMPILERS[device]
    host = socket.gethostname()
    named = os.environ.get(compiler.variable)
    wanted = (shlex.split(named) or [named])[:1] if named else list(compiler.commands)
    if not any(shutil.which(name) for name in wanted):
        whose = f" (variable {compiler.variable})" if named else ""
        raise JobError(
            f"train.compile is set, but host {host} has no {compiler.language} compiler: "
            f"{' or '.join(wanted)}{whose}",
            hint="load one (a line in the cluster profile's setup), or leave train.compile out",
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise JobError(
            f"train.compile is set, but host {host} has no headers of its Python: {header} is "
            "not there, and what torch compiles includes it",
            hint="install them (package python3-dev or python3-devel), use a Python of conda or "
            "uv, which has them, or leave train.compile out",
        )
