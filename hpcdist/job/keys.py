"""The keys of a job file and of hpcdist.yaml in words: type, default, unit and meaning.

They are read from the source of the structs, whose docstrings are the only text on a key: the pages
of the documentation, `hpcdist explain` and the completion of shells all come from here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.inspect

from hpcdist.job.check import accepts, literals
from hpcdist.job.spec import FILE_JOB_TYPES, Data, Model

_MEANING_AS_IN: dict[str, type[msgspec.Struct]] = {"LoadedData": Data, "TimedModel": Model}
"""Struct -> the struct with the meaning of the keys that have no docstring of their own."""
_TYPES = {
    "Count": "integer, 1 or more",
    "CountOrZero": "integer, 0 or more",
    "Positive": "number above 0",
    "PositiveOrZero": "number, 0 or more",
    "str": "text",
    "bool": "true or false",
    "dict[str, Any]": "mapping",
    "dict[str, str]": "mapping of names to texts",
    "list[str]": "list of texts",
    "tuple[Port, Port]": "[first, last], 1024 to 65535",
    "tuple[Count, Count, Count]": "list of 3 integers, 1 or more",
    "Literal['auto'] | bool": "auto, true or false",
    "str | tuple[str | dict[str, Any], ...]": "text, or a list of texts and mappings",
    "str | tuple[str | dict[str, Any] | tuple[str | dict[str, Any], ...], ...]": "text, or a list "
    "of texts, mappings and such lists",
    "Literal['reduce-overhead', 'max-autotune'] | bool": "true, false, reduce-overhead or "
    "max-autotune",
}
_DEFAULTS = {
    "None": "unset",
    "True": "true",
    "False": "false",
    "''": "none",
    "{}": "none",
    "[]": "none",
}
_UNITS = {
    "_s": "seconds",
    "_min": "minutes",
    "_gb": "GB (10**9 bytes)",
    "shm_gb": "GiB",
    "allreduce.sizes": "bytes",
}
"""End of a key -> its unit; the longest that fits counts."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a struct."""

    name: str
    value: str
    """The values that it takes."""
    default: str
    meaning: str
    is_section: bool


class DottedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a job file, by its whole name."""

    path: str
    """As in --set: train.lr."""
    value: str
    default: str
    meaning: str
    workloads: list[str] = []
    """Kinds of jobs that have it, with this type and meaning."""

    @property
    def unit(self) -> str | None:
        """The unit of the value, which its name says."""
        return unit_of(self.path)


def unit_of(path: str) -> str | None:
    """Return the unit that the name of a key says; None: it has none."""
    ends = [end for end in _UNITS if path.endswith(end)]
    return _UNITS[max(ends, key=len)] if ends else None


@functools.cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module by name, as syntax trees."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def keys_of(struct: type[msgspec.Struct], *, types: Mapping[str, str] | None = None) -> list[Key]:
    """Return the keys that a struct adds to those of its bases; `types` are further types in
    words."""
    other = _MEANING_AS_IN.get(struct.__name__)
    elsewhere = {} if other is None else {key.name: key.meaning for key in keys_of(other)}
    body = _classes(struct.__module__)[struct.__name__].body
    keys = []
    for field, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign):
            continue
        name, annotation = ast.unparse(field.target), ast.unparse(field.annotation)
        default = "required" if field.value is None else ast.unparse(field.value)
        if default.startswith("msgspec.field("):
            default = " ".join(getattr(struct(), name))
        is_section = default == f"{annotation}()"
        key = Key(
            name=name,
            value="section" if is_section else _type(annotation, types or {}),
            default="" if is_section else _default(default),
            meaning=_docstring(following) or elsewhere.get(name, ""),
            is_section=is_section,
        )
        keys.append(key)
    return keys


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _default(text: str) -> str:
    if text.startswith(("(", "tuple(")):  # a tuple: lists in YAML
        values = eval(text, {"range": range, "tuple": tuple})  # noqa: S307 - from our own source
        return f"[{', '.join(map(str, values))}]"
    return _DEFAULTS.get(text, text.strip("'"))


def _type(annotation: str, types: Mapping[str, str]) -> str:
    optional = annotation.endswith(" | None")
    base = annotation.removesuffix(" | None")
    if base in types or base in _TYPES:
        text = types.get(base) or _TYPES[base]
    elif base.startswith("OneOrSeveral["):
        inner = _type(base.removeprefix("OneOrSeveral[").removesuffix("]"), types)
        text = f"{inner}; or a list"
    elif base.startswith("tuple[") and base.endswith(", ...]"):
        text = f"list, each {_type(base.removeprefix('tuple[').removesuffix(', ...]'), types)}"
    elif base.startswith("list[Literal["):
        text = f"list of {_type(base.removeprefix('list[').removesuffix(']'), types)}"
    elif base.startswith("Literal["):
        text = ", ".join(re.findall(r"'([^']*)'", base))
    elif match := re.fullmatch(r"Annotated\[(int|float), Meta\((.*)\)\]", base):
        text = f"{'integer' if match[1] == 'int' else 'number'}, {_bounds(match[2])}"
    else:
        text = base
    return text + (" or null" if optional else "")


def _bounds(meta: str) -> str:
    words = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    parts = [part.split("=") for part in meta.replace(" ", "").split(",")]
    shown = [(name, str(eval(value))) for name, value in parts]  # noqa: S307 - our own source
    return " ".join(words[name].format(value) for name, value in shown)


# The keys with their sections.


@functools.cache
def job_keys(only: str | None = None) -> list[DottedKey]:
    """Return every key of every kind of job, or of `only` one, with sections by their dotted names;
    a key that means something else in another kind of job is there once for each meaning."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    kinds = FILE_JOB_TYPES if only is None else {only: FILE_JOB_TYPES[only]}
    for workload, struct in kinds.items():
        for key in keys_below(struct):
            same = (key.path, key.value, key.default, key.meaning)
            found.setdefault(same, []).append(workload)
    return [
        DottedKey(path=path, value=value, default=default, meaning=meaning, workloads=workloads)
        for (path, value, default, meaning), workloads in found.items()
    ]


def keys_below(
    struct: type[msgspec.Struct], before: str = "", *, types: Mapping[str, str] | None = None
) -> list[DottedKey]:
    """Return the keys of a struct, and those of its sections by their dotted names."""
    own: dict[str, Key] = {}
    for base in reversed(struct.__mro__):
        if base.__module__ == struct.__module__ and issubclass(base, msgspec.Struct):
            own |= {key.name: key for key in keys_of(base, types=types)}
    annotations = typing.get_type_hints(struct)
    found = []
    for key in own.values():
        path, inner = f"{before}{key.name}", annotations[key.name]
        meaning = key.meaning
        if key.is_section:
            meaning = meaning or " ".join((inspect.getdoc(inner) or "").split())
        found.append(DottedKey(path=path, value=key.value, default=key.default, meaning=meaning))
        if key.is_section:
            found += keys_below(inner, f"{path}.", types=types)
    return found


def values_of(annotation: Any) -> list[str]:
    """Return the values that a key lists one by one, as they are typed: true, auto, null."""
    wanted = msgspec.inspect.type_info(annotation)
    types = wanted.types if isinstance(wanted, msgspec.inspect.UnionType) else (wanted,)
    values = [str(value) for value in literals(wanted)]
    if any(isinstance(each, msgspec.inspect.BoolType) for each in types):
        values += ["true", "false"]
    if any(isinstance(each, msgspec.inspect.NoneType) for each in types):
        values.append("null")
    return values


_EXAMPLES = {
    "data.name": "faces",
    "data.root": "~/data",
    "model.name": "resnet18",
    "data.transform": "light",
    "record.goal": "accuracy=97%",
    "container.image": "docker://pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime",
    "container.mounts": "[/scratch]",
    "launch.port_range": "[20000,20100]",
    "checkpoint.resume": "runs/RUN",
}
"""Keys whose values are texts or lists -> a value that makes sense."""


def example_of(path: str, annotation: Any) -> str | None:
    """Return a value that the key takes, other than its default if that can be; None for a section,
    and for a key whose values nobody can guess."""
    default = next(key.default for key in job_keys() if key.path == path)
    if path in _EXAMPLES or default == "required":
        return _EXAMPLES.get(path)
    for value in values_of(annotation):
        if value not in (default, "null", "auto") and path != "workload":
            return value
    try:
        number = float(default) * 2 or 1.0
    except ValueError:
        number = 8.0
    for each in (int(number), number, number / 4):
        if each and accepts(annotation, each):
            return f"{each:g}"
    return None
