"""The keys of a job file and of hpcdist.yaml in words: type, default, unit and meaning.

Types and defaults are those of the structs, meanings the docstrings in their source: the pages of
the documentation, `hpcdist explain` and the completion of shells all come from here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
import typing

import msgspec
import msgspec.inspect

from hpcdist.job.check import is_struct, wanted_words
from hpcdist.job.spec import FILE_JOB_TYPES

_DEFAULTS = {"null": "unset", '""': "none", "{}": "none", "[]": "none"}


class DottedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a job file or of a profile, by its whole name."""

    path: str
    """As in --set: train.lr."""
    value: str
    """The values that it takes; `section` has keys below it."""
    default: str
    meaning: str
    workloads: list[str] = []
    """Kinds of jobs that have it, with this type and meaning."""


@functools.cache
def _tree(module: str) -> ast.Module:
    """Return a module's source as a tree; one module has many structs."""
    return ast.parse(inspect.getsource(sys.modules[module]))


@functools.cache
def _meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the keys that a struct has itself, and the line under each, from its source."""
    (node,) = (
        one
        for one in _tree(struct.__module__).body
        if isinstance(one, ast.ClassDef) and one.name == struct.__name__
    )
    found = {}
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            text = getattr(getattr(following, "value", None), "value", "")
            is_text = isinstance(following, ast.Expr) and isinstance(text, str)
            found[ast.unparse(field.target)] = " ".join(text.split()) if is_text else ""
    return found


def keys_of(struct: type[msgspec.Struct]) -> list[DottedKey]:
    """Return the keys that a struct adds to those of its bases."""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    annotations = typing.get_type_hints(struct, include_extras=True)
    keys = []
    for name, own in _meanings(struct).items():
        annotation, default = annotations[name], fields[name].default
        if fields[name].default_factory is not msgspec.NODEFAULT:
            default = fields[name].default_factory()
        bases = (base for base in struct.__mro__ if base.__module__ == struct.__module__)
        meaning = own or next(filter(None, (_meanings(base).get(name) for base in bases)), "")
        value = shown = ""
        if is_struct(annotation):
            value = "section"
            meaning = meaning or " ".join((inspect.getdoc(annotation) or "").split())
        else:
            value = wanted_words(msgspec.inspect.type_info(annotation))
            shown = "required" if default is msgspec.NODEFAULT else json.dumps(default)
            shown = _DEFAULTS.get(shown, shown.strip('"'))
        keys.append(DottedKey(path=name, value=value, default=shown, meaning=meaning))
    return keys


@functools.cache
def job_keys() -> list[DottedKey]:
    """Return every key of every kind of job, with sections by their dotted names; a key that means
    something else in another kind of job is there once for each meaning."""
    found: dict[tuple[str, ...], DottedKey] = {}
    for workload, struct in FILE_JOB_TYPES.items():
        for key in keys_below(struct):
            same = found.setdefault((key.path, key.value, key.default, key.meaning), key)
            same.workloads.append(workload)
    return list(found.values())


def keys_below(struct: type[msgspec.Struct], before: str = "") -> list[DottedKey]:
    """Return the keys of a struct, and those of its sections by their dotted names."""
    own: dict[str, DottedKey] = {}
    for base in reversed(struct.__mro__):
        if base.__module__ == struct.__module__ and is_struct(base):
            own |= {key.path: key for key in keys_of(base)}
    found = []
    for name, key in own.items():
        found.append(msgspec.structs.replace(key, path=f"{before}{name}", workloads=[]))
        if key.value == "section":
            found += keys_below(typing.get_type_hints(struct)[name], f"{before}{name}.")
    return found
