"""What a class or function takes, read from its source: nothing is imported or run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

_PLAIN_BASES = {"nn.Module", "torch.nn.Module", "Module", "object"}
"""Classes that a model can be derived from without taking more arguments than its __init__ says."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The keyword arguments of a call."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    """Those without a default."""


def read_signature(file: Path, name: str) -> Signature | None:
    """What a call of `name`, defined at the top level of a Python file, takes.

    None where the source does not say it all: *args and **kwargs, decorators, base classes other
    than nn.Module, and names that are bound otherwise or more than once.
    """
    tree = ast.parse(file.read_bytes())
    bound = [node for node in ast.walk(tree) if _may_bind(node, name)]
    if len(bound) != 1 or bound[0] not in tree.body:
        return None
    function = _callable(bound[0])
    return None if function is None else _signature(function, bound[0])


def read_parameters(file: Path) -> set[str]:
    """Whatever any function or method of a Python file takes by name."""
    return {
        node.arg for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.arg)
    }


def _may_bind(node: ast.AST, name: str) -> bool:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name
        case ast.Name(ctx=ast.Store()):
            return node.id == name
        case ast.alias():
            return name in {node.name, node.asname} or node.name == "*"
    return False


def _callable(node: ast.AST) -> ast.FunctionDef | None:
    """The function whose parameters a call has to match."""
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else node
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
        return None
    if not {ast.unparse(base) for base in node.bases} <= _PLAIN_BASES:
        return None
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    found = [one for one in methods if one.name in {"__init__", "__new__"}]
    if len(found) != 1 or found[0].name != "__init__" or found[0].decorator_list:
        return None
    return found[0]


def _signature(function: ast.FunctionDef, owner: ast.AST) -> Signature | None:
    taken = function.args
    if taken.vararg or taken.kwarg or taken.posonlyargs:
        return None
    positional = [one.arg for one in taken.args][int(isinstance(owner, ast.ClassDef)) :]
    without_default = positional[: len(positional) - len(taken.defaults)]
    keywords = [one.arg for one in taken.kwonlyargs]
    needed = [
        one for one, default in zip(keywords, taken.kw_defaults, strict=True) if default is None
    ]
    return Signature(names=(*positional, *keywords), required=(*without_default, *needed))
