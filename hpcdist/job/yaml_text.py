"""Read YAML 1.2, strictly: what would be lost without a word is an error.

A key that appears twice or is not text is an error, and so is a tag: all values are plain. A module
of its own, which is imported where there is YAML to read.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from hpcdist.base.errors import JobError

_TAG = "tag:yaml.org,2002:"
_PLAIN = ("null", "bool", "str", "seq", "map")
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


class _Composer(Composer):
    """Refuses what is too deep, or too much, before all of it is read."""

    num_nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.num_nodes += 1
        if self.num_nodes > _MAX_VALUES:
            raise YamlError(_TOO_MANY)
        if self.depth > _MAX_DEPTH:
            raise YamlError(_TOO_DEEP)
        return super().compose_node(parent, index)


class _Constructor(SafeConstructor):
    """Makes plain values only."""

    def check_mapping_key(
        self, _node: Any, key_node: Any, mapping: Any, key: Any, _value: Any
    ) -> bool:
        if not isinstance(key, str):
            raise ConstructorError(None, None, f"the key {key!r} is not text", key_node.start_mark)
        if key in mapping:
            raise ConstructorError(
                None, None, f"the key {key!r} appears twice", key_node.start_mark
            )
        return True

    def construct_number(self, node: Any) -> Any:
        """YAML 1.2 has no underscores and no 0b in numbers: that is text."""
        if "_" in node.value or node.value.lstrip("-+").startswith("0b"):
            return node.value
        return SafeConstructor.yaml_constructors[node.tag](self, node)

    def refuse_tag(self, node: Any) -> Any:
        problem = f"the tag {node.tag} is not known here"
        raise ConstructorError(None, None, problem, node.start_mark)


_Constructor.yaml_constructors = {
    **{_TAG + name: SafeConstructor.yaml_constructors[_TAG + name] for name in _PLAIN},
    **dict.fromkeys((_TAG + "int", _TAG + "float"), _Constructor.construct_number),
    # YAML 1.2 has no dates, no `=` and no `<<` either.
    **dict.fromkeys(
        (_TAG + "timestamp", _TAG + "value", _TAG + "merge"),
        SafeConstructor.yaml_constructors[_TAG + "str"],
    ),
    None: _Constructor.refuse_tag,
}


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document; None for an empty one."""
    loader = YAML(typ="safe", pure=True)
    loader.Composer = _Composer
    loader.Constructor = _Constructor
    loader.composer.warn_double_anchors = False
    try:
        value = loader.load(text)
        _count(value, 0, ())
    except MarkedYAMLError as error:
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
    except (YAMLError, ValueError) as error:
        raise YamlError(str(error)) from None
    return value


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
