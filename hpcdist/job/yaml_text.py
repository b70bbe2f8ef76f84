"""Read YAML with the scalars of YAML 1.2, strictly: what would be lost without a word is an error.

A module of its own, which is imported where there is YAML to read.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from hpcdist.base.errors import JobError

MOST_BYTES = 256_000
"""Size of a file that is read."""
_MAX_DEPTH, _MAX_ALIASES = 50, 100
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"
_TAG = "tag:yaml.org,2002:"
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_SCALARS = (
    ("null", "~|null|Null|NULL|", "~nN"),
    ("merge", "<<", "<"),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.0123456789"),
)
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have come without libyaml


class YamlError(ValueError):
    """Text that is not one strict YAML document; the message says where, and a second argument what
    to do, where that is known."""


class _Loader(_Base):  # type: ignore[misc] # it is one of two
    """Makes plain values only, with the scalars of YAML 1.2's core schema (yaml.org/spec/1.2.2,
    10.3.2): 1e-3 is a number, and `no`, 1_000, 0b1, dates and `=` are text. `<<` merges, as many
    files have it. A key that appears twice, or is not text, and any tag are errors."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        None: SafeConstructor.construct_undefined,
        _TAG + "merge": SafeConstructor.construct_yaml_str,
    } | {
        _TAG + name: SafeConstructor.yaml_constructors[_TAG + name]
        for name in ("null", "bool", "float", "str", "seq", "map")
    }

    def construct_mapping(self, node: Any, **deep: bool) -> dict[str, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                problem = "appears twice" if isinstance(key, str) else "is not text"
                message = f"the key {key!r} {problem}"
                raise ConstructorError(None, None, message, key_node.start_mark)
            seen.add(key)
        values: dict[Any, Any] = SafeConstructor.construct_mapping(self, node, **deep)
        return values

    def construct_int(self, node: Any) -> int:
        return int(node.value, 0 if node.value.startswith(("0x", "0o")) else 10)


_Loader.add_constructor(_TAG + "int", _Loader.construct_int)
for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), [*_first, ""])


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document; None for an empty one."""
    try:
        _check_size(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes plain values only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part) or "not YAML"
        if mark is None or "nesting depth" in problem:  # libyaml has a limit of its own
            raise YamlError(_TOO_DEEP if mark else problem) from None
        # What has no colon is seen in its line, or in the next.
        first = max(mark.line, 1)
        for line, found in enumerate(text.splitlines()[first - 1 : mark.line + 1], first):
            if word := re.fullmatch(r"\s*([\w.]+) +([^\s:#][^:#]*)", found):
                hint = f"write {word[1]}: {word[2]}"
                message = f"line {line}: there is no colon after {word[1]}"
                raise YamlError(message, hint) from None
        raise YamlError(f"line {mark.line + 1}, column {mark.column + 1}: {problem}") from None
    except (yaml.YAMLError, ValueError, KeyError) as error:  # KeyError: `!!bool maybe`
        raise YamlError(" ".join(str(error).split())) from None


def _check_size(text: str) -> None:
    """Raise YamlError where libyaml would exhaust the C stack, or a few lines mean gigabytes."""
    anchors: list[str | None] = []  # of the collections that are open
    num_aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchors.pop()
        num_aliases += isinstance(event, yaml.AliasEvent)
        if len(anchors) > _MAX_DEPTH:
            raise YamlError(_TOO_DEEP)
        if isinstance(event, yaml.AliasEvent) and (num_aliases > _MAX_ALIASES or any(anchors)):
            raise YamlError(f"it has over {_MAX_ALIASES} aliases, or one in what has an anchor")


def parse_keys(content: bytes, shown: str, *, hint: str) -> dict[str, Any] | None:
    """Return the keys of a YAML file with their values; None for an empty one. `shown` is what
    messages call the file, `hint` says which keys it has. Raises JobError."""
    try:
        values = parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}"
        raise JobError(f"{shown} {problem}", hint="save the file as UTF-8") from None
    except YamlError as error:
        message, *hints = error.args
        hint = (*hints, "check the indentation and the quotes there")[0]
        raise JobError(f"{shown}: not valid YAML: {message}", hint=hint) from None
    if values is not None and not isinstance(values, dict):
        kind = type(values).__name__
        raise JobError(f"{shown}: the file holds a {kind}, must be keys with values", hint=hint)
    return values
