"""Reading YAML as the YAML 1.2 core schema says, and strictly.

PyYAML follows YAML 1.1, where 1e-3 is text, `no` is false, 010 is eight and 1:30 is ninety. Here
numbers, booleans and null are what they look like, everything else is text, and what would be lost
without a word is an error: a key that appears twice, a key that is not text, an unknown tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment] # same interface, slower

_TAG = "tag:yaml.org,2002:"
_MAX_DEPTH = 50  # libyaml's composer calls itself per level, and would overrun the C stack


class YamlError(ValueError):
    """Text that is not one strict YAML document; the message says where."""


class _CoreLoader(_Loader):
    """Knows YAML 1.2's plain scalars instead of YAML 1.1's."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's name for its own table
        None: [  # for every first letter
            (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)\Z")),
            (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")),
            (_TAG + "int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")),
            (
                _TAG + "float",
                re.compile(
                    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
                    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
                ),
            ),
        ]
    }


def parse_yaml(text: str) -> Any:
    """The value of one YAML document; None for an empty one."""
    try:
        _check_depth(text)
        node = yaml.compose(text, _CoreLoader)
        return None if node is None else _value(node, ())
    except yaml.MarkedYAMLError as error:
        raise YamlError(_describe(error)) from None
    except yaml.reader.ReaderError as error:
        raise YamlError(
            f"character {error.character!r} at position {error.position} is not allowed"
        ) from None


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, _CoreLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise YamlError(f"it is nested more than {_MAX_DEPTH} levels deep")


def _value(node: yaml.Node, parents: tuple[yaml.Node, ...]) -> Any:
    if any(node is parent for parent in parents):
        raise _error("an anchor holds itself", node)
    if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
        return _mapping(node, (*parents, node))
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return [_value(item, (*parents, node)) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
        try:
            return _SCALARS[node.tag](node.value)
        except (ValueError, KeyError):
            raise _error(f"{node.value!r} is not a value of {node.tag}", node) from None
    raise _error(f"the tag {node.tag} is not known here", node)


def _mapping(node: yaml.MappingNode, parents: tuple[yaml.Node, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _value(key_node, parents)
        if not isinstance(key, str):
            raise _error(f"the key {key!r} is not text", key_node)
        if key in result:
            raise _error(f"the key {key!r} appears twice", key_node)
        result[key] = _value(value_node, parents)
    return result


def _float(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: dict[str, Callable[[str], Any]] = {
    _TAG + "str": str,
    _TAG + "null": lambda _: None,
    _TAG + "bool": lambda text: {"true": True, "false": False}[text.lower()],
    _TAG + "int": lambda text: int(text, 0) if text[:2] in {"0o", "0x"} else int(text),
    _TAG + "float": lambda text: _float(text.lower()),
}


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _describe(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = ", ".join(part for part in (error.context, error.problem) if part)
    return place + (problem or "not YAML")
