"""Loading a job: from a name, a job file or the user's code, and flags, to one checked value.

Precedence: what the struct says by default, then the job file, then flags and --set. Flags are
short forms of keys (--nodes 2 is --set resources.nodes=2), so a flag and a --set that give one key
two values contradict each other: an error, for the order between them is not known. The same flag
or key given twice is not one: the last counts, as in other commands.

A section without keys (`train:` and nothing below) is an empty one. A section given whole in --set
replaces the file's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest
from hpcdist.job.check import accepts, annotation_at, convert_values, dotted, show
from hpcdist.job.files import (
    JobFile,
    NameKind,
    compares,
    find_named,
    read_job_file,
)
from hpcdist.job.source import check_script, find_module, find_program
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
    overrides: list[str] = []
    """Flags and --set, each as key=value."""
    script_args: list[str] = []
    """Arguments of the script, given after `--`."""
    origins: dict[str, str] = {}
    """Keys that were given outside of the job file -> what messages call the flag."""
    notes: list[str] = []
    """Notes for the user on the meaning of the name."""


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
    defaults: Mapping[str, Any] | None = None,
    kind: NameKind = "job",
) -> LoadedJob:
    """Find, read and check a job; every mistake in it is a JobError.

    `flags` maps dotted keys to flags; `overrides` are `key.path=value` with values as in YAML.
    `defaults` maps dotted keys to values that count where neither the job file nor a flag has one.
    """
    file = find_named(os.fspath(name), kind)
    given = _merge_flags(dict(flags or {}), [parse_override(text) for text in overrides])
    values = _defaults(file) | (read_job_file(file) if file.kind == "yaml" else {})
    if compares(values):
        raise JobError(
            f"{file.shown} compares several jobs, and is none itself",
            hint=f"run all of them with: hpcdist submit {file.shown}",
        )
    origins = _Origins(file.shown, {key: flag.name for key, flag in given.items()})
    for key, flag in given.items():
        _put(values, key, flag.value, flag.name)
    for key, value in (defaults or {}).items():
        _put_default(values, key, value)
    checked = _checked(values, _struct_for(values, origins), given, origins)
    job = _finish(checked, file, origins, list(script_args))
    return LoadedJob(
        job=job,
        source=file.shown,
        overrides=[f"{key}={flag.text or show(flag.value)}" for key, flag in given.items()],
        script_args=list(script_args),
        origins={key: flag.name for key, flag in given.items()},
        notes=_notes(file),
    )


def load_values(values: Mapping[str, Any], *, source: str, flags: Mapping[str, Flag]) -> LoadedJob:
    """A job that is in no file: `values` are its keys, and messages call it `source`.

    Raises JobError.
    """
    given = _merge_flags(dict(flags), [])
    put = dict(values)
    origins = _Origins(source, {key: flag.name for key, flag in given.items()})
    for key, flag in given.items():
        _put(put, key, flag.value, flag.name)
    return LoadedJob(
        job=_checked(put, JOB_TYPES[put["workload"]], given, origins),
        source=source,
        overrides=[f"{key}={show(flag.value)}" for key, flag in given.items()],
        origins={key: flag.name for key, flag in given.items()},
    )


def locate(loaded: LoadedJob, error: JobError) -> JobError:
    """An error that begins with a key of the job, with the place that the key's value came from."""
    path = tuple(error.message.partition(" ")[0].split("."))
    if annotation_at(type(loaded.job), path) is None:
        return error
    origin = _Origins(loaded.source, loaded.origins)(path)
    return JobError(f"{origin}: {error.message}", hint=error.hint)


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
        raise JobError(
            f"--set {text}: must be key.path=value",
            hint="for example --set train.lr=0.01",
        )
    return key, parse_flag(f"--set {text}", value)


class _Origins:
    """The places that values came from: the flag that set a key or a part of it, or the file."""

    def __init__(self, source: str, flag_names: Mapping[str, str]) -> None:
        self._source = source
        self._flag_names = flag_names

    def __call__(self, path: tuple[str, ...]) -> str:
        for end in range(len(path), 0, -1):
            if name := self._flag_names.get(dotted(path[:end])):
                return name
        below = dotted(path) + "."
        return next(
            (name for key, name in self._flag_names.items() if key.startswith(below)), self._source
        )


def _merge_flags(flags: dict[str, Flag], overrides: list[tuple[str, Flag]]) -> dict[str, Flag]:
    merged = dict(flags)
    for key, override in overrides:
        flag = flags.get(key)
        if flag is not None and flag.value != override.value:
            raise JobError(
                f"{flag.name} {flag.text or show(flag.value)} and {override.name} "
                f"contradict each other",
                hint=f"{flag.name} is short for --set {key}=...; give one of them",
            )
        merged[key] = override
    # A section given whole comes before its keys, so that no flag is lost below it.
    return dict(sorted(merged.items(), key=lambda item: item[0].count(".")))


def _defaults(file: JobFile) -> dict[str, Any]:
    if file.kind == "module":
        name = file.name.rpartition(".")[2]
        return {"name": name, "workload": "module", "module": file.name}
    path = os.path.abspath(file.path)
    values: dict[str, Any] = {"name": Path(path).stem}
    if file.kind == "script":
        values |= {"workload": "script", "script": path}
    if file.kind == "program":
        values |= {"workload": "program", "program": file.name}
    return values


def _notes(file: JobFile) -> list[str]:
    if not file.hides_script:
        return []
    name = file.path.stem
    return [f"{name} is taken for the job {name}, {file.path}; the script of that name is ./{name}"]


def _put(values: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Set one key of nested sections, making those that are not there."""
    *sections, last = key.split(".")
    inner = values
    for depth, section in enumerate(sections, start=1):
        below = inner.get(section)
        if below is None:
            below = inner[section] = {}
        elif not isinstance(below, dict):
            shown = ".".join(sections[:depth])
            raise JobError(
                f"{origin}: {shown} is {show(below)}, not a section that could hold {key}",
                hint=f"set {shown} itself, or choose another key",
            )
        inner = below
    inner[last] = value


def _put_default(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of a section where it has no value; what is no section is an error found later."""
    section, _, name = key.partition(".")
    inner = values.get(section)
    if inner is None or isinstance(inner, dict):
        values[section] = {name: value} | (inner or {})


def _struct_for(values: Mapping[str, Any], origins: _Origins) -> type[JobSpec]:
    workload = values.get("workload")
    if isinstance(workload, str) and workload in FILE_JOB_TYPES:
        return FILE_JOB_TYPES[workload]
    known = ", ".join(FILE_JOB_TYPES)
    near = nearest(workload, FILE_JOB_TYPES) if isinstance(workload, str) else None
    problem = (
        f"is {show(workload)}, must be one of {known}" if workload is not None else "is missing"
    )
    raise JobError(
        f"{origins(('workload',))}: workload {problem}",
        hint=f"did you mean {near}?" if near else f"set the key workload to one of {known}",
    )


def _checked(
    values: dict[str, Any],
    struct: type[JobSpec],
    given: Mapping[str, Flag],
    origins: _Origins,
) -> JobSpec:
    """The values as a job; JobError for the first mistake in them."""
    for key, flag in given.items():
        _retry_as_text(values, key, flag, struct)
    _drop_empty_sections(values, struct)
    return convert_values(values, struct, origins)


def _retry_as_text(values: dict[str, Any], key: str, flag: Flag, struct: type[JobSpec]) -> None:
    """A flag that looks like a number is text where the key wants text: --set name=2024."""
    annotation = annotation_at(struct, tuple(key.split(".")))
    if flag.text is None or annotation is None or accepts(annotation, flag.value):
        return
    if accepts(annotation, flag.text):
        _put(values, key, flag.text, flag.name)


def _drop_empty_sections(values: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    for key in [key for key, value in values.items() if value is None]:
        annotation = annotation_at(struct, (key,))
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            del values[key]


def _finish(job: JobSpec, file: JobFile, origins: _Origins, script_args: list[str]) -> JobSpec:
    """Settle what a struct cannot know: paths are absolute, script arguments have a script."""
    if isinstance(job, ScriptJob):
        find = _FINDERS.get(type(job), _script_file)
        return msgspec.structs.replace(
            job, script=find(job, file, origins), args=[*job.args, *script_args]
        )
    job = _with_absolute_paths(job)
    if script_args:
        raise JobError(
            f"{job.name} is a {job.workload} job and takes no script arguments: "
            f"{' '.join(script_args)}",
            hint="change its keys with --set, for example --set train.lr=0.01",
        )
    return job


def _script_file(job: ScriptJob, file: JobFile, origins: _Origins) -> str:
    from_file = origins(("script",)) == file.shown
    base = file.path.parent if from_file else Path()
    path = os.path.abspath(base / os.path.expanduser(job.script))
    is_given = file.kind == "script" and from_file
    check_script(path, file.shown if is_given else f"{file.shown}: script {job.script}")
    return path


def _module_file(job: ScriptJob, file: JobFile, origins: _Origins) -> str:
    assert isinstance(job, ModuleJob)
    _refuse_script(job, origins)
    shown = origins(("module",))
    shown = shown if file.kind == "module" else f"{shown}: module {job.module}"
    return find_module(job.module, shown)


def _program_file(job: ScriptJob, file: JobFile, origins: _Origins) -> str:
    assert isinstance(job, ProgramJob)
    _refuse_script(job, origins)
    shown = origins(("program",))
    from_job_file = file.kind == "yaml" and shown == file.shown
    return find_program(
        job.program,
        job.program if file.kind == "program" else f"{shown}: program {job.program}",
        str(file.path.parent) if from_job_file else "",
    )


def _refuse_script(job: ScriptJob, origins: _Origins) -> None:
    """The file of what is given by a name is found, and not given."""
    if job.script:
        raise JobError(
            f"{origins(('script',))}: script is {show(job.script)}, but the workload is "
            f"{job.workload}",
            hint=f"leave script out: the file is found by the key {job.workload}",
        )


_FINDERS: dict[type[JobSpec], Callable[[ScriptJob, JobFile, _Origins], str]] = {
    ModuleJob: _module_file,
    ProgramJob: _program_file,
}
"""Job whose code is not named by its path -> function that finds and checks the code's file."""


def _with_absolute_paths(job: JobSpec) -> JobSpec:
    """Paths mean the same in every process of the run, wherever it works: they are relative to the
    directory of the submission."""
    if isinstance(job, TrainingJob):
        resume = _absolute(job.checkpoint.resume)
        checkpoint = msgspec.structs.replace(job.checkpoint, resume=resume)
        job = msgspec.structs.replace(job, checkpoint=checkpoint)
    if isinstance(job, TrainingJob | InferenceJob):
        data = msgspec.structs.replace(job.data, root=_absolute(job.data.root))
        return msgspec.structs.replace(job, data=data)
    if isinstance(job, DataloadJob):
        roots = job.data.root
        root = tuple(map(_absolute, roots)) if isinstance(roots, tuple) else _absolute(roots)
        return msgspec.structs.replace(job, data=msgspec.structs.replace(job.data, root=root))
    return job


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(os.path.expanduser(path))
