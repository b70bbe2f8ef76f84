"""The command that submits a run again, from its spec.json."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.secrets import looks_secret
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.runs.spec import JobSource, RunSpec

_JOB_FILES = (".yaml", ".yml")
_OPTIONS = {"module": "-m", "program": "--no-python"}
"""Option before the name of a module or program, by workload; source.job begins with it, too."""
HIDDEN = "***"


def command_again(spec: RunSpec) -> str | None:
    """Return a line for the shell, with the folder to submit from; None where the run was
    submitted from Python, or its spec.json does not say enough.

    Values that look like secrets are starred out: the line is shown to others.
    """
    job, source = spec.job, spec.source
    name = source.job
    if name is None or job.get("workload") == "function":
        return None
    words = ["hpcdist", "submit", *_named(name, job, source)]
    words += [*_where(spec), *_overrides(job, source)]
    words += _after_dashes(job, source)
    line = shlex.join(words)
    return line if spec.cwd is None else f"cd {shlex.quote(spec.cwd)} && {line}"


def _named(name: str, job: Mapping[str, Any], source: JobSource) -> list[str]:
    option = _OPTIONS.get(str(job.get("workload")))
    if option is None or _is_job_file(source):
        return [name]
    return [option, name.removeprefix(f"{option} ")]


def _where(spec: RunSpec) -> list[str]:
    if spec.scheduler == LOCAL:  # a profile would be refused beside it
        return ["--local"]
    words = [] if spec.scheduler is None else ["--scheduler", spec.scheduler]
    return words + ([] if spec.cluster.name is None else ["--cluster", spec.cluster.name])


def _overrides(job: Mapping[str, Any], source: JobSource) -> Iterator[str]:
    args = _texts(job.get("args"))
    for text in source.overrides:
        key, _, value = text.partition("=")
        if _is_secret(key, value):
            yield from ("--set", f"{key}={HIDDEN}")
        elif key == "args" and starred_args(args) != args:
            yield from ("--set", _as_override(args))
        else:
            yield from ("--set", text)
    if args and _is_job_file(source) and not _sets_args(source):
        yield from ("--set", _as_override(args))


def _as_override(args: Sequence[str]) -> str:
    return f"args={json.dumps(starred_args(args), ensure_ascii=False)}"


def _after_dashes(job: Mapping[str, Any], source: JobSource) -> list[str]:
    args = _texts(job.get("args"))
    if not args or _is_job_file(source) or _sets_args(source):
        return []
    return ["--", *starred_args(args)]


def starred_args(args: Sequence[str]) -> list[str]:
    """Star out what looks like a secret in arguments: both `--token=x` and `--token x`."""
    starred, before = [], ""
    for arg in args:
        name, equals, value = arg.partition("=")
        if equals and _is_secret(name, value):
            starred.append(f"{name}={HIDDEN}")
        elif _is_secret(before if _names_value(before, arg) else "", arg):
            starred.append(HIDDEN)
        else:
            starred.append(arg)
        before = arg
    return starred


def _names_value(before: str, arg: str) -> bool:
    return before.startswith("-") and "=" not in before and not arg.startswith("-")


def _is_secret(name: str, value: str) -> bool:
    return looks_secret(name.replace("-", "_"), value)


def _is_job_file(source: JobSource) -> bool:
    return str(source.job).endswith(_JOB_FILES)


def _sets_args(source: JobSource) -> bool:
    return any(text.startswith("args=") for text in source.overrides)


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
