"""The command that submits a run again, from its spec.json."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from hpcdist.base.secrets import looks_secret
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.runs.spec import RunSpec

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
    workload, name = str(job.get("workload")), source.job
    if name is None or workload == "function":
        return None
    is_job_file = name.endswith(_JOB_FILES)
    words = ["hpcdist", "submit", name]
    if not is_job_file and workload in _OPTIONS:
        option = _OPTIONS[workload]
        words[2:] = [option, name.removeprefix(f"{option} ")]
    if spec.scheduler == LOCAL:  # a profile would be refused beside it
        words.append("--local")
    else:
        words += [] if spec.scheduler is None else ["--scheduler", spec.scheduler]
        words += [] if spec.cluster.name is None else ["--cluster", spec.cluster.name]
    given = job.get("args")
    args = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    starred = starred_args(args)
    as_override = f"args={json.dumps(starred, ensure_ascii=False)}"
    keys = []
    for text in source.overrides:
        key, _, value = text.partition("=")
        is_changed = key == "args" and starred != args
        shown = f"{key}={HIDDEN}" if _is_secret(key, value) else as_override if is_changed else text
        words += ["--set", shown]
        keys.append(key)
    if args and "args" not in keys:
        words += ["--set", as_override] if is_job_file else ["--", *starred]
    line = shlex.join(words)
    return line if spec.cwd is None else f"cd {shlex.quote(spec.cwd)} && {line}"


def starred_args(args: Sequence[str]) -> list[str]:
    """Star out what looks like a secret in arguments: both `--token=x` and `--token x`."""
    starred, before = [], ""
    for arg in args:
        name, equals, value = arg.partition("=")
        is_value = before.startswith("-") and "=" not in before and not arg.startswith("-")
        if equals and _is_secret(name, value):
            starred.append(f"{name}={HIDDEN}")
        elif _is_secret(before if is_value else "", arg):
            starred.append(HIDDEN)
        else:
            starred.append(arg)
        before = arg
    return starred


def _is_secret(name: str, value: str) -> bool:
    return looks_secret(name.replace("-", "_"), value)
