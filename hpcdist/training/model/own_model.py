"""A user's own model, as module:Class: found without importing it, and made with what it takes."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first

if TYPE_CHECKING:
    from torch import nn

GIVEN = ("image_shape", "num_classes")
"""Arguments that a model is given where it takes them."""

_SHOWN = 8


def is_own(name: str) -> bool:
    """Whether model.name means a class of the user's."""
    return ":" in name


def check_own_model(name: str) -> None:
    """Raise JobError where the module is not found from here, or binds no such name.

    The module is read, not run: it may take long, or need a GPU.
    """
    module, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), class_name]):
        raise JobError(
            f"model.name is {name!r}, which is not of the form package.module:Class",
            hint="such as model.name=my_models:Net, for the class Net in my_models.py",
        )
    spec = _find(module)
    if spec is None:
        raise JobError(
            f"model.name is {name!r}, but there is no module {module} in {os.getcwd()} or among "
            "the installed packages",
            hint="submit from the folder that holds it, or put that on PYTHONPATH",
        )
    if (source := _source(spec)) is not None:
        _check_class(name, source, class_name)


def find_source(module: str) -> Path | None:
    """The file of a module that can be found from here, where it is written in Python."""
    spec = _find(module)
    return None if spec is None else _source(spec)


def _source(spec: ModuleSpec) -> Path | None:
    is_python = spec.origin is not None and spec.origin.endswith(".py")
    return Path(spec.origin) if spec.origin is not None and is_python else None


def build_own_model(
    name: str, args: dict[str, Any], image_shape: tuple[int, int, int], num_classes: int
) -> nn.Module:
    """An object of the class, with `image_shape` and `num_classes` where its signature has them."""
    from torch import nn

    module, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path[:1]:  # the user's folder, where the check looked first
        sys.path.insert(0, os.getcwd())
    cls = getattr(importlib.import_module(module), class_name)
    known = dict(zip(GIVEN, (image_shape, num_classes), strict=True))
    taken = inspect.signature(cls).parameters
    model = cls(**{key: value for key, value in known.items() if key in taken} | args)
    if not isinstance(model, nn.Module):
        raise JobError(
            f"model.name is {name!r}, which gives a {type(model).__name__}, not a torch.nn.Module",
            hint="name a class derived from torch.nn.Module, or a function that returns one",
        )
    return model


def _find(module: str) -> ModuleSpec | None:
    """Where a module is; parents are not imported, as importlib.util.find_spec would."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _check_class(name: str, file: Path, class_name: str) -> None:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise JobError(
            f"model.name is {name!r}, but {file} cannot be read: {error}",
            hint="correct the file",
        ) from None
    names = list(_bound_names(tree.body))
    if class_name in names or "*" in names or "__getattr__" in names:
        return
    nearest = nearest_first(class_name, sorted({n for n in names if not n.startswith("_")}))
    raise JobError(
        f"model.name is {name!r}, but {file} has no {class_name}",
        hint="it has: " + ", ".join(nearest[:_SHOWN]) if nearest else f"define it in {file.name}",
    )


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """What a module's top level may define; `*` where an import brings names that are not seen."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from _bound_names(getattr(node, field, []))
