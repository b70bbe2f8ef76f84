"""Read YAML with the scalars of YAML 1.2, strictly: what would be lost without a word is an error.

A key that appears twice or is not text is an error, and so is a tag: all values are plain. A module
of its own, which is imported where there is YAML to read.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.reader import ReaderError

from hpcdist.base.errors import JobError

_TAG = "tag:yaml.org,2002:"
_MAX_DEPTH = 50
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"
_MAX_VALUES = 10_000
"""Keys and values in a file, also those that aliases repeat, which make exponentially many of a few
lines; a second's work."""
_COUNTED_LETTERS = 1_000
"""So much text counts as a value."""
_TOO_MANY = f"it has more than {_MAX_VALUES:,} keys and values, with those that aliases repeat"
MOST_BYTES = 256_000
"""Size of a file that is read."""


class YamlError(ValueError):
    """Text that is not one strict YAML document; the message says where."""


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have come without libyaml


class _Loader(_Base):  # type: ignore[misc] # it is one of two
    """Makes plain values only, with the scalars of YAML 1.2's core schema (yaml.org/spec/1.2.2,
    10.3.2): 1e-3 is a number, and `no`, 1_000, 0b1, dates and `=` are text. `<<` merges, as many
    files have it."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        _TAG + name: SafeConstructor.yaml_constructors[_TAG + name]
        for name in ("null", "bool", "float", "str", "seq", "map")
    }

    def construct_mapping(self, node: Any, **deep: bool) -> dict[str, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = None if isinstance(key, str) else f"the key {key!r} is not text"
            problem = (
                f"the key {key!r} appears twice" if problem is None and key in seen else problem
            )
            if problem is not None:
                raise ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        values: dict[Any, Any] = SafeConstructor.construct_mapping(self, node, **deep)
        return values

    def flatten_mapping(self, node: Any) -> None:
        """Merge one mapping at most: lists of them grow exponentially by a few lines."""
        merged = [value for key, value in node.value if key.tag == _TAG + "merge"]
        if len(merged) > 1 or not all(isinstance(value, yaml.MappingNode) for value in merged):
            raise ConstructorError(None, None, "`<<` merges one mapping", node.start_mark)
        SafeConstructor.flatten_mapping(self, node)

    def construct_int(self, node: Any) -> int:
        is_based = node.value.startswith(("0x", "0o"))
        return int(node.value, 0 if is_based else 10)

    def refuse_tag(self, node: Any) -> Any:
        problem = f"the tag {node.tag} is not known here"
        raise ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor(_TAG + "int", _Loader.construct_int)
_Loader.add_constructor(_TAG + "merge", SafeConstructor.construct_yaml_str)
_Loader.add_constructor(None, _Loader.refuse_tag)
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
        _check_depth(text)
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - it makes plain values only
        _count(value, 0, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(place + (problem or "not YAML")) from None
    except ReaderError as error:
        raise YamlError(
            f"character {chr(error.character)!r} at position {error.position} is not allowed"
        ) from None
    except RecursionError:
        raise YamlError(_TOO_DEEP) from None
    except (yaml.YAMLError, ValueError, KeyError) as error:  # KeyError: `!!bool maybe`
        raise YamlError(str(error)) from None
    return value


def _check_depth(text: str) -> None:
    """Raise YamlError for text that is nested too deep: libyaml would exhaust the C stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        is_start = isinstance(event, yaml.CollectionStartEvent)
        depth += is_start - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise YamlError(_TOO_DEEP)


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
        raise JobError(
            f"{shown}: not valid YAML: {error}", hint="check the indentation and the quotes there"
        ) from None
    if values is not None and not isinstance(values, dict):
        kind = type(values).__name__
        raise JobError(f"{shown}: the file holds a {kind}, must be keys with values", hint=hint)
    return values


def _count(value: Any, number: int, parents: tuple[Any, ...]) -> int:
    """Return the keys and values in a value, as often as aliases repeat them, and `number`."""
    if any(value is parent for parent in parents):
        raise YamlError("an anchor holds itself")
    if len(parents) > _MAX_DEPTH:
        raise YamlError(_TOO_DEEP)
    number += 2 if parents and isinstance(parents[-1], dict) else 1
    if isinstance(value, str):  # long text may be repeated, too
        number += len(value) // _COUNTED_LETTERS
    if number > _MAX_VALUES:
        raise YamlError(_TOO_MANY)
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            number = _count(item, number, (*parents, value))
    return number
