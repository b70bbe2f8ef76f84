"""What a profile's types do not say: names and lines that can stand in a script, and no secrets.

All of a profile stands in the job's script and in the run directory, which others can often read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdist.base.errors import ProfileError
from hpcdist.base.secrets import looks_secret
from hpcdist.cluster.lsf_rules import LSF_KEYS, Problem, lsf_problems, requirement_problems
from hpcdist.job.check import show

Origin = Callable[[str], str]
"""Key -> what messages call the place that its value came from."""

_WORDS = ("partition", "account", "qos", "gpu_type", "interface")
_LINES = (*_WORDS, "constraint", "python")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"""(?:^|[\s;&,=])([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s;&,]*)""")

_SLURM_KEYS = {
    ("--partition", "-p"): "the key partition",
    ("--account", "-A"): "the key account",
    ("--qos", "-q"): "the key qos",
    ("--constraint", "-C"): "the key constraint",
    ("--gpus-per-node", "--gpus", "-G", "--gres"): "the keys gpu_request and gpu_type",
    ("--cpus-per-task", "-c"): "the key cpus_per_gpu",
    ("--mem",): "the key mem_gb",
    ("--time", "-t"): "the key time_limit_min",
    ("--nodes", "-N"): "the option --nodes, or resources.nodes in the job",
    ("--ntasks-per-node", "--ntasks", "-n"): "the option --gpus, or resources.gpus in the job",
    ("--job-name", "-J"): "name in the job",
    ("--requeue", "--no-requeue", "--open-mode", "--signal"): "nothing: hpcdist restarts its runs",
    ("--output", "-o", "--error", "-e"): "nothing: the output is in the run directory",
    ("--array", "-a", "--dependency", "-d"): "nothing: hpcdist sets it where it is needed",
}
"""Options that hpcdist sets itself -> what to use instead of a directive."""


def check_rules(values: Mapping[str, Any], origin: Origin) -> None:
    """Raise ProfileError for the first value that cannot stand in a script."""
    for key, problem, hint in _problems(values):
        raise ProfileError(f"{origin(key.partition('.')[0])}: {key} {problem}", hint=hint)


def _problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _unprintable(values)
    yield from _environment(values.get("environment", {}))
    yield from _setup(values.get("setup", []))
    lsf = values.get("lsf", {})
    yield from lsf_problems(lsf)
    yield from _assigned_secrets("lsf.launcher", lsf.get("launcher") or "")
    is_lsf = values.get("scheduler") == "lsf"
    for directive in values.get("directives", []):
        yield from _directive(directive, LSF_KEYS if is_lsf else _SLURM_KEYS)
        if is_lsf:
            yield from requirement_problems(directive)


def _unprintable(values: Mapping[str, Any]) -> Iterator[Problem]:
    for key in _LINES:
        value = values.get(key)
        if value is None:
            continue
        if not value.strip() or not value.isprintable():
            yield key, f"is {show(value)}, must be one line of text", f"leave {key} out for none"
        elif key in _WORDS and (" " in value or value.startswith("-")):
            yield (
                key,
                f"is {show(value)}, must be one word",
                "give the name as the scheduler knows it",
            )


def _environment(environment: Mapping[str, str]) -> Iterator[Problem]:
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            yield (
                "environment",
                f"has {show(name)}, which is no name of a variable",
                "names are of letters, digits and _, and do not begin with a digit",
            )
        if "\0" in value:
            yield "environment", f"has a NUL character in {name}", "remove it"
        if looks_secret(name, value):
            yield _secret("environment", name)


def _setup(lines: list[str]) -> Iterator[Problem]:
    for line in lines:
        if any(not (c.isprintable() or c in "\n\t") for c in line):
            yield "setup", f"has {show(line)}, with a character that bash cannot take", "remove it"
        yield from _assigned_secrets("setup", line)


def _directive(text: str, options: Mapping[tuple[str, ...], str]) -> Iterator[Problem]:
    if not text.startswith("-") or not text.isprintable():
        yield (
            "directives",
            f"has {show(text)}, must be options of the scheduler",
            "one option per item, such as --exclusive, without #SBATCH or #BSUB",
        )
        return
    for names, instead in options.items():
        if any(_is_option(text, name) for name in names):
            yield "directives", f"has {show(text)}, which hpcdist sets itself", f"use {instead}"
    yield from _assigned_secrets("directives", text)


def _is_option(text: str, name: str) -> bool:
    """Whether a directive is this option: --mem=4G, --mem 4G, -N2; not --mem-per-cpu, nor -gpu."""
    word = re.split(r"[\s=]", text, maxsplit=1)[0]
    if word == name:
        return True
    return len(name) == 2 and re.fullmatch(re.escape(name) + r"\d+", word) is not None


def _assigned_secrets(key: str, text: str) -> Iterator[Problem]:
    """Values that are computed when the job runs, such as $(cat ~/token), stand nowhere."""
    for name, value in _ASSIGNMENT.findall(text):
        if looks_secret(name, value.strip("\"'")):
            yield _secret(key, name)


def _secret(key: str, name: str) -> Problem:
    return (
        key,
        f"gives {name} a value that looks secret, and would stand in every job's script",
        f"leave {name} out, and export it in the shell that submits",
    )
