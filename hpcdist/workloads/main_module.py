"""The module `__main__` of a rank, which is forked from a process that has another one."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, all_suffixes
from typing import Any

from hpcdist.rank import own_loop

_LOADED_AT_START = frozenset(
    (
        *("abc", "codecs", "encodings", "genericpath", "io", "os", "posixpath", "site", "stat"),
        *("types", "zipimport", "hpcdist", "__main__", "__mp_main__", *sys.builtin_module_names),
    )
)
"""Modules that no file beside a script can replace: python has imported them before it looks there,
and the rank's own."""


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
    return main


def put_first(folder: str) -> None:
    """Put a folder first on sys.path, as python does with that of a script.

    This process has imported much that the program has not: where the folder has modules by the
    same names, the program's imports must find these.
    """
    sys.path.insert(0, folder)
    imported = {name.partition(".")[0] for name in sys.modules} - _LOADED_AT_START
    hidden = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # it may be a zip file
        for entry in entries:
            name, _, suffix = entry.name.partition(".")
            if name in imported and (
                f".{suffix}" in all_suffixes()
                or os.path.exists(os.path.join(entry.path, "__init__.py"))
            ):
                hidden.add(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        del sys.modules[name]


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


def the_program_is_above_and_hpcdist_below(
    program: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the user's code. Dumps of the stack, as at a crash, show this name where its calls
    end."""
    return program(*args, **kwargs)


def run_as_main(code: types.CodeType, **names: Any) -> None:
    """Run the user's code as the module `__main__`, which has these names beside those of all."""
    main = set_main(**names)
    try:
        the_program_is_above_and_hpcdist_below(exec, code, main.__dict__)
    finally:
        own_loop.finish()
