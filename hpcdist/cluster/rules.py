"""Check what a profile's types do not say: names and lines that can stand in a script, and no
secrets.

All of a profile stands in the job's script and in the run directory, which others can often read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdist.base.errors import ProfileError
from hpcdist.base.secrets import looks_secret
from hpcdist.base.text import nearest
from hpcdist.cluster.profile import LSF_OPTIONS
from hpcdist.cluster.requirement import (
    has_stray_brace,
    parse_requirement,
    placeholders,
    requirement_of,
)
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
    scheduler = values.get("scheduler", "auto")
    for directive in values.get("directives", []):
        yield from _directive(directive, _OWN_OPTIONS.get(scheduler, {}))
        if scheduler in _FURTHER_PROBLEMS:
            yield from _FURTHER_PROBLEMS[scheduler](directive)


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
    """Return True if a directive is this option: --mem=4G, --mem 4G, -N2; not --mem-per-cpu."""
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


Problem = tuple[str, str, str]
"""The key, what is wrong with it, and what to do."""

KNOWN_OPTIONS = (*LSF_OPTIONS, "-ti")
"""Options that lsf.options may list: hpcdist knows how to send them."""

_PLACES = {
    "gpu": ("gpus",),
    "gpu_rusage": ("gpus",),
    "launcher": ("host", "command"),
}
"""Key of the section -> what may stand in braces there."""

LSF_KEYS = {
    ("-q",): "the key partition",
    ("-P",): "the key account",
    ("-gpu",): "the keys gpu_request, gpu_type and lsf.gpu",
    ("-W",): "the key time_limit_min",
    ("-n",): "the options --nodes and --gpus, or resources in the job",
    ("-nnodes",): "the option --nodes, or resources.nodes in the job",
    ("-ti",): "lsf.options, where it is to be listed",
    ("-J",): "name in the job",
    ("-r", "-rn", "-Q"): "nothing: hpcdist restarts its runs",
    ("-o", "-oo", "-e", "-eo"): "nothing: the output is in the run directory",
    ("-w",): "nothing: hpcdist sets it where it is needed",
    ("-K", "-I", "-Ip", "-Is", "-IS", "-ISp", "-ISs", "-IX"): "the option --wait",
    ("-Zs", "-i", "-is", "-pack", "-json", "-yaml", "-jsdl", "-jsdl_strict"): (
        "nothing: bsub reads the script from hpcdist"
    ),
}
"""Options of bsub that hpcdist sets itself, or that contradict it -> what to use instead."""


def lsf_problems(section: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the mistakes in the section, whose values have the right types."""
    yield from _options(section.get("options", []))
    for key, places in _PLACES.items():
        if (text := section.get(key)) is not None:
            yield from _template(f"lsf.{key}", text, places)
    if section.get("gpu") is not None and section.get("gpu_rusage") is not None:
        yield (
            "lsf.gpu_rusage",
            f"is {show(section['gpu_rusage'])} beside lsf.gpu {show(section['gpu'])}",
            "LSF takes one of the two: leave the other out",
        )
    yield from _launcher(section)


def requirement_problems(directive: str) -> Iterator[Problem]:
    """Yield the mistakes in a directive that is -R: it must go together with hpcdist's own."""
    try:
        text = requirement_of(directive)
        sections = {} if text is None else parse_requirement(text)
    except ValueError as error:
        yield (
            "directives",
            f"has {show(directive)}: {error}",
            "hpcdist sends one -R with its own sections and these, so they must be plain",
        )
        return
    if "span" in sections:
        yield (
            "directives",
            f"has {show(directive)}, with a span that hpcdist sets itself",
            "use the options --nodes and --gpus, or resources in the job",
        )


def _options(options: list[str]) -> Iterator[Problem]:
    for option in options:
        if option in KNOWN_OPTIONS:
            continue
        near = nearest(option, KNOWN_OPTIONS)
        listed = f"hpcdist knows to send {' '.join(KNOWN_OPTIONS)}; others stand in directives"
        yield (
            "lsf.options",
            f"has {show(option)}, which hpcdist never sends",
            f"did you mean {near}? {listed}" if near else listed,
        )


def _template(key: str, text: str, places: tuple[str, ...]) -> Iterator[Problem]:
    shown_places = " and ".join(f"{{{name}}}" for name in places)
    if not text.strip() or not text.isprintable():
        yield key, f"is {show(text)}, must be one line of text", f"leave {key} out for its default"
        return
    for name in placeholders(text):
        if name not in places:
            yield key, f"is {show(text)}, with {{{name}}}", f"what is filled in is {shown_places}"
    if has_stray_brace(text):
        yield key, f"is {show(text)}, with a brace that has no other", f"write {shown_places}"
    if key != "lsf.launcher" and ('"' in text or "\\" in text):
        yield key, f"is {show(text)}, which stands in quotes in the script", 'remove " and \\'


def _launcher(section: Mapping[str, Any]) -> Iterator[Problem]:
    launcher = section.get("launcher")
    for place in ("command", "host"):
        if launcher is not None and place not in placeholders(launcher):
            yield (
                "lsf.launcher",
                f"is {show(launcher)}, without {{{place}}}",
                f"write {{{place}}} where the {place} goes, as in: blaunch -z {{host}} {{command}}",
            )


_OWN_OPTIONS = {"auto": _SLURM_KEYS, "slurm": _SLURM_KEYS, "local": _SLURM_KEYS, "lsf": LSF_KEYS}
"""Scheduler of a profile -> its options that are no directives; of others, any may be."""
_FURTHER_PROBLEMS = {"lsf": requirement_problems}
"""Scheduler of a profile -> what else may be wrong with a directive."""
