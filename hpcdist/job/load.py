"""Loading a job: from a name, a job file or the user's code, and flags, to one checked value.

Precedence: what the struct says by default, then the job file, then --set, then flags, which are
short forms of keys (--nodes 2 is --set resources.nodes=2). Of one given twice, the last counts.

A section without keys (`train:` and nothing below) is an empty one. A section given whole in --set
replaces the file's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest
from hpcdist.job.check import (
    accepts,
    annotation_at,
    convert_values,
    dotted,
    is_struct,
    show,
)
from hpcdist.job.files import (
    JobFile,
    NameKind,
    check_script,
    compares,
    find_module,
    find_named,
    find_program,
    read_bytes,
    read_job_file,
)
from hpcdist.job.spec import (
    FILE_JOB_TYPES,
    JOB_TYPES,
    DataloadJob,
    InferenceJob,
    JobSpec,
    ModuleJob,
    ProgramJob,
    ScriptJob,
    TrainingJob,
)


class LoadedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A checked job, and where it came from."""

    job: JobSpec
    source: str
    """Path of the job file or script as the user knows it, or the name of a shipped job."""
    origins: dict[str, str] = {}
    """Keys that were given outside of the job file -> what messages call the flag."""

    def with_job(self, **changes: Any) -> LoadedJob:
        """Return the same with other sections of the job."""
        return msgspec.structs.replace(self, job=msgspec.structs.replace(self.job, **changes))

    def place_of(self, key: str) -> str:
        """Return the flag that gave a key, or a part of it, or else the source."""
        return _origin(self.source, self.origins, key)


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """A value for one key, given outside of the job file."""

    name: str
    """Its name in messages: --nodes, or --set train.lr=x."""
    value: Any
    text: str | None = None
    """The value as the user typed it; None where it was not typed."""


def load_job(
    name: str | os.PathLike[str],
    *,
    flags: Mapping[str, Flag] | None = None,
    overrides: Sequence[str] = (),
    script_args: Sequence[str] = (),
    kind: NameKind = "job",
    nodes: int | None = None,
) -> LoadedJob:
    """Find, read and check a job; every mistake in it is a JobError.

    `flags` maps dotted keys to flags; `overrides` are `key.path=value` with values as in YAML; of
    what is given, the later counts. `nodes` counts where nothing has a number.
    """
    file = find_named(os.fspath(name), kind)
    given = {**dict(map(parse_override, overrides)), **(flags or {})}
    path = os.path.abspath(file.path)
    values: dict[str, Any] = {"name": Path(path).stem}
    if file.kind == "script":
        values |= {"workload": "script", "script": path}
    elif file.kind != "yaml":
        stem = file.name.rpartition(".")[2] if file.kind == "module" else values["name"]
        values = {"name": stem, "workload": file.kind, file.kind: file.name}
    else:
        values |= read_job_file(file)
    if nodes is not None and isinstance(section := values.get("resources", {}), dict):
        values["resources"] = {"nodes": nodes} | section
    if compares(values):
        raise JobError(
            f"{file.shown} compares several jobs, and is not one itself",
            hint=f"run all of them with: hpcdist submit {file.shown}",
        )
    try:
        loaded = _checked(values, given, file.shown, FILE_JOB_TYPES)
    except JobError as error:
        raise _with_line(error, file) from None
    if isinstance(loaded.job, ScriptJob) and loaded.job.accelerate is not None:
        from hpcdist.job.yaml_text import MOST_BYTES

        name, folder = loaded.job.accelerate, _folder_of("accelerate", file, loaded)
        shown = f"{loaded.place_of('accelerate')}: accelerate {name}"
        content = read_bytes(_path(name, folder), shown, most_bytes=MOST_BYTES)
        loaded = loaded.with_job(accelerate_config=content.decode("utf-8-sig", "replace"))
    job = _finish(loaded, file, list(script_args))
    return msgspec.structs.replace(loaded, job=job)


def load_values(values: Mapping[str, Any], *, source: str, flags: Mapping[str, Flag]) -> LoadedJob:
    """Return the job of these keys, which are in no file; messages call them `source`."""
    return _checked(dict(values), flags, source, JOB_TYPES)


def _with_line(error: JobError, file: JobFile) -> JobError:
    """Return an error with the line of a key that has no colon, which YAML takes for text."""
    word = re.match(r"there is no colon after (\w+)", error.hint or "")
    if word is None or file.kind != "yaml":
        return error
    lines = file.path.read_text("utf-8-sig", "replace").splitlines()
    found = [number for number, line in enumerate(lines, 1) if line.split()[:1] == [word[1]]]
    where = f"{file.shown}: line {found[0]}: " if found else f"{file.shown}: "
    return JobError(error.message.replace(f"{file.shown}: ", where, 1), hint=error.hint)


def locate(loaded: LoadedJob, error: JobError) -> JobError:
    """An error that begins with a key of the job, with the place that the key's value came from."""
    key = error.message.partition(" ")[0]
    if annotation_at(type(loaded.job), tuple(key.split("."))) is None:
        return error
    return JobError(f"{loaded.place_of(key)}: {error.message}", hint=error.hint)


def parse_flag(name: str, text: str) -> Flag:
    """A flag's text as a value: YAML, or else the text itself."""
    from hpcdist.job.yaml_text import YamlError, parse_yaml

    try:
        return Flag(name=name, value=parse_yaml(text), text=text)
    except YamlError:
        return Flag(name=name, value=text, text=text)


def parse_override(text: str) -> tuple[str, Flag]:
    """`key.path=value` as the key and its flag."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        hint = "for example --set train.lr=0.01"
        raise JobError(f"--set {text}: must be key.path=value", hint=hint)
    return key, parse_flag(f"--set {text}", value)


def _origin(source: str, flag_names: Mapping[str, str], key: str) -> str:
    parts = key.split(".")
    above = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    below = [name for name in flag_names if name.startswith(f"{key}.")]
    return next((flag_names[one] for one in [*above, *below] if one in flag_names), source)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one key of nested sections, making those that are not there."""
    *sections, last = key.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[last] = value


def _checked(
    values: dict[str, Any],
    given: Mapping[str, Flag],
    source: str,
    types: Mapping[str, type[JobSpec]],
) -> LoadedJob:
    """The values as a job of one of the types; JobError for the first mistake in them."""
    names = {key: flag.name for key, flag in given.items()}
    for key, flag in given.items():
        _put(values, key, flag.value)
    workload = values.get("workload")
    struct = types.get(workload) if isinstance(workload, str) else None
    if struct is None:
        known = ", ".join(types)
        near = nearest(workload, types) if isinstance(workload, str) else None
        problem = f"is {show(workload)}, must be one of {known}" if workload else "is missing"
        hint = f"did you mean {near}?" if near else f"set the key workload to one of {known}"
        raise JobError(f"{_origin(source, names, 'workload')}: workload {problem}", hint=hint)
    for key, flag in given.items():
        # A flag that looks like a number is text where the key wants text: --set name=2024.
        annotation = annotation_at(struct, tuple(key.split(".")))
        if flag.text is None or annotation is None or accepts(annotation, flag.value):
            continue
        if accepts(annotation, flag.text):
            _put(values, key, flag.text)
    for key in [key for key, value in values.items() if value is None]:
        if is_struct(annotation_at(struct, (key,))):
            del values[key]  # an empty section
    job = convert_values(values, struct, lambda path: _origin(source, names, dotted(path)))
    return LoadedJob(job=job, source=source, origins=names)


def _finish(loaded: LoadedJob, file: JobFile, script_args: list[str]) -> JobSpec:
    """Settle what a struct cannot know: paths are absolute, and script arguments have a script."""
    job = loaded.job
    if isinstance(job, ScriptJob):
        script = _find_code(job, file, loaded)
        return msgspec.structs.replace(job, script=script, args=[*job.args, *script_args])
    if script_args:
        raise JobError(
            f"{job.name} is a {job.workload} job and takes no script arguments",
            hint="change its keys with --set, for example --set train.lr=0.01",
        )
    # An absolute path means the same in all processes of the run.
    if isinstance(job, TrainingJob) and (resume := job.checkpoint.resume) is not None:
        checkpoint = msgspec.structs.replace(job.checkpoint, resume=_path(resume))
        job = msgspec.structs.replace(job, checkpoint=checkpoint)
    if isinstance(job, TrainingJob | InferenceJob | DataloadJob) and job.data.root is not None:
        data = msgspec.structs.replace(job.data, root=_path(job.data.root))
        job = msgspec.structs.replace(job, data=data)
    return job


def _path(path: str, folder: str = "") -> str:
    return os.path.abspath(os.path.join(folder, os.path.expanduser(path)))


def _folder_of(key: str, file: JobFile, loaded: LoadedJob) -> str:
    """Return the folder that a path is relative to: that of the job file which has it."""
    is_in_file = file.kind == "yaml" and loaded.place_of(key) == file.shown
    return str(file.path.parent) if is_in_file else ""


def _find_code(job: ScriptJob, file: JobFile, loaded: LoadedJob) -> str:
    """Return the path of a script's, module's or program's file; JobError if it cannot be run."""
    origin, given = loaded.place_of(job.workload), getattr(job, job.workload)
    shown, folder = f"{origin}: {job.workload} {given}", _folder_of(job.workload, file, loaded)
    if not isinstance(job, ModuleJob | ProgramJob):
        path = _path(given, folder)
        check_script(path, origin if file.kind == "script" and origin == file.shown else shown)
        return path
    if isinstance(job, ModuleJob):
        return find_module(given, origin if file.kind == "module" else shown)
    return find_program(given, given if file.kind == "program" else shown, folder)
