"""The Python code that a path means, as `python PATH` finds it, without running any of it.

A path is that of a script, or of a folder or a zip file that holds a module `__main__`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

from hpcdist.base.errors import JobError
from hpcdist.job.files import read_bytes

if TYPE_CHECKING:
    from _typeshed.importlib import PathEntryFinderProtocol

SUFFIX = ".py"

_MAIN = "__main__"
_COMPILED = ".pyc"
_BEGINNING_BYTES = 4096
_OF_OTHERS = frozenset(
    (".sh", ".bash", ".json", ".ipynb", ".toml", ".cfg", ".ini", ".txt", ".md", ".csv")
)
"""Suffixes of files that can by chance be read as Python, and are none."""


def find_main(path: str) -> ModuleSpec | None:
    """The module `__main__` of a folder or a zip file; None for any other file.

    Raises ModuleNotFoundError where folder or zip file has none.
    """
    finder = finder_of(path)
    if finder is None:
        return None
    spec = finder.find_spec(_MAIN)
    if spec is None or not (spec.origin or "").endswith((SUFFIX, _COMPILED)):
        message = f"there is no module {_MAIN} in {path}"
        raise ModuleNotFoundError(message, name=_MAIN, path=path)
    return spec


def finder_of(path: str) -> PathEntryFinderProtocol | None:
    """What finds modules in an entry of sys.path, as it is now; None where it is no folder and no
    zip file."""
    for hook in sys.path_hooks:
        try:
            finder = hook(path)
        except ImportError:
            continue
        if invalidate := getattr(finder, "invalidate_caches", None):
            invalidate()  # zip files are looked into once per process
        return finder
    return None


def check_script(path: str, shown: str) -> None:
    """Raise JobError unless `python PATH` would run without syntax errors."""
    try:
        main = find_main(path)
    except ModuleNotFoundError:
        kind = "folder" if os.path.isdir(path) else "zip file"
        raise JobError(
            f"{shown} is a {kind} without a {_MAIN}.py, and cannot be run",
            hint=f"give a job's name, a job file (.yaml), a Python script (.py), or a folder or "
            f"zip file with a {_MAIN}.py",
        ) from None
    if main is not None:
        check_module(main, os.path.join(shown, os.path.basename(main.origin or "")))
        return
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _OF_OTHERS:
        raise JobError(
            f"{shown} is no Python script by its name",
            hint=f"job files end in .yaml, scripts in .py or in nothing; {_other_hint(shown)}",
        )
    hint = "correct the script; nothing was started"
    if suffix != SUFFIX:
        if _is_binary(path):
            raise JobError(f"{shown} is no Python script, but binary", hint=_other_hint(shown))
        hint = f"correct the script; or, if it is none, {_other_hint(shown)}"
    _check_source(read_bytes(path, shown), path, shown, hint)


def check_module(spec: ModuleSpec, shown: str) -> None:
    """Raise JobError where the source of a module has syntax errors."""
    loader: Any = spec.loader
    assert spec.origin is not None
    if not spec.origin.endswith(SUFFIX):
        return  # it was compiled once
    try:
        source = loader.get_data(spec.origin)
    except OSError as error:
        raise JobError(
            f"{shown} cannot be read: {error.strerror or error}",
            hint="check the path and its permissions",
        ) from None
    _check_source(source, spec.origin, shown, "correct the script; nothing was started")


def find_in_folders(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """A module in the first of the folders that has it, as PathFinder finds it.

    PathFinder itself asks for the parents of packages without an `__init__.py`: they would have to
    be imported.
    """
    portions: list[str] = []
    for folder in folders:
        finder = finder_of(folder)
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or []
    if not portions:
        return None
    package = ModuleSpec(name, None, is_package=True)
    package.submodule_search_locations = portions
    return package


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[Path, Path | None]]:
    """A Python file, or where it is in a zip file, its copy and the folder that has copies of all
    Python files there; they are gone afterwards."""
    archive = next((parent for parent in path.parents if parent.is_file()), None)
    if archive is None or not is_zipfile(archive):
        yield path, None
        return
    with tempfile.TemporaryDirectory(prefix="hpcdist-") as folder, ZipFile(archive) as held:
        held.extractall(folder, [name for name in held.namelist() if name.endswith(SUFFIX)])
        yield Path(folder) / path.relative_to(archive), Path(folder)


def _is_binary(path: str) -> bool:
    """Whether a file begins like a program or like data, which may be too large to be read."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return b"\0" in file.read(_BEGINNING_BYTES)
    except OSError:
        return False


def _check_source(source: bytes, path: str, shown: str, hint: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own run will show them
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"line {error.lineno}: " if error.lineno else ""
        line = f": {error.text.strip()}" if error.text else ""
        raise JobError(f"{shown}: {place}{error.msg}{line}", hint=hint) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobError(f"{shown} is not a Python script: {error}", hint=hint) from None


def _other_hint(shown: str) -> str:
    program = shown if "/" in shown else f"./{shown}"
    return f"run a program that is not Python with --no-python: {program}"
