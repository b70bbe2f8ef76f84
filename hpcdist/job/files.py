"""Find what a job's name or path means, and the code that it runs, without running any of it.

A name means ./jobs/NAME.yaml, then the jobs that ship with hpcdist; a path means a job file
(.yaml, .yml), or else a Python script.
Where a name is that of a job and of a script without a suffix, it means the job: ./NAME is the
script. A module is found by its name as `python -m` would, a program as execvp does.
"""

from __future__ import annotations

import os
import pkgutil
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.base.files import shipped_folder
from hpcdist.base.text import nearest, nearest_first

LOCAL_JOBS = Path("jobs")
YAML_SUFFIX = ".yaml"
SUFFIX = ".py"
MOST_SOURCE_BYTES = 16_000_000
"""Size of a script, or a module, that is read."""

NameKind = Literal["job", "module", "program"]
"""A name is that of a job or a path, of a module (after -m), or of a program (--no-python)."""

_KINDS: dict[str, Literal["yaml", "script"]] = {".yaml": "yaml", ".yml": "yaml", ".py": "script"}
_MAIN = "__main__"
_CORRECT = "correct the script; nothing was started"


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that says what to submit."""

    path: Path
    """The path of the file; for a module or a program, its name."""
    name: str = ""
    """Name of a module or a program as the user gave it: ./NAME is not NAME."""
    shown: str
    """Its name in messages: the path as given, or the name of a shipped job."""
    kind: Literal["yaml", "script", "module", "program"]


# Jobs.


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
            return JobFile(path=path, shown=shown, kind="yaml")
    if os.path.lexists(name):
        return JobFile(path=Path(name), shown=name, kind="script")
    raise _unknown_job(name, kind)


def named_jobs() -> dict[str, JobFile]:
    """Every job that has a name, sorted; local ones hide shipped ones of the same name."""
    names = {*_entries(LOCAL_JOBS), *_entries(shipped_folder("jobs"))}
    stems = (os.path.splitext(name) for name in names if name[0] != ".")
    return {name: find_job(name) for name in sorted(stem for stem, end in stems if end == ".yaml")}


def _entries(folder: str | Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):  # ValueError: a NUL character
        return []


def _unknown_job(name: str, kind: str | None) -> JobError:
    if kind == "script" or (kind is None and "/" in name):
        folder = os.path.dirname(name)
        near = nearest(name, [os.path.join(folder, one) for one in _entries(folder or ".")])
        hint = f"did you mean {near}?" if near else "check the path of the script"
        return JobError(f"{name}: there is no such file", hint=hint)
    known = named_jobs()
    stem = os.path.splitext(os.path.basename(name))[0] if kind else name
    near = nearest(stem, known)
    listed = f"jobs are {', '.join(nearest_first(stem, known))}; or give a path"
    message = f"{name}: there is no such file" if kind else f"there is no job called {name!r}"
    if kind is None:
        listed += ", a module with -m or a program with --no-python"
        near = next((f"{name}{end}" for end in _KINDS if os.path.isfile(f"{name}{end}")), near)
    return JobError(message, hint=f"did you mean {near}? {listed}" if near else listed)


def read_job_file(file: JobFile) -> dict[str, Any]:
    from hpcdist.job.yaml_text import MOST_BYTES, parse_keys

    content = read_bytes(str(file.path), file.shown, most_bytes=MOST_BYTES)
    values = parse_keys(content, file.shown, hint="a job file begins with keys: workload: train")
    if values is None:
        hint = "a job file has at least the key workload: train or script"
        raise JobError(f"{file.shown} is empty", hint=hint)
    return values


def compares(values: Mapping[str, Any]) -> bool:
    """Return True if the keys of a job file are those of one that compares jobs."""
    return "workload" not in values and ("compare" in values or "sweep" in values)


def read_bytes(path: str, shown: str, *, most_bytes: int) -> bytes:
    """The content of a file that the user named; JobError where it cannot be read."""
    if os.path.isdir(path):
        hint = "give a job file (.yaml) or a Python script (.py); run a package with -m"
        raise JobError(f"{shown} is a directory, must be a file", hint=hint)
    try:
        return files.read_bytes(path, most_bytes=most_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = "check the path and its permissions"
        raise JobError(f"{shown} cannot be read: {reason}", hint=hint) from None


# Scripts.


def check_script(path: str, shown: str) -> None:
    """Raise JobError unless `python PATH` would run without syntax errors."""
    suffix = os.path.splitext(path)[1].lower()
    other = f"run a program that is not Python with --no-python: {'' if '/' in shown else './'}"
    other += shown
    if suffix not in ("", SUFFIX):  # some files are Python by chance
        if suffix == ".ipynb":
            other = f"make a script of it: jupyter nbconvert --to script {shown}"
        raise JobError(
            f"{shown} does not have the name of a Python script",
            hint=f"job files end in .yaml, scripts in .py or have no suffix; {other}",
        )
    hint = _CORRECT if suffix == SUFFIX else f"correct the script; or, if it is not one, {other}"
    _check_source(read_bytes(path, shown, most_bytes=MOST_SOURCE_BYTES), path, shown, hint)


def _check_source(source: bytes, path: str, shown: str, hint: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own run will show them
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        if b"\0" in source:
            raise JobError(f"{shown} is not a Python script, but binary", hint=hint) from None
        place = f"line {error.lineno}: " if error.lineno else ""
        line = f": {error.text.strip()}" if error.text else ""
        raise JobError(f"{shown}: {place}{error.msg}{line}", hint=hint) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobError(f"{shown} is not a Python script: {error}", hint=hint) from None


# Modules.


def find_module(name: str, shown: str) -> str:
    """Path of the source that `python -m NAME` would run here; of a package,
    its __main__.py. Packages on the way are not imported: those that put together the folders of
    their modules when they are imported are seen as they lie on disk.

    Raises JobError, which calls the module `shown`, or names the file that has syntax errors.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        hint = "give it as in an import statement: package.module"
        if name.endswith(SUFFIX) or "/" in name:
            stem = os.path.normpath(name.removesuffix(SUFFIX)).replace("/", ".")
            hint = f"run a file without -m; as a module it would be {stem}"
        raise JobError(f"{shown}: {name!r} is not the name of a module", hint=hint)
    PathFinder.invalidate_caches()
    found, spec, folders = "", None, None
    for part in name.split("."):
        around, found = found, f"{found}.{part}".lstrip(".")
        spec = None if around and folders is None else _ask_finders(found, folders)
        if spec is None:
            where = " or ".join(map(os.path.relpath, folders or ())) or (
                "the working directory or where Python looks for packages"
            )
            has_modules = not around or folders is not None
            near = nearest(part, _modules_in(folders or ["."])) if has_modules else ""
            hint = f"did you mean {f'{around}.{near}'.strip('.')}?"
            if near is None:
                hint = f"the working directory is {os.getcwd()}"
            raise JobError(f"{shown}: there is no module {found} in {where}", hint=hint)
        folders = spec.submodule_search_locations
    if folders is not None and (spec := _ask_finders(f"{name}.{_MAIN}", folders)) is None:
        raise JobError(
            f"{shown}: {name} is a package without a module {_MAIN}, and cannot be run",
            hint=f"{name} has {', '.join(_modules_in(folders)) or 'no modules'}",
        )
    if spec is None or spec.origin is None or not spec.origin.endswith(SUFFIX):
        message = f"{shown}: the module {name} has no Python source that could be run"
        raise JobError(message, hint="give a module that is a .py file")
    path, file = os.path.abspath(spec.origin), os.path.relpath(spec.origin)
    _check_source(read_bytes(path, file, most_bytes=MOST_SOURCE_BYTES), path, file, _CORRECT)
    return path


def _ask_finders(name: str, folders: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders of the import system; packages in editable mode may have one of their own.
    Without folders, `python -m` looks into the working directory first."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            # By its last part alone: else it asks for the parents, which would have to be imported.
            looked = [os.getcwd(), *sys.path] if folders is None else list(folders)
            spec = PathFinder.find_spec(name.rpartition(".")[2], looked)
        else:
            spec = finder.find_spec(name, folders)
        if spec is not None:
            return spec
    return None


def _modules_in(folders: Iterable[str]) -> list[str]:
    return sorted({module.name for module in pkgutil.iter_modules(map(str, folders))})


# Programs.


def find_program(name: str, shown: str, folder: str = "") -> str:
    """Path of the program: of a name without a slash, the first in PATH. A path is relative to
    `folder`. Raises JobError, which calls the program `shown`, where it could not be executed."""
    if "/" not in name:
        if (found := shutil.which(name) if name else None) is None:
            near = f"did you mean ./{name}? " if os.path.isfile(name) else ""
            hint = f"{near}a name without a slash is looked for in PATH"
            raise JobError(f"{shown}: there is no such program in PATH", hint=hint)
        return os.path.abspath(found)
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(name)))
    if not os.path.isfile(path):
        hint = "check the path of the program"
        raise JobError(f"{shown}: there is no such file", hint=hint)
    if not os.access(path, os.X_OK):
        hint = f"chmod +x {name}; a Python script needs no --no-python"
        raise JobError(f"{shown} is not executable", hint=hint)
    return path
