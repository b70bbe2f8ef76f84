"""Find the code that a path, a module's name or a program's name means, without running any of it.

A path is that of a script, or of a folder or a zip file that holds a module `__main__`. A module is
found by its name as `python -m` would, a program as execvp does.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile, is_zipfile

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest
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
    """Return a finder of the modules in an entry of sys.path as it is now; None where it is neither
    a folder nor a zip file."""
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
    """Return True if a file begins like a program or like data, which may be too large to read."""
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


def find_module(name: str, shown: str) -> str:
    """Path of the source that `python -m NAME` would run here, in a zip file, too; of a package,
    its __main__.py.

    Packages that put together the folders of their modules when they are imported are seen as they
    lie on disk. Raises JobError, which calls the module `shown`, or names the file that has syntax
    errors.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise JobError(
            f"{shown}: {name!r} is not the name of a module",
            hint=_name_hint(name),
        )
    spec = _find(name, shown)
    if spec.submodule_search_locations is not None:
        main = _find_below(spec, f"{name}.__main__")
        if main is None:
            raise JobError(
                f"{shown}: {name} is a package without a module __main__, and cannot be run",
                hint=_modules_hint(spec),
            )
        spec = main
    if spec.origin is None or not spec.origin.endswith(SUFFIX):
        raise JobError(
            f"{shown}: the module {name} has no Python source that could be run",
            hint="give a module that is a .py file",
        )
    check_module(spec, os.path.relpath(spec.origin))
    return os.path.abspath(spec.origin)


def _find(name: str, shown: str) -> ModuleSpec:
    """The module, found part by part; a package on the way is not imported."""
    first, *others = name.split(".")
    spec = _ask_finders(first, None)
    found = first
    for part in others:
        if spec is None or spec.submodule_search_locations is None:
            break
        parent, found = spec, f"{found}.{part}"
        spec = _find_below(parent, found)
        if spec is None:
            raise JobError(
                f"{shown}: there is no module {found} in {_shown_folders(parent)}",
                hint=_modules_hint(parent, part),
            )
    if spec is None:
        raise JobError(
            f"{shown}: there is no module {first} here, nor where Python looks for packages",
            hint=_module_hint_here(first),
        )
    if found != name:
        raise JobError(
            f"{shown}: {found} is a module, and no package that could hold {name}",
            hint=f"did you mean {found}?",
        )
    return spec


def _find_below(parent: ModuleSpec, name: str) -> ModuleSpec | None:
    return _ask_finders(name, list(parent.submodule_search_locations or ()))


def _ask_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders of the import system; packages in editable mode may have one of their own.
    Without a path, `python -m` looks into the working directory first."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = find_in_folders(name, [os.getcwd(), *sys.path] if path is None else path)
        else:
            spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _name_hint(name: str) -> str:
    if name.endswith(SUFFIX) or "/" in name:
        stem = os.path.normpath(name.removesuffix(SUFFIX)).replace("/", ".")
        return f"run a file without -m; as a module it would be {stem}"
    return "give it as in an import statement: package.module"


def _shown_folders(spec: ModuleSpec) -> str:
    return " or ".join(os.path.relpath(folder) for folder in spec.submodule_search_locations or ())


def _modules_hint(package: ModuleSpec, wanted: str = "") -> str:
    names = sorted({name for f in package.submodule_search_locations or () for name in _names(f)})
    near = nearest(wanted, names) if wanted else None
    listed = f"{package.name} has {', '.join(names)}" if names else f"{package.name} is empty"
    return f"did you mean {package.name}.{near}? {listed}" if near else listed


def _module_hint_here(wanted: str) -> str:
    near = nearest(wanted, list(_names(".")))
    looked = f"modules are looked for in the working directory, {os.getcwd()}, first"
    return f"did you mean {near}? {looked}" if near else looked


def _names(folder: str) -> Iterator[str]:
    """Modules and packages in a folder."""
    try:
        entries = list(Path(folder).iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == SUFFIX and entry.stem.isidentifier() and entry.stem != "__init__":
            yield entry.stem
        elif entry.name.isidentifier() and _is_package(entry):
            yield entry.name


def _is_package(folder: Path) -> bool:
    """Return True if a folder holds modules, with or without an __init__.py, or packages."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return False
    return any(entry.suffix == SUFFIX for entry in entries) or any(
        (entry / "__init__.py").is_file() for entry in entries
    )


_LONGEST_FIRST_LINE = 256  # of what the kernel reads
_INTERPRETED = b"#!"


def find_program(name: str, shown: str, folder: str = "") -> str:
    """Path of the program: of a name without a slash, the first in PATH.

    A path is relative to `folder`. Raises JobError, which calls the program `shown`, where it could
    not be executed.
    """
    if "/" not in name:
        return _find_on_path(name, shown)
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(name)))
    if os.path.isdir(path):
        raise JobError(
            f"{shown} is a folder, must be a program",
            hint="a folder with a __main__.py runs without --no-python",
        )
    if not os.path.exists(path):
        raise JobError(f"{shown}: there is no such file", hint="check the path of the program")
    if not os.path.isfile(path):
        raise JobError(f"{shown} is not a regular file", hint="give the path of a program")
    if not os.access(path, os.X_OK):
        raise JobError(
            f"{shown} is not executable",
            hint=f"chmod +x {shown}; a Python script needs no --no-python",
        )
    _check_first_line(path, shown)
    return path


def _find_on_path(name: str, shown: str) -> str:
    path = shutil.which(name) if name else None
    if path is None:
        looked = "a name without a slash is looked for in PATH"
        near = f"did you mean ./{name}? " if os.path.isfile(name) else ""
        raise JobError(f"{shown}: there is no such program in PATH", hint=near + looked)
    path = os.path.abspath(path)
    _check_first_line(path, shown)
    return path


def _check_first_line(path: str, shown: str) -> None:
    """Raise JobError for a text that the kernel would not know how to execute."""
    try:
        with open(path, "rb") as file:
            start = file.read(_LONGEST_FIRST_LINE)
    except OSError:  # what may be executed need not be readable
        return
    first_line = start.partition(b"\n")[0]
    if not start.startswith(_INTERPRETED):
        if b"\0" not in start:
            raise JobError(
                f"{shown} is a text that does not say what runs it",
                hint="begin it with a line such as #!/bin/bash",
            )
        return
    words = os.fsdecode(first_line.removeprefix(_INTERPRETED)).strip(" \t").split(" ")
    if not os.path.exists(words[0]):
        raise JobError(
            f"{shown}: its first line asks for {words[0]!r}, which is not there",
            hint="correct the path of the interpreter, and the end of the line",
        )
