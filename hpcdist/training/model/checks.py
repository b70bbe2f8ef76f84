"""Checks of model.name and model.args, which read sources.

Nothing is imported or run: a model may take long to import, or need a GPU. Imports no torch.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.files import read_bytes
from hpcdist.base.text import nearest_first
from hpcdist.job.files import MOST_SOURCE_BYTES
from hpcdist.job.spec import Model

BUILT_IN_CLASSES = {"fashion_cnn": "FashionCNN", "mlp": "MLP"}
"""model.name -> class in hpcdist.training.model.models."""

_REGISTERED = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


@functools.cache
def torchvision_sources() -> dict[str, Path]:
    """Return torchvision's classification models, read from its sources: the file of each."""
    package = find_spec("torchvision")
    if package is None or package.origin is None:
        return {}
    sources = (Path(package.origin).parent / "models").glob("*.py")
    return {
        name: source
        for source in sources
        for name in _REGISTERED.findall(source.read_text("utf-8"))
    }


def is_torchvision(name: str) -> bool:
    return name not in BUILT_IN_CLASSES and not is_own(name)


def check_model_name(name: str) -> None:
    """Raise JobError, with the nearest known names, for a name that no model has."""
    if is_own(name):
        check_own_model(name)
        return
    if name in BUILT_IN_CLASSES or name in torchvision_sources():
        return
    nearest = nearest_first(name, [*BUILT_IN_CLASSES, *sorted(torchvision_sources())])
    raise JobError(
        f"model.name is {name!r}, which is not a known model",
        hint=f"the nearest of {len(nearest)} are: {', '.join(nearest[:_SHOWN])}; a class of your "
        "own is named as package.module:Class",
    )


GIVEN = ("image_shape", "num_classes")
"""Arguments that a model is given where it takes them."""

_SHOWN = 8


def is_own(name: str) -> bool:
    """Return whether model.name means a class of the user's."""
    return ":" in name


def check_own_model(name: str) -> None:
    """Raise JobError where the module is not found from here, or binds no such name."""
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
    file = _source(spec)
    if file is None:
        return
    try:
        tree = ast.parse(read_bytes(file, most_bytes=MOST_SOURCE_BYTES))
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


def _source(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module that was found, where it is written in Python."""
    origin = spec and spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def _find(module: str) -> ModuleSpec | None:
    """Find a module; its parents are not imported, as importlib.util.find_spec would."""
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


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module's top level may define; `*` for an import of unseen names."""
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


_TORCHVISION_GIVEN = {
    "num_classes": "has one output for each class of the data",
    "weights": "starts from freshly drawn weights",
}
"""Argument that all of torchvision's models are made with -> what it is."""


def check_model_args(model: Model) -> None:
    """Raise JobError for an argument that the model does not take, or needs and is not given."""
    name = model.name
    if is_torchvision(name):
        _check_torchvision(model)
        return
    if is_own(name):
        module, _, class_name = name.partition(":")
        source = _source(_find(module))
    else:
        source, class_name = Path(__file__).with_name("models.py"), BUILT_IN_CLASSES[name]
    signature = None if source is None else read_signature(source, class_name)
    if signature is None:
        return
    # A user's class may be given other values than the data have; our own may not.
    names = [taken for taken in signature.names if is_own(name) or taken not in GIVEN]
    unknown = [given for given in model.args if given not in names]
    if unknown and not names:
        raise JobError(
            f"model.args has {unknown[0]}, but {name} takes no arguments", hint="leave it out"
        )
    if unknown:
        raise JobError(
            f"model.args has {unknown[0]}, which {name} does not take",
            hint=f"it takes, the nearest first: {', '.join(nearest_first(unknown[0], names))}",
        )
    missing = [needed for needed in signature.required if needed not in {*GIVEN, *model.args}]
    if missing:
        raise JobError(
            f"model.args has no {missing[0]}, which {name} needs",
            hint=f"add --set model.args.{missing[0]}=VALUE; it needs: {', '.join(missing)}",
        )


def _check_torchvision(model: Model) -> None:
    """Check by the source: these models pass on what they are given to a class of the same file."""
    source = torchvision_sources().get(model.name)
    nodes = [] if source is None else list(ast.walk(ast.parse(source.read_bytes())))
    taken = {node.arg for node in nodes if isinstance(node, ast.arg)}
    for name in model.args:
        if name in _TORCHVISION_GIVEN:
            raise JobError(
                f"model.args has {name}, but {model.name} {_TORCHVISION_GIVEN[name]}",
                hint="leave it out",
            )
        if source is not None and name not in taken:
            raise JobError(
                f"model.args has {name}, which {model.name} does not take",
                hint="leave it out; --set model.args={} leaves out all that the job file has",
            )


_PLAIN_BASES = {"nn.Module", "torch.nn.Module", "Module", "object"}
"""Classes that a model can be derived from without taking more arguments than its __init__ says."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The keyword arguments of a call."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    """Names without a default."""


def read_signature(file: Path, name: str) -> Signature | None:
    """Return the arguments of a call of `name`, defined at the top level of a Python file.

    None where the source does not say it all: *args and **kwargs, decorators, base classes other
    than nn.Module, and names that are bound otherwise or more than once.
    """
    tree = ast.parse(read_bytes(file, most_bytes=MOST_SOURCE_BYTES))
    bound = [node for node in ast.walk(tree) if _may_bind(node, name)]
    if len(bound) != 1 or bound[0] not in tree.body:
        return None
    function = _callable(bound[0])
    if function is None:
        return None
    taken = function.args
    if taken.vararg or taken.kwarg or taken.posonlyargs:
        return None
    names = [argument.arg for argument in taken.args]
    num_needed = len(names) - len(taken.defaults)
    first = 1 if isinstance(bound[0], ast.ClassDef) else 0  # after self
    keywords = zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    return Signature(
        names=(*names[first:], *(argument.arg for argument in taken.kwonlyargs)),
        required=(
            *names[first:num_needed],
            *(argument.arg for argument, default in keywords if default is None),
        ),
    )


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
    """Return the function whose parameters a call has to match."""
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else node
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
        return None
    if not {ast.unparse(base) for base in node.bases} <= _PLAIN_BASES:
        return None
    methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
    constructors = [method for method in methods if method.name in {"__init__", "__new__"}]
    is_plain = [method.name for method in constructors] == ["__init__"]
    return constructors[0] if is_plain and not constructors[0].decorator_list else None
