"""Read YAML with the scalars of YAML 1.2, strictly: what would be lost without a word is an error.

A module of its own, which is imported where there is YAML to read.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.reader import ReaderError

from hpcdist.base.errors import JobError

MOST_BYTES = 256_000
"""Size of a file that is read."""
_MAX_DEPTH = 50
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"
_MAX_VALUES = 10_000
"""Keys and values in a file, also those that aliases repeat, which make exponentially many of a few
lines; a second's work. A thousand letters count as a value."""
_TAG = "tag:yaml.org,2002:"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have come without libyaml


class YamlError(ValueError):
    """Text that is not one strict YAML document; the message says where."""


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
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
for _name, _pattern, _first in (
    ("null", "~|null|Null|NULL|", "~nN"),
    ("merge", "<<", "<"),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), [*_first, ""])


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document; None for an empty one."""
    try:
        _check_size(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes plain values only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if "nesting depth" in problem:  # libyaml has a limit of its own since 0.2.6
            place, problem = "", _TOO_DEEP
        # It is seen in the line after `epochs 3`.
        before = text.splitlines()[mark.line - 1 : mark.line] if mark else []
        if mark and before and (found := re.fullmatch(r"\s*([\w.]+) +[^\s:#][^:#]*", before[0])):
            place, problem = f"line {mark.line}: ", f"there is no colon after {found[1]}"
        raise YamlError(place + (problem or "not YAML")) from None
    except ReaderError as error:
        raise YamlError(
            f"character {chr(error.character)!r} at position {error.position} is not allowed"
        ) from None
    except (yaml.YAMLError, ValueError, KeyError) as error:  # KeyError: `!!bool maybe`
        raise YamlError(str(error)) from None


def _check_size(text: str) -> None:
    """Raise YamlError for text that is nested too deep, where libyaml would exhaust the C stack, or
    that has too many values, each counted as often as aliases repeat it."""
    sizes: dict[str | None, int] = {}
    open_: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if len(open_) > _MAX_DEPTH + 1:
                raise YamlError(_TOO_DEEP)
            continue
        if isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor, _MAX_VALUES)  # it may hold itself
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1 + len(event.value) // 1_000
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
        else:
            continue
        sizes[anchor] = size
        around, before = open_[-1]
        open_[-1] = around, before + size
        if before + size > _MAX_VALUES:
            raise YamlError(
                f"it has more than {_MAX_VALUES:,} keys and values, with those that aliases repeat"
            )


def parse_keys(content: bytes, shown: str, *, hint: str) -> dict[str, Any] | None:
    """Return the keys of a YAML file with their values; None for an empty one. `shown` is what
    messages call the file, `hint` says which keys it has. Raises JobError."""
    try:
        values = parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise JobError(
            f"{shown} is not UTF-8 text: byte {error.start} is 0x{content[error.start]:02x}",
            hint="save the file as UTF-8",
        ) from None
    except YamlError as error:
        hint = "check the indentation and the quotes there"
        raise JobError(f"{shown}: not valid YAML: {error}", hint=hint) from None
    if values is not None and not isinstance(values, dict):
        kind = type(values).__name__
        raise JobError(f"{shown}: the file holds a {kind}, must be keys with values", hint=hint)
    return values
