"""The user's own script, run in every rank as `python script.py args` would run it."""

from __future__ import annotations

import ast
import builtins
import os
import sys
import types
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from hpcdist import record
from hpcdist.rank import RankContext
from hpcdist.spec import JobSpec, ScriptJob

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
"""Packages that can be imported before the fork: importing them starts no thread of their own and
reads nothing of a rank's environment."""

_NEEDS_DYNAMO = ("DistributedDataParallel", "fully_shard", "FullyShardedDataParallel", "optim")
"""Names whose first use imports torch._dynamo, which takes as long as torch itself."""


def check(job: JobSpec) -> None:
    """Nothing: the script was read and compiled when the job was loaded."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a script needs is the script's own business."""


def preload(job: JobSpec) -> list[str]:
    """Heavy modules that the script imports, found without running it."""
    return heavy_imports(_script(job))


def heavy_imports(path: Path, *, first_on_path: Path | None = None) -> list[str]:
    """Heavy modules that a Python file imports, and what their use imports in turn.

    `first_on_path` is where its imports look first; None: in its own folder. Raises OSError,
    SyntaxError or ValueError where the file is no longer what it was.
    """
    source = path.read_bytes()
    folder = path.parent if first_on_path is None else first_on_path
    modules = sorted(
        {
            name
            for name in _imported_names(ast.parse(source))
            if name.partition(".")[0] in PRELOADED_PACKAGES
            and not _shadows(folder, name.partition(".")[0])
        }
    )
    if "torch" in {name.partition(".")[0] for name in modules}:
        modules.append("torch.distributed")
        if any(name.encode() in source for name in _NEEDS_DYNAMO):
            modules.append("torch._dynamo")
    return modules


def run(context: RankContext) -> None:
    """Run the script as `__main__`, with sys.argv and sys.path as python would give them."""
    job = context.job
    assert isinstance(job, ScriptJob)
    path = _script(job)
    set_path(path)
    sys.argv = [str(path), *job.args]
    run_as_main(
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True),
        __file__=str(path),
        __loader__=SourceFileLoader("__main__", str(path)),
        __cached__=None,
    )


def run_as_main(code: types.CodeType, **names: Any) -> None:
    """Run the user's code as the module `__main__`, which has these names beside those of all."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, **names)
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)  # noqa: S102 - it is what the user asked for
    finally:
        record.finish()


def set_path(path: Path) -> None:
    """Put the script's folder where python puts it: first on sys.path, links resolved."""
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))


def _script(job: JobSpec) -> Path:
    assert isinstance(job, ScriptJob)
    return Path(job.script)


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all modules that the source names in import statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _shadows(folder: Path, package: str) -> bool:
    """Whether the script's folder has a module of its own by the package's name."""
    return (folder / f"{package}.py").exists() or (folder / package).is_dir()
