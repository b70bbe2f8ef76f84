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
        if os.path.isfile(path) and b"\0" in (_begins_with(path, _BEGINNING_BYTES) or b""):
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


def _begins_with(path: str, num_bytes: int) -> bytes | None:
    """Return the first bytes of a file, which may be too large to read; None: it is unreadable."""
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError:
        return None


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
        hint = "give it as in an import statement: package.module"
        if name.endswith(SUFFIX) or "/" in name:
            stem = os.path.normpath(name.removesuffix(SUFFIX)).replace("/", ".")
            hint = f"run a file without -m; as a module it would be {stem}"
        raise JobError(f"{shown}: {name!r} is not the name of a module", hint=hint)
    spec = _find(name, shown)
    if spec.submodule_search_locations is not None:
        main = _ask_finders(f"{name}.{_MAIN}", spec.submodule_search_locations)
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
        spec = _ask_finders(found, parent.submodule_search_locations)
        if spec is None:
            folders = " or ".join(map(os.path.relpath, parent.submodule_search_locations or ()))
            raise JobError(
                f"{shown}: there is no module {found} in {folders}",
                hint=_modules_hint(parent, part),
            )
    if spec is None:
        near = nearest(first, list(_names(".")))
        looked = f"modules are looked for in the working directory, {os.getcwd()}, first"
        raise JobError(
            f"{shown}: there is no module {first} here, nor where Python looks for packages",
            hint=f"did you mean {near}? {looked}" if near else looked,
        )
    if found != name:
        raise JobError(
            f"{shown}: {found} is a module, and no package that could hold {name}",
            hint=f"did you mean {found}?",
        )
    return spec


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


def _modules_hint(package: ModuleSpec, wanted: str = "") -> str:
    names = sorted({name for f in package.submodule_search_locations or () for name in _names(f)})
    near = nearest(wanted, names) if wanted else None
    listed = f"{package.name} has {', '.join(names)}" if names else f"{package.name} is empty"
    return f"did you mean {package.name}.{near}? {listed}" if near else listed


def _names(folder: str | Path) -> Iterator[str]:
    """Modules in a folder, and packages: folders with modules, with or without an __init__.py, or
    with packages."""
    for entry in _entries(folder):
        if entry.suffix == SUFFIX and entry.stem.isidentifier() and entry.stem != "__init__":
            yield entry.stem
        elif entry.name.isidentifier() and any(
            below.suffix == SUFFIX or (below / "__init__.py").is_file() for below in _entries(entry)
        ):
            yield entry.name


def _entries(folder: str | Path) -> list[Path]:
    try:
        return list(Path(folder).iterdir())
    except OSError:
        return []


_LONGEST_FIRST_LINE = 256  # of what the kernel reads
_INTERPRETED = b"#!"


def find_program(name: str, shown: str, folder: str = "") -> str:
    """Path of the program: of a name without a slash, the first in PATH.

    A path is relative to `folder`. Raises JobError, which calls the program `shown`, where it could
    not be executed.
    """
    if "/" not in name:
        found = shutil.which(name) if name else None
        if found is None:
            looked = "a name without a slash is looked for in PATH"
            near = f"did you mean ./{name}? " if os.path.isfile(name) else ""
            raise JobError(f"{shown}: there is no such program in PATH", hint=near + looked)
        path = os.path.abspath(found)
    else:
        path = os.path.abspath(os.path.join(folder, os.path.expanduser(name)))
        _check_executable(path, shown)
    _check_first_line(path, shown)
    return path


def _check_executable(path: str, shown: str) -> None:
    wrong = hint = ""
    if os.path.isdir(path):
        wrong = " is a folder, must be a program"
        hint = "a folder with a __main__.py runs without --no-python"
    elif not os.path.exists(path):
        wrong, hint = ": there is no such file", "check the path of the program"
    elif not os.path.isfile(path):
        wrong, hint = " is not a regular file", "give the path of a program"
    elif not os.access(path, os.X_OK):
        wrong = " is not executable"
        hint = f"chmod +x {shown}; a Python script needs no --no-python"
    if wrong:
        raise JobError(shown + wrong, hint=hint)


def _check_first_line(path: str, shown: str) -> None:
    """Raise JobError for a text that the kernel would not know how to execute."""
    start = _begins_with(path, _LONGEST_FIRST_LINE)
    if start is None:
        return  # what may be executed need not be readable
    if not start.startswith(_INTERPRETED):
        if b"\0" in start:
            return
        raise JobError(
            f"{shown} is a text that does not say what runs it",
            hint="begin it with a line such as #!/bin/bash",
        )
    first_line = start.partition(b"\n")[0].removeprefix(_INTERPRETED)
    interpreter = os.fsdecode(first_line).strip(" \t").split(" ")[0]
    if not os.path.exists(interpreter):
        raise JobError(
            f"{shown}: its first line asks for {interpreter!r}, which is not there",
            hint="correct the path of the interpreter, and the end of the line",
        )
