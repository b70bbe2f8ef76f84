"""A function that is submitted: its job, and the call with its arguments, pickled.

The job holds the function's name, its file, and what it imports from where; never its arguments.
The pickle is the one file of a run that is loaded as code. It is private to the user, and a rank
refuses one that is not: whoever could write it could run anything.
"""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from hpcdist.base.errors import JobError
from hpcdist.base.files import open_private
from hpcdist.job.load import Flag, LoadedJob, load_values
from hpcdist.job.preload import Program, read_program


def load_function(function: Callable[..., Any], *, flags: Mapping[str, Flag]) -> LoadedJob:
    """The job that calls `function`; raises JobError."""
    name = function_name(function)
    source, modules = _source(_innermost(function)), list[str]()
    if source is not None:
        with suppress(Exception):  # it may have changed since its import, or cannot be parsed
            modules = read_function(name, source).heavy
    values = {
        "name": name.rpartition(".")[2].rpartition(":")[2].strip("<>"),
        "workload": "function",
        "function": name,
        "source": source,
        "python_path": _python_path(),
        "modules": modules,
    }
    return load_values(values, source=name, flags=flags)


def read_function(name: str, source: str) -> Program:
    """Read the program that a function, by its name, and its file are."""
    file = Path(source)
    num_packages = name.partition(":")[0].count(".") + (file.name == "__init__.py")
    return read_program(file, file.parents[num_packages] if num_packages else None)


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


Call: TypeAlias = "tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]"

MOST_BYTES = 64 * 1000 * 1000
"""More than code and settings need: data belong into files that all nodes can read."""


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """The call as bytes.

    Functions of modules go by name, and are imported in the ranks; those of `__main__`, of a
    notebook and of other functions go whole.

    Raises JobError where the call would fail at once, which a job in a queue finds out late, and
    where something cannot be sent.
    """
    import cloudpickle

    name = function_name(function)
    if not isinstance(args, list | tuple):
        hint = "put a single argument as (argument,), with its comma"
        raise JobError(f"args is {type(args).__qualname__}, must be a tuple or a list", hint=hint)
    with suppress(ValueError):  # of some that are written in C nothing is known
        signature = inspect.signature(function)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            message = f"{name} cannot be called with these args and kwargs: {error}"
            raise JobError(message, hint=f"it takes {signature}") from None
    try:
        call: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:  # objects pickle themselves as they like
        raise JobError(
            f"{name}, or one of its arguments, cannot be pickled, so it cannot be sent to the "
            f"ranks: {type(error).__name__}: {error}",
            hint="send what it is made from, such as a path, and make it in the function",
        ) from error
    if len(call) > MOST_BYTES:
        raise JobError(
            f"the function with all its arguments takes more than {MOST_BYTES // 10**6} MB pickled",
            hint="save large data to a file that all nodes can read, and send its path",
        )
    return call


def load_call(path: Path) -> Call:
    """Return what `pickle_call` pickled; PermissionError where others may write or read it."""
    with open_private(path) as file:
        call: Call = pickle.load(file)  # noqa: S301 - the user's own
    return call
