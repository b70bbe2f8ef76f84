"""Check what a profile's types do not say: names and lines that can stand in a script, and no
secrets.

All of a profile stands in the job's script and in the run directory, which others can often read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import ProfileError
from hpcdist.base.secrets import holds_secret, looks_secret
from hpcdist.base.text import nearest
from hpcdist.cluster.channels import parse_channel
from hpcdist.cluster.host import HOST_HINT, why_no_host
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
Problem = tuple[str, str, str]
"""The key, what is wrong with it, and what to do."""

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
_LSF_KEYS = {
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
_PBS_KEYS = {
    ("-q",): "the key partition",
    ("-A",): "the key account",
    ("-l select", "-l nodes", "-l ncpus", "-l mem", "-l ngpus", "-l place"): (
        "the options --nodes and --gpus, or resources in the job; what else a node must have is "
        "the key constraint"
    ),
    ("-l walltime",): "the key time_limit_min",
    ("-N",): "name in the job",
    ("-r",): "nothing: hpcdist restarts its runs",
    ("-o", "-e", "-j", "-k"): "nothing: the output is in the run directory",
    ("-J", "-W depend"): "nothing: hpcdist sets it where it is needed",
    ("-I", "-X", "-W block"): "the option --wait",
    ("-v", "-V", "-S", "-C"): "the key environment; hpcdist brings the submission's environment",
}
_OWN_OPTIONS = {
    **dict.fromkeys(("auto", "slurm", "local"), _SLURM_KEYS),
    "lsf": _LSF_KEYS,
    "pbs": _PBS_KEYS,
}
"""Scheduler of a profile -> options that hpcdist sets itself, or that contradict it -> what to use
instead of a directive. Of other schedulers, any may be directives."""

_KNOWN_OPTIONS = (*LSF_OPTIONS, "-ti", "-N", "-u")
"""Options that lsf.options may list: hpcdist knows how to send them."""
_PLACES = {"gpu": ("gpus",), "gpu_rusage": ("gpus",), "launcher": ("host", "command")}
"""Key of the section lsf -> what may stand in braces there."""


def check_rules(values: Mapping[str, Any], origin: Origin) -> None:
    """Raise ProfileError for the first value that cannot stand in a script."""
    for key, problem, hint in _problems(values):
        raise ProfileError(f"{origin(key.partition('.')[0])}: {key} {problem}", hint=hint)


def _problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for key in _LINES:
        if (value := values.get(key)) is not None:
            yield from _line_problems(key, value)
    for name, value in values.get("environment", {}).items():
        if not _NAME.fullmatch(name):
            yield (
                "environment",
                f"has {show(name)}, which is not the name of a variable",
                "names consist of letters, digits and _, and do not begin with a digit",
            )
        if "\0" in value:
            yield "environment", f"has a NUL character in {name}", "remove it"
        if looks_secret(name, value):
            yield _secret("environment", name)
    if (host := values.get("host")) is not None and (problem := why_no_host(host)):
        yield "host", problem, HOST_HINT
    if host is not None and (scheduler := values.get("scheduler")) in ("local", "azure"):
        yield "host", f"stands beside scheduler {scheduler}, which needs none", "leave one out"
    yield from _channel_problems(values.get("notify", []))
    yield from _setup_problems(values.get("setup", []))
    yield from _lsf_problems(values.get("lsf", {}))
    yield from _azure_problems(values.get("azure", {}))
    for directive in values.get("directives", []):
        yield from _directive_problems(directive, values.get("scheduler", "auto"))
    yield from (
        _held(key) for key, value in values.items() if any(map(holds_secret, _texts(value)))
    )


def _channel_problems(channels: Sequence[str]) -> Iterator[Problem]:
    for channel in channels:
        try:
            parse_channel(channel)
        except ValueError as error:
            problem, hint = error.args
            yield "notify", problem, hint


def _setup_problems(lines: Sequence[str]) -> Iterator[Problem]:
    for line in lines:
        if any(not (c.isprintable() or c in "\n\t") for c in line):
            yield "setup", f"has {show(line)}, with a character that bash cannot take", "remove it"
        yield from _assigned_secrets("setup", line)
        if looks_secret("", line):
            yield _held("setup")


def _line_problems(key: str, value: str) -> Iterator[Problem]:
    if not value.strip() or not value.isprintable():
        yield key, f"is {show(value)}, must be one line of text", f"leave {key} out for none"
    elif key in _WORDS and (" " in value or value.startswith("-")):
        hint = "give the name as the scheduler knows it"
        yield key, f"is {show(value)}, must be one word", hint


def _assigned_secrets(key: str, text: str) -> Iterator[Problem]:
    """Yield the secrets of a line; what is computed when the job runs, $(cat ~/token), is none."""
    for name, value in _ASSIGNMENT.findall(text):
        if looks_secret(name, value.strip("\"'")):
            yield _secret(key, name)


def _secret(key: str, name: str) -> Problem:
    return (
        key,
        f"gives {name} a value that looks secret, and would appear in every job's script",
        f"leave {name} out, and export it in the shell that submits",
    )


def _held(key: str) -> Problem:
    return (
        key,
        "holds a value that looks secret, and would appear in every job's script",
        "leave it out, and export it in the shell that submits, or read it from a private file",
    )


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a value of a profile."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _directive_problems(text: str, scheduler: str) -> Iterator[Problem]:
    if not text.startswith("-") or not text.isprintable():
        yield (
            "directives",
            f"has {show(text)}, must be options of the scheduler",
            "one option per item, such as --exclusive, without #SBATCH, #BSUB or #PBS",
        )
        return
    # --mem=4G and --mem 4G are --mem, -N2 is -N; --mem-per-cpu is not --mem.
    option = re.split(r"[\s=]", text, maxsplit=1)[0]
    short = option[:2] if option[2:].isdecimal() else option
    spaced = re.sub(r"^(-\w)\s*(\w*).*", r"\1 \2", text)  # -l walltime
    for names, instead in _OWN_OPTIONS.get(scheduler, {}).items():
        if {option, short, spaced}.intersection(names):
            yield "directives", f"has {show(text)}, which hpcdist sets itself", f"use {instead}"
    yield from _assigned_secrets("directives", text)
    if scheduler == "lsf":
        yield from _requirement_problems(text)


def _requirement_problems(directive: str) -> Iterator[Problem]:
    """Yield the mistakes in a directive that is -R: it must go together with hpcdist's own."""
    try:
        sections = parse_requirement(requirement_of(directive) or "")
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


def _lsf_problems(section: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the mistakes in the section lsf, whose values have the right types."""
    for option in section.get("options", []):
        if option not in _KNOWN_OPTIONS:
            near = nearest(option, _KNOWN_OPTIONS)
            listed = f"hpcdist can send {' '.join(_KNOWN_OPTIONS)}; put others into directives"
            yield (
                "lsf.options",
                f"has {show(option)}, which hpcdist never sends",
                f"did you mean {near}? {listed}" if near else listed,
            )
    for key in _PLACES:
        if (text := section.get(key)) is not None:
            yield from _template_problems(key, text)
    gpu, gpu_rusage = section.get("gpu"), section.get("gpu_rusage")
    if gpu is not None and gpu_rusage is not None:
        yield (
            "lsf.gpu_rusage",
            f"is {show(gpu_rusage)} beside lsf.gpu {show(gpu)}",
            "LSF takes one of the two: leave the other out",
        )


def _template_problems(name: str, text: str) -> Iterator[Problem]:
    key, places, found = f"lsf.{name}", _PLACES[name], placeholders(text)
    shown_places = " and ".join(f"{{{place}}}" for place in places)
    if not text.strip() or not text.isprintable():
        yield key, f"is {show(text)}, must be one line of text", f"leave {key} out for its default"
        return
    for place in found:
        if place not in places:
            yield key, f"is {show(text)}, with {{{place}}}", f"what is filled in is {shown_places}"
    if has_stray_brace(text):
        yield key, f"is {show(text)}, with a brace that has no other", f"write {shown_places}"
    if name != "launcher":
        if '"' in text or "\\" in text:
            yield key, f"is {show(text)}, which stands in quotes in the script", 'remove " and \\'
        return
    for place in reversed(places):
        if place not in found:
            yield (
                key,
                f"is {show(text)}, without {{{place}}}",
                f"write {{{place}}} where the {place} goes, as in: blaunch -z {{host}} {{command}}",
            )
    yield from _assigned_secrets(key, text)


_ENVIRONMENT = (
    r"(?:azureml:)?[A-Za-z0-9][\w.-]*(?::[\w.-]+|@[\w.-]+)"
    r"|azureml://registries/[\w.-]+/environments/[\w.-]+/(?:versions|labels)/[\w.-]+"
)
_AZURE_NAMES = {
    "subscription": (r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "`az account show`"),
    "resource_group": (r"[\w().-]{0,89}[\w()-]", "`az group list`"),
    "workspace": (r"[A-Za-z0-9][A-Za-z0-9_-]{2,32}", "`az ml workspace list`"),
    "compute": (r"[A-Za-z][A-Za-z0-9-]{1,31}", "`az ml compute list`"),
    "environment": (
        _ENVIRONMENT,
        "NAME:VERSION, NAME@latest or azureml://registries/NAME/environments/NAME/versions/VERSION",
    ),
    "image": (r"[a-z0-9][\w.:/@-]*", "as docker pull takes it: pytorch/pytorch:TAG"),
    "datastore": (r"[A-Za-z0-9_]+", "`az ml datastore list`"),
}
"""Key of the section azure -> what it must look like, and what tells it."""


def _azure_problems(section: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the mistakes in the section azure, whose values have the right types."""
    for key, (pattern, where) in _AZURE_NAMES.items():
        value = section.get(key)
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            is_command = where.startswith("`")
            yield (
                f"azure.{key}",
                f"is {show(value)}, which is no {key.replace('_', ' ')} of Azure's",
                f"{where} lists what there is" if is_command else f"write {where}",
            )
    if section.get("environment") is not None and section.get("image") is not None:
        yield (
            "azure.image",
            f"is {show(section['image'])} beside azure.environment {show(section['environment'])}",
            "a job runs in one of the two: leave the other out",
        )
