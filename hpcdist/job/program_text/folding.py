"""What an expression of a program is worth, where its parts are known: constants, paths, texts.

Nothing here has an effect, and nothing of the user's is called.
"""

from __future__ import annotations

import ast
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()
"""The value of what the text does not tell."""


@dataclass(frozen=True)
class External:
    """A name of the standard library, of an installed package, or a builtin one."""

    name: str
    """Dotted, from the module on."""


ENVIRON = External("os.environ")

_PLAIN = (str, bytes, int, float, type(None), Path)
_MOST_LETTERS = 100_000

_CONSTANTS: Mapping[str, Any] = {
    "os.name": os.name,
    "os.pathsep": os.pathsep,
    "os.sep": os.sep,
    "sys.platform": sys.platform,
    "sys.version_info": tuple(sys.version_info),
    "typing.TYPE_CHECKING": False,
    "typing_extensions.TYPE_CHECKING": False,
}
_CALLS: Mapping[str, Callable[..., Any]] = {
    **{f"builtins.{kind.__name__}": kind for kind in (bool, dict, float, int, list, str, tuple)},
    **{f"builtins.{one.__name__}": one for one in (enumerate, len, max, min, sorted, zip)},
    **{
        f"os.path.{name}": getattr(os.path, name)
        for name in (
            *("abspath", "basename", "dirname", "expanduser", "join", "normpath", "realpath"),
        )
    },
    "os.fspath": os.fspath,
    "os.getcwd": os.getcwd,
    "pathlib.Path": Path,
    "pathlib.PurePath": Path,
    "pathlib.Path.cwd": Path.cwd,
    "pathlib.Path.home": Path.home,
}
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        (
            *("endswith", "format", "join", "lower", "lstrip", "partition", "replace", "rstrip"),
            *("rpartition", "split", "startswith", "strip", "upper", "zfill"),
        )
    ),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    Path: frozenset(
        (
            *("absolute", "as_posix", "expanduser", "joinpath", "resolve", "with_name"),
            "with_suffix",
        )
    ),
}
_PATH_PARTS = frozenset(("name", "parent", "parents", "stem", "suffix"))
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitOr: operator.or_,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def is_known(value: Any) -> bool:
    """Whether the value is worked out, with all that it holds."""
    if isinstance(value, dict):
        return all(is_known(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return all(map(is_known, value))
    return isinstance(value, _PLAIN)


def spoil(value: Any) -> None:
    """A list or dict was changed, or given to what may change it: nobody knows it any more."""
    if isinstance(value, dict):
        value.clear()
        value[UNKNOWN] = UNKNOWN
    elif isinstance(value, list):
        value[:] = [UNKNOWN]


def depends_on_folder(name: str, args: Sequence[Any]) -> bool:
    """Whether a call gives something else after os.chdir."""
    return name.rpartition(".")[2] in {
        "abspath",
        "absolute",
        "cwd",
        "getcwd",
        "realpath",
        "resolve",
    } and not (args and is_known(args[0]) and os.path.isabs(str(args[0])))


def combine(kind: type[ast.AST], left: Any, right: Any) -> Any:
    """The value of `left <operator> right`."""
    if not (kind in _OPERATORS and is_known(left) and is_known(right)):
        return UNKNOWN
    if kind is ast.Mult and not (isinstance(left, int) and isinstance(right, int)):
        return UNKNOWN
    return _tried(_OPERATORS[kind], left, right)


def attribute(value: Any, name: str) -> Any:
    """The value of `value.name`."""
    if isinstance(value, External):
        dotted = f"{value.name}.{name}"
        return _CONSTANTS.get(dotted, External(dotted))
    if isinstance(value, Path) and name in _PATH_PARTS:
        return tuple(value.parents) if name == "parents" else getattr(value, name)
    return UNKNOWN


def constant(name: str) -> Any:
    """The value of an external name: what it is worth, or the name itself."""
    return _CONSTANTS.get(name, External(name))


def item(value: Any, key: Any) -> Any:
    """The value of `value[key]`."""
    if isinstance(value, dict | list | tuple | str) and is_known(key):
        return _tried(operator.getitem, value, key)
    return UNKNOWN


def text(value: Any, conversion: int, spec: Any) -> Any:
    """A part of an f-string."""
    if not (is_known(value) and isinstance(spec, str)):
        return UNKNOWN
    converts: Mapping[int, Callable[[object], str]] = {115: str, 114: repr, 97: ascii}
    convert = converts.get(conversion)
    return _tried(format, value if convert is None else convert(value), spec)


def call(name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The value of a call of an external name."""
    called = _CALLS.get(name)
    if called is None or not is_known(list(args)) or (keywords and called is not dict):
        return UNKNOWN
    value = _tried(called, *args, **keywords)
    # What can be gone through only once, or changes by being used, is no value.
    return list(value) if isinstance(value, enumerate | zip) else value


def call_method(value: Any, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The value of a call of a method of a known value."""
    for kind, names in _METHODS.items():
        if isinstance(value, kind) and name in names and is_known([*args, *keywords.values()]):
            result = _tried(getattr(value, name), *args, **keywords)
            return list(result) if kind is dict and name in {"items", "keys", "values"} else result
    if not any(isinstance(value, kind) and name in names for kind, names in _METHODS.items()):
        spoil(value)
    return UNKNOWN


def _tried(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """What a function of the standard library gives; UNKNOWN where it fails, as the program would
    at this place, or gives something endless."""
    try:
        value = function(*args, **keywords)
    except Exception:  # noqa: BLE001 - whatever the user's values bring about
        return UNKNOWN
    return UNKNOWN if isinstance(value, str) and len(value) > _MOST_LETTERS else value
