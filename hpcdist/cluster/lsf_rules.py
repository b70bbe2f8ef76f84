"""What the types of the section `lsf` do not say, and which options of bsub hpcdist sets itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdist.base.nearest import nearest
from hpcdist.cluster.placeholders import has_stray_brace, placeholders
from hpcdist.cluster.profile import LSF_OPTIONS
from hpcdist.cluster.requirement import parse_requirement, requirement_of
from hpcdist.job.check import show

Problem = tuple[str, str, str]
"""The key, what is wrong with it, and what to do."""

KNOWN_OPTIONS = (*LSF_OPTIONS, "-ti", "-nnodes")
"""What lsf.options may list: what hpcdist knows how to send."""

_PLACES = {
    "gpu": ("gpus",),
    "gpu_rusage": ("gpus",),
    "launcher": ("host", "command", "nodes", "cpus", "gpus"),
}
"""Key of the section -> what may stand in braces there."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

LSF_KEYS = {
    ("-q",): "the key partition",
    ("-P",): "the key account",
    ("-gpu",): "the keys gpu_request, gpu_type and lsf.gpu",
    ("-W",): "the key time_limit_min",
    ("-n",): "the options --nodes and --gpus, or resources in the job",
    ("-nnodes", "-ti"): "lsf.options, where it is to be listed",
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
    """What is wrong with the section, whose values have the right types."""
    yield from _options(section.get("options", []))
    for key, known in _PLACES.items():
        if (text := section.get(key)) is not None:
            yield from _template(f"lsf.{key}", text, known)
    if section.get("gpu") is not None and section.get("gpu_rusage") is not None:
        yield (
            "lsf.gpu_rusage",
            f"is {show(section['gpu_rusage'])} beside lsf.gpu {show(section['gpu'])}",
            "LSF takes one of the two: leave the other out",
        )
    yield from _launcher(section)


def requirement_problems(directive: str) -> Iterator[Problem]:
    """What is wrong with a directive that is -R: it must go together with hpcdist's own."""
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


def _template(key: str, text: str, known: tuple[str, ...]) -> Iterator[Problem]:
    places = " and ".join(f"{{{name}}}" for name in known)
    if not text.strip() or not text.isprintable():
        yield key, f"is {show(text)}, must be one line of text", f"leave {key} out for its default"
        return
    for name in placeholders(text):
        if name not in known:
            yield key, f"is {show(text)}, with {{{name}}}", f"what is filled in is {places}"
    if has_stray_brace(text):
        yield key, f"is {show(text)}, with a brace that has no other", f"write {places}"
    if key != "lsf.launcher" and ('"' in text or "\\" in text):
        yield key, f"is {show(text)}, which stands in quotes in the script", 'remove " and \\'


def _launcher(section: Mapping[str, Any]) -> Iterator[Problem]:
    variable = section.get("node_rank_variable")
    if variable is not None and not _NAME.fullmatch(variable):
        yield (
            "lsf.node_rank_variable",
            f"is {show(variable)}, which is no name of a variable",
            "names are of letters, digits and _, and do not begin with a digit",
        )
    launcher = section.get("launcher")
    if launcher is None:
        return
    places = placeholders(launcher)
    if "command" not in places:
        yield (
            "lsf.launcher",
            f"is {show(launcher)}, without {{command}}",
            "write {command} where the command goes, as in: blaunch -z {host} {command}",
        )
    if "host" not in places and variable is None:
        yield (
            "lsf.launcher",
            f"is {show(launcher)}, without {{host}}: its processes must learn which host they are",
            "name the variable that tells in lsf.node_rank_variable, such as JSM_NAMESPACE_RANK",
        )
