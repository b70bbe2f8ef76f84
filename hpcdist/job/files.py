"""Find jobs by name or path, and read job files.

A name means ./jobs/NAME.yaml, then the jobs that ship with hpcdist; a path means a job file
(.yaml, .yml), or else a Python script, which may be a folder or a zip file with a `__main__.py`.
Where a name is that of a job and of a script without a suffix, it means the job: ./NAME is the
script.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.files import shipped_folder
from hpcdist.base.text import nearest, nearest_first

LOCAL_JOBS = Path("jobs")
YAML_SUFFIX = ".yaml"

NameKind = Literal["job", "module", "program"]
"""The kind of a name: that of a job or a path; of a module, as after -m; of a program, as after
--no-python."""

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
    """For a module or a program, its name as the user gave it: ./NAME is not NAME."""
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
    """The keys of a YAML job file."""
    from hpcdist.job.yaml_text import parse_keys

    values = parse_keys(
        read_bytes(str(file.path), file.shown),
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


def read_bytes(path: str, shown: str) -> bytes:
    """The content of a file that the user named; JobError where it cannot be read."""
    if os.path.isdir(path):
        raise JobError(
            f"{shown} is a directory, must be a file",
            hint="give a job file (.yaml) or a Python script (.py)",
        )
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise JobError(f"{shown} is not a regular file", hint="give the path of a file")
        return Path(path).read_bytes()
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


def _unknown_job(name: str, kind: str | None) -> JobError:
    if kind == "script":
        return JobError(f"{name}: there is no such file", hint="check the path of the script")
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
