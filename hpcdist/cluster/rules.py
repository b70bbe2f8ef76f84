"""Check what a profile's types do not say: names and lines that can stand in a script, and no
secrets.

All of a profile stands in the job's script and in the run directory, which others can often read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdist.base.errors import ProfileError
from hpcdist.base.secrets import holds_secret, looks_secret
from hpcdist.cluster.channels import parse_channel
from hpcdist.cluster.host import HOST_HINT, why_no_host
from hpcdist.job.check import show

Origin = Callable[[str], str]
"""Key -> what messages call the place that its value came from."""
Problem = tuple[str, str, str]
"""The key, what is wrong with it, and what to do."""

_WORDS = ("partition", "account", "qos", "gpu_type", "interface")
_LINES = (*_WORDS, "constraint", "python")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"""(?:^|[\s;&,=])([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s;&,]*)""")


def check_rules(values: Mapping[str, Any], origin: Origin) -> None:
    """Raise ProfileError for the first value that cannot stand in a script."""
    for key, problem, hint in _problems(values):
        raise ProfileError(f"{origin(key.partition('.')[0])}: {key} {problem}", hint=hint)


def _problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for key in _LINES:
        if (value := values.get(key)) is None:
            continue
        if not value.strip() or not value.isprintable():
            yield key, f"is {show(value)}, must be one line of text", f"leave {key} out for none"
        elif key in _WORDS and (" " in value or value.startswith("-")):
            hint = "give the name as the scheduler knows it"
            yield key, f"is {show(value)}, must be one word", hint
    for name, value in values.get("environment", {}).items():
        if not _NAME.fullmatch(name):
            hint = "names consist of letters, digits and _, and do not begin with a digit"
            yield "environment", f"has {show(name)}, which is not the name of a variable", hint
        if "\0" in value:
            yield "environment", f"has a NUL character in {name}", "remove it"
    if (host := values.get("host")) is not None and (problem := why_no_host(host)):
        yield "host", problem, HOST_HINT
    yield from _lines(values)
    yield from _secrets(values)


def _lines(values: Mapping[str, Any]) -> Iterator[Problem]:
    for channel in values.get("notify", []):
        try:
            parse_channel(channel)
        except ValueError as error:
            problem, hint = error.args
            yield "notify", problem, hint
    for line in values.get("setup", []):
        if any(not (c.isprintable() or c in "\n\t") for c in line):
            yield "setup", f"has {show(line)}, with a character that bash cannot take", "remove it"
    for text in values.get("directives", []):
        if not text.startswith("-") or not text.isprintable():
            hint = "one option per item, such as --exclusive, and nothing before it"
            yield "directives", f"has {show(text)}, must be options of the scheduler", hint


def _secrets(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the secrets of a profile; what is computed when the job runs, $(cat ~/token), is
    none."""
    for key, value in values.items():
        texts = list(_texts(value))
        given = [pair for text in texts for pair in _ASSIGNMENT.findall(text)]
        if key == "environment":
            given = list(value.items())
        for name, text in given:
            if looks_secret(name, text.strip("\"'")):
                problem = f"gives {name} a value that looks secret, and would appear in every job's"
                hint = f"leave {name} out, and export it in the shell that submits"
                yield key, f"{problem} script", hint
        if any(holds_secret(text) or (key == "setup" and looks_secret("", text)) for text in texts):
            problem = "holds a value that looks secret, and would appear in every job's script"
            hint = "leave it out, and export it in the shell that submits"
            yield key, problem, f"{hint}, or read it from a private file"


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a value of a profile."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)
