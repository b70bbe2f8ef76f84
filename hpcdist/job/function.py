"""What is told of a function that is submitted: its name, its file, what it imports from where.

Never its arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcdist.base.errors import JobError
from hpcdist.job import Flag, LoadedJob
from hpcdist.job.imports import PRELOADED_PACKAGES, heavy_imports
from hpcdist.job.load import load_values


def load_function(
    function: Callable[..., Any], payload: bytes, *, flags: Mapping[str, Flag]
) -> LoadedJob:
    """The job that calls `function`, which is pickled in `payload`; raises JobError."""
    inner = _innermost(function)
    name = function_name(function)
    source = _source(inner)
    values = {
        "name": name.rpartition(".")[2].rpartition(":")[2].strip("<>"),
        "workload": "function",
        "function": name,
        "source": source,
        "python_path": _python_path(),
        "modules": _modules(source, name, payload),
    }
    return load_values(values, source=name, flags=flags)


def function_name(function: Callable[..., Any]) -> str:
    """`module:name`, of a callable of any kind."""
    inner = _innermost(function)
    if not hasattr(inner, "__qualname__"):
        inner = type(inner)
    return f"{inner.__module__}:{inner.__qualname__}"


def _innermost(function: Callable[..., Any]) -> Any:
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner):
        raise JobError(
            f"{inner.__qualname__} is a coroutine function: calling it runs nothing",
            hint="submit a function that calls asyncio.run(...)",
        )
    return inspect.unwrap(inner)


def _source(function: Any) -> str | None:
    """None for what was written in a notebook or at a prompt."""
    try:
        file = inspect.getsourcefile(function if hasattr(function, "__code__") else type(function))
    except TypeError:
        return None
    return os.path.abspath(file) if file and os.path.isfile(file) else None


def _python_path() -> list[str]:
    """Folders of sys.path that no new process of this Python has by itself."""
    own = {*site.getsitepackages(), site.getusersitepackages()}
    own.update(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    folders = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)  # "" is the working one
    return [
        folder
        for folder in folders
        if os.path.isdir(folder) and folder not in own and os.path.basename(folder) != "lib-dynload"
    ]


def _modules(source: str | None, function: str, payload: bytes) -> list[str]:
    """Heavy packages that the function's file imports, or that the function itself names."""
    found = [] if source is None else _heavy_in(Path(source), function)
    if not found:
        found = [name for name in sorted(PRELOADED_PACKAGES) if name.encode() in payload]
    return found


def _heavy_in(source: Path, function: str) -> list[str]:
    try:
        return heavy_imports(source, function=function).modules
    except (OSError, SyntaxError, ValueError):  # such as a file that has changed since its import
        return []
