"""Heavy packages that a user's code imports, found without running it: they are imported once per
node, before the ranks are forked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

PRELOADED_PACKAGES = frozenset(
    (
        "torch",
        "torchvision",
        "torchmetrics",
        "pytorch_lightning",
        "lightning",
        "numpy",
        "scipy",
        "sklearn",
        "pandas",
        "PIL",
    )
)
"""Packages that can be imported before the fork: importing them starts no thread of their own, and
what they seed or read of a rank's environment meanwhile is renewed in the rank (import_state)."""

_NEEDS_DYNAMO = ("DistributedDataParallel", "fully_shard", "FullyShardedDataParallel", "optim")
"""Names whose first use imports torch._dynamo, which takes as long as torch itself."""
_MOST_FILES = 100
"""Of the user's own: looking further would take longer than it can save."""


class _File(NamedTuple):
    """A file of the user's."""

    source: bytes
    names: list[str]
    """Of the modules that it imports, and of what may be modules."""


def heavy_imports(path: Path, *, first_on_path: Path | None = None) -> list[str]:
    """Heavy modules that a Python file and the user's modules which it imports name, and what their
    use imports in turn.

    `first_on_path` is where its imports look first; None: in its own folder. Raises OSError,
    SyntaxError or ValueError where the file is no longer what it was.
    """
    folder = path.parent if first_on_path is None else first_on_path
    files = list(_reached(path, folder))
    modules = sorted(
        {
            name
            for file in files
            for name in file.names
            if name.partition(".")[0] in PRELOADED_PACKAGES
            and not _shadows(folder, name.partition(".")[0])
        }
    )
    if "torch" in {name.partition(".")[0] for name in modules}:
        modules.append("torch.distributed")
        if any(name.encode() in file.source for name in _NEEDS_DYNAMO for file in files):
            modules.append("torch._dynamo")
    return modules


def _reached(path: Path, folder: Path) -> Iterator[_File]:
    """The file, all of it, and then what the user's own modules below the folder import as they are
    imported themselves."""
    source = path.read_bytes()
    package = _package(folder, path) if path.is_relative_to(folder) else ""
    first = _File(source, list(_imported(ast.walk(ast.parse(source)), package)))
    yield first
    seen = {path}
    waiting = _own_files(folder, first.names)
    while waiting and len(seen) < _MOST_FILES:
        own = waiting.pop()
        if own in seen:
            continue
        seen.add(own)
        try:
            source = own.read_bytes()
            names = list(_imported(_at_import(ast.parse(source)), _package(folder, own)))
        except (OSError, SyntaxError, ValueError):
            continue
        yield _File(source, names)
        waiting += _own_files(folder, names)


def _imported(nodes: Iterator[ast.AST], package: str) -> Iterator[str]:
    """Dotted names of the modules that import statements name; `package` is what relative ones are
    relative to."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
                # `from package import module` looks like any other name of it.
                if base.partition(".")[0] not in PRELOADED_PACKAGES:
                    yield from (f"{base}.{alias.name}" for alias in node.names)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module of a `from` import; empty where that is outside of what is known."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    kept = parents[: len(parents) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept) if all(kept) else ""


def _at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: nothing in functions, nor under `if
    TYPE_CHECKING`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _own_files(folder: Path, names: list[str]) -> list[Path]:
    """Files of the user's modules by these names: each package on the way is imported, too."""
    found = []
    for name in names:
        for dotted in accumulate(name.split("."), "{}/{}".format):
            places = (folder / f"{dotted}.py", folder / dotted / "__init__.py")
            found += [place for place in places if place.is_file()][:1]
    return found


def _package(folder: Path, path: Path) -> str:
    """Dotted name of the package that a file belongs to; empty for none."""
    return ".".join(path.parent.relative_to(folder).parts)


def _shadows(folder: Path, package: str) -> bool:
    """Whether the script's folder has a module of its own by the package's name."""
    return (folder / f"{package}.py").exists() or (folder / package).is_dir()
