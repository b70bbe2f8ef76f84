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
from hpcdist.base.text import nearest_first
from hpcdist.job.spec import Model

BUILT_IN_CLASSES = {"fashion_cnn": "FashionCNN", "mlp": "MLP"}
"""model.name -> class in hpcdist.training.model.models."""
OWN_MODELS = tuple(BUILT_IN_CLASSES)

_REGISTERED = re.compile(r"^@register_model\(\)\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


@functools.cache
def torchvision_models() -> frozenset[str]:
    """Return names of torchvision's classification models, read from its sources."""
    return frozenset(torchvision_sources())


@functools.cache
def torchvision_sources() -> dict[str, Path]:
    """Return the file that makes each of torchvision's classification models."""
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
    return name not in OWN_MODELS and not is_own(name)


def check_model_name(name: str) -> None:
    """Raise JobError, with the nearest known names, for a name that no model has."""
    if is_own(name):
        check_own_model(name)
        return
    if name in OWN_MODELS or name in torchvision_models():
        return
    nearest = nearest_first(name, [*OWN_MODELS, *sorted(torchvision_models())])
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
    """Return the file of a module that can be found from here, where it is written in Python."""
    spec = _find(module)
    return None if spec is None else _source(spec)


def _source(spec: ModuleSpec) -> Path | None:
    is_python = spec.origin is not None and spec.origin.endswith(".py")
    return Path(spec.origin) if spec.origin is not None and is_python else None


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
    if is_torchvision(model.name):
        _check_torchvision(model)
        return
    own = is_own(model.name)
    signature = _users(model.name) if own else _built_in(model.name)
    if signature is None:
        return
    # A user's class may be given other values than the data have; our own may not.
    names = [name for name in signature.names if own or name not in GIVEN]
    for name in model.args:
        if name not in names:
            raise _unknown(model.name, name, names)
    missing = [name for name in signature.required if name not in {*GIVEN, *model.args}]
    if missing:
        raise JobError(
            f"model.args has no {missing[0]}, which {model.name} needs",
            hint=f"add --set model.args.{missing[0]}=VALUE; it needs: {', '.join(missing)}",
        )


def _unknown(model: str, name: str, names: list[str]) -> JobError:
    if not names:
        return JobError(
            f"model.args has {name}, but {model} takes no arguments", hint="leave it out"
        )
    near = nearest_first(name, names)
    return JobError(
        f"model.args has {name}, which {model} does not take",
        hint=f"it takes, the nearest first: {', '.join(near)}",
    )


def _users(name: str) -> Signature | None:
    module, _, class_name = name.partition(":")
    source = find_source(module)
    return None if source is None else read_signature(source, class_name)


def _check_torchvision(model: Model) -> None:
    """They pass on what they are given, to a class of the same file: which, only running tells."""
    for name, reason in _TORCHVISION_GIVEN.items():
        if name in model.args:
            raise JobError(f"model.args has {name}, but {model.name} {reason}", hint="leave it out")
    source = torchvision_sources().get(model.name)
    taken = set(model.args) if source is None else read_parameters(source)
    for name in model.args:
        if name not in taken:
            raise JobError(
                f"model.args has {name}, which {model.name} does not take",
                hint="leave it out; --set model.args={} leaves out all that the job file has",
            )


def _built_in(name: str) -> Signature | None:
    return read_signature(Path(__file__).with_name("models.py"), BUILT_IN_CLASSES[name])


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
    """Return the function whose parameters a call has to match."""
    if isinstance(node, ast.FunctionDef):
        return None if node.decorator_list else node
    if not isinstance(node, ast.ClassDef) or node.decorator_list or node.keywords:
        return None
    if not {ast.unparse(base) for base in node.bases} <= _PLAIN_BASES:
        return None
    methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
    constructors = [method for method in methods if method.name in {"__init__", "__new__"}]
    if (
        len(constructors) != 1
        or constructors[0].name != "__init__"
        or constructors[0].decorator_list
    ):
        return None
    return constructors[0]


def _signature(function: ast.FunctionDef, owner: ast.AST) -> Signature | None:
    taken = function.args
    if taken.vararg or taken.kwarg or taken.posonlyargs:
        return None
    positional = [argument.arg for argument in taken.args][int(isinstance(owner, ast.ClassDef)) :]
    without_default = positional[: len(positional) - len(taken.defaults)]
    keywords = [argument.arg for argument in taken.kwonlyargs]
    needed = [
        argument
        for argument, default in zip(keywords, taken.kw_defaults, strict=True)
        if default is None
    ]
    return Signature(names=(*positional, *keywords), required=(*without_default, *needed))
