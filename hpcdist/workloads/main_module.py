"""The module `__main__` of a rank, which is forked from a process that has another one."""

from __future__ import annotations

import builtins
import os
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

from hpcdist import record

_AUTHKEY_BYTES = 32


def set_main(**names: Any) -> types.ModuleType:
    """Give this process a new module `__main__` with these names.

    Without any it is like that of an interactive python: processes that are spawned have no main
    program to import. multiprocessing, if it has been imported, knows the module as it would know
    the main program that it was imported by.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, **names)
    # What a spawned process sends back is of classes of `__mp_main__`.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined] # where main was started
        process.current_process().authkey = os.urandom(_AUTHKEY_BYTES)
    return main


def run_module(spec: ModuleSpec) -> None:
    """Run a module that was found as `__main__`, as runpy does."""
    loader: Any = spec.loader
    run_as_main(
        loader.get_code(spec.name),
        __file__=spec.origin,
        __loader__=loader,
        __cached__=spec.cached,
        __package__=spec.parent,
        __spec__=spec,
    )


def run_as_main(code: types.CodeType, **names: Any) -> None:
    """Run the user's code as the module `__main__`, which has these names beside those of all."""
    main = set_main(**names)
    try:
        exec(code, main.__dict__)  # noqa: S102 - it is what the user asked for
    finally:
        record.finish()
