"""Find what a job's name or path means, and the code that it runs, without running any of it.

A name means ./jobs/NAME.yaml, then the jobs that ship with hpcdist; a path means a job file
(.yaml, .yml), or else a Python script, which may be a folder or a zip file with a `__main__.py`.
Where a name is that of a job and of a script without a suffix, it means the job: ./NAME is the
script. A module is found by its name as `python -m` would, a program as execvp does.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile, ZipFile, is_zipfile

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.base.files import shipped_folder
from hpcdist.base.text import nearest, nearest_first, show_bytes

if TYPE_CHECKING:
    from _typeshed.importlib import PathEntryFinderProtocol

LOCAL_JOBS = Path("jobs")
YAML_SUFFIX = ".yaml"

NameKind = Literal["job", "module", "program"]
"""A name is that of a job or a path, of a module (after -m), or of a program (--no-python)."""

_KINDS: dict[str, Literal["yaml", "script"]] = {
    YAML_SUFFIX: "yaml",
    ".yml": "yaml",
    ".py": "script",
}


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that says what to submit."""

    path: Path
    """The path of the file; for a module or a program, its name."""
    name: str = ""
    """Name of a module or a program as the user gave it: ./NAME is not NAME."""
    shown: str
    """Its name in messages: the path as given, or the name of a shipped job."""
    kind: Literal["yaml", "script", "module", "program"]
    notes: list[str] = []
    """Notes for the user on the meaning of the name."""


def find_named(name: str, kind: NameKind) -> JobFile:
    """Return the file that a name of this kind means; a module or a program need not exist."""
    if kind == "job":
        return find_job(name)
    option = {"module": "-m", "program": "--no-python"}[kind]
    return JobFile(path=Path(name), name=name, shown=f"{option} {name}", kind=kind)


def find_job(name: str) -> JobFile:
    """The file that a job's name or path means; JobError with the nearest names where none does."""
    kind = _KINDS.get(os.path.splitext(name)[1].lower())
    if kind is not None and os.path.lexists(name):
        return JobFile(path=Path(name), shown=name, kind=kind)
    for folder, shown in (
        (LOCAL_JOBS, f"{LOCAL_JOBS}/{name}{YAML_SUFFIX}"),
        (shipped_folder("jobs"), name),
    ):
        path = folder / f"{name}{YAML_SUFFIX}"
        if name and "/" not in name and os.path.lexists(path):
            notes = []
            if os.path.isfile(name) or os.path.isfile(os.path.join(name, "__main__.py")):
                script = f"the script of that name is ./{name}"
                notes = [f"{name} is taken for the job {name}, {path}; {script}"]
            return JobFile(path=path, shown=shown, kind="yaml", notes=notes)
    if os.path.lexists(name):
        return JobFile(path=Path(name), shown=name, kind="script")
    raise _unknown_job(name, kind)


def named_jobs() -> dict[str, JobFile]:
    """Every job that has a name, sorted; local ones hide shipped ones of the same name."""
    names = [*_yaml_names(LOCAL_JOBS), *_yaml_names(shipped_folder("jobs"))]
    return {name: find_job(name) for name in sorted(set(names))}


def read_job_file(file: JobFile) -> dict[str, Any]:
    from hpcdist.job.yaml_text import MOST_BYTES, parse_keys

    values = parse_keys(
        read_bytes(str(file.path), file.shown, most_bytes=MOST_BYTES),
        file.shown,
        hint="a job file begins with keys such as workload: train",
    )
    if values is None:
        raise JobError(
            f"{file.shown} is empty",
            hint="a job file has at least the key workload: train or script",
        )
    return values


def compares(values: Mapping[str, Any]) -> bool:
    """Return True if the keys of a job file are those of one that compares jobs."""
    return "workload" not in values and ("compare" in values or "sweep" in values)


def read_bytes(path: str, shown: str, *, most_bytes: int) -> bytes:
    """The content of a file that the user named; JobError where it cannot be read."""
    if os.path.isdir(path):
        raise JobError(
            f"{shown} is a directory, must be a file",
            hint="give a job file (.yaml) or a Python script (.py)",
        )
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise JobError(f"{shown} is not a regular file", hint="give the path of a file")
        return files.read_bytes(path, most_bytes=most_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise JobError(
            f"{shown} cannot be read: {reason}", hint="check the path and its permissions"
        ) from None


def _yaml_names(folder: Path) -> list[str]:
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    return [
        name.removesuffix(YAML_SUFFIX)
        for name in entries
        if name.endswith(YAML_SUFFIX) and not name.startswith(".")
    ]


def _neighbours(path: str) -> list[str]:
    """Return the files in the folder of a path, as the path names them."""
    folder = os.path.dirname(path)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder or ".")]
    except OSError:
        return []


def _unknown_job(name: str, kind: str | None) -> JobError:
    if kind == "script":
        near = nearest(name, _neighbours(name))
        hint = f"did you mean {near}?" if near else "check the path of the script"
        return JobError(f"{name}: there is no such file", hint=hint)
    known = [*_yaml_names(LOCAL_JOBS), *_yaml_names(shipped_folder("jobs"))]
    stem = os.path.splitext(os.path.basename(name))[0] if kind or "/" in name else name
    near = nearest(stem, known)
    listed = f"jobs are {', '.join(nearest_first(stem, sorted(set(known))))}; or give a path"
    if kind is None and "." in name and all(part.isidentifier() for part in name.split(".")):
        listed += ", or a module with -m"
    if kind is None and shutil.which(name):
        listed += ", or the program of that name with --no-python"
    if kind is None:
        near = next((f"{name}{end}" for end in _KINDS if os.path.isfile(f"{name}{end}")), near)
    if kind is None and "/" in name:
        kind, listed = "script", "check the path of the script"
    return JobError(
        f"{name}: there is no such file" if kind else f"there is no job called {name!r}",
        hint=f"did you mean {near}? {listed}" if near else listed,
    )


SUFFIX = ".py"

_MAIN = "__main__"
_COMPILED = ".pyc"
_BEGINNING_BYTES = 4096
MOST_SOURCE_BYTES = 16_000_000
"""Size of a script, or a module, that is read."""
_OF_DAMAGE = (
    *(BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, zlib.error),
    *(ValueError, KeyError, ArithmeticError, struct.error),
)
"""Exceptions of zipfile: bytes of an archive may be a length, or a place beyond all files."""
_CORRECT = "correct the script; nothing was started"
_MOST_UNPACKED_BYTES = 10 * MOST_SOURCE_BYTES
_OF_OTHERS = frozenset(
    (".sh", ".bash", ".json", ".ipynb", ".toml", ".cfg", ".ini", ".txt", ".md", ".csv")
)
"""Suffixes of files that can by chance be read as Python, and are none."""


def find_main(path: str) -> ModuleSpec | None:
    """Return `__main__` of a folder or zip file, or ModuleNotFoundError; None for other files."""
    finder = finder_of(path)
    if finder is None:
        return None
    spec = finder.find_spec(_MAIN)
    if spec is None or not (spec.origin or "").endswith((SUFFIX, _COMPILED)):
        message = f"there is no module {_MAIN} in {path}"
        raise ModuleNotFoundError(message, name=_MAIN, path=path)
    return spec


def finder_of(path: str) -> PathEntryFinderProtocol | None:
    """Return a finder of the modules that a folder or zip file has now; None for any other path."""
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
    # Before zipimport compiles what is in it; a pipe would block its reader.
    if os.path.isfile(path) and is_zipfile(path):
        _check_archive(path, shown)
    try:
        main = find_main(path)
    except SyntaxError as error:
        raise _wrong_source(error, f"{shown}/{_MAIN}.py", _CORRECT) from None
    except ModuleNotFoundError:
        kind = "folder" if os.path.isdir(path) else "zip file"
        raise JobError(
            f"{shown} is a {kind} without a {_MAIN}.py, and cannot be run",
            hint=f"give a job's name, a job file (.yaml), a Python script (.py), or a folder or "
            f"zip file with a {_MAIN}.py",
        ) from None
    except (*_OF_DAMAGE, ImportError) as error:
        raise _damaged_archive(shown, error) from None
    if main is not None:
        check_module(main, os.path.join(shown, os.path.basename(main.origin or "")))
        return
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _OF_OTHERS:
        raise JobError(
            f"{shown} does not have the name of a Python script",
            hint=f"job files end in .yaml, scripts in .py or in nothing; {_other_hint(shown)}",
        )
    hint = _CORRECT
    if suffix != SUFFIX:
        if os.path.isfile(path) and b"\0" in (_begins_with(path, _BEGINNING_BYTES) or b""):
            raise JobError(f"{shown} is not a Python script, but binary", hint=_other_hint(shown))
        hint = f"correct the script; or, if it is not one, {_other_hint(shown)}"
    _check_source(read_bytes(path, shown, most_bytes=MOST_SOURCE_BYTES), path, shown, hint)


def _check_archive(path: str, shown: str) -> None:
    """Raise JobError for a zip file that is damaged, or holds too much Python."""
    try:
        with ZipFile(path) as archive:
            sources = [info for info in archive.infolist() if info.filename.endswith(SUFFIX)]
            if sum(info.file_size for info in sources) > _MOST_UNPACKED_BYTES:
                limit = show_bytes(_MOST_UNPACKED_BYTES)
                raise JobError(
                    f"{archive.filename} unpacks to more than {limit} of Python files",
                    hint="give a script in a folder",
                )
            for source in sources:
                archive.read(source)
    except _OF_DAMAGE as error:
        raise _damaged_archive(shown, error) from None


def _damaged_archive(shown: str, error: Exception) -> JobError:
    return JobError(f"{shown} is a damaged zip file: {error}", hint="make it anew")


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
    _check_source(source, spec.origin, shown, _CORRECT)


def find_in_folders(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """A module in the first of the folders that has it, as PathFinder finds it. PathFinder itself
    asks for the parents of packages without an `__init__.py`: they would have to be imported."""
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


def _begins_with(path: str, num_bytes: int) -> bytes | None:
    """Return the first bytes of a file, which may be too large to read; None: it is unreadable."""
    try:
        with files.open_regular(path, most_bytes=math.inf) as file:
            return file.read(num_bytes)
    except OSError:
        return None


def _check_source(source: bytes, path: str, shown: str, hint: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own run will show them
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _wrong_source(error, shown, hint) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobError(f"{shown} is not a Python script: {error}", hint=hint) from None


def _wrong_source(error: SyntaxError, shown: str, hint: str) -> JobError:
    place = f"line {error.lineno}: " if error.lineno else ""
    line = f": {error.text.strip()}" if error.text else ""
    return JobError(f"{shown}: {place}{error.msg}{line}", hint=hint)


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
            f"{shown}: there is no module {first} here or where Python looks for packages",
            hint=f"did you mean {near}? {looked}" if near else looked,
        )
    if found != name:
        raise JobError(
            f"{shown}: {found} is a module, not a package that could hold {name}",
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
    """Yield names of modules in a folder, and of folders there that hold modules or packages."""
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
    """Path of the program: of a name without a slash, the first in PATH. A path is relative to
    `folder`. Raises JobError, which calls the program `shown`, where it could not be executed."""
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
