"""Heavy packages that a user's program imports: imported once per node, before the fork.

The program's own files are read, never run. Where one sets a variable of the environment that the
packages may read as they are imported, each rank imports them itself, but for those at the top of a
script, above all such lines and all imports of own modules. What installed packages set, or `exec`,
or files in folders that are added to sys.path, is not seen.
"""

from __future__ import annotations

import ast
import os
import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

from hpcdist.base.files import read_bytes
from hpcdist.job.files import MOST_SOURCE_BYTES

PRELOADED_PACKAGES = frozenset(
    (
        *("torch", "torchvision", "torchmetrics", "pytorch_lightning", "lightning"),
        *("numpy", "scipy", "sklearn", "pandas", "PIL"),
    )
)
"""Packages that can be imported before the fork: importing them starts no thread of their own, and
what they seed or read of a rank's environment is renewed in the rank (rank/libraries.py)."""
_NEEDS_DYNAMO = re.compile(b"DistributedDataParallel|fully_shard|FullyShardedDataParallel|optim")
"""Names whose first use imports torch._dynamo, which takes as long as torch itself."""
_NOT_READ = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "NODE_RANK", "ROLE_", "MASTER_", "HPCDIST_"),
    *("PL_TRAINER_", "TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "NCCL_", "GLOO_", "UCX_", "FI_"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_", "WANDB_"),
    *("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONPATH"),
)
"""Beginnings of variables that no heavy package reads as it is imported (torch 2.15,
lightning 2.6)."""
_SETTERS = frozenset(("setdefault", "pop", "update", "clear", "putenv", "unsetenv", "load_dotenv"))
_MOST_FILES, _MOST_BYTES = 300, 2_000_000


class Program(NamedTuple):
    """A user's program: the heavy modules to import before the fork, and its own files."""

    heavy: list[str]
    files: list[Path]


def read_program(path: Path, root: Path | None = None) -> Program:
    """Read the program in a file; its imports look first in `root`, or in its own folder. Raises
    what reading and parsing the file raises."""
    folders = [*dict.fromkeys((root or path.parent, Path.cwd()))]
    heavy: dict[str, None] = {}
    safe: dict[str, None] = {}  # those at the top of the script
    waiting, num_bytes, needs_dynamo, sets_variables = [path], 0, False, False
    for file in waiting:  # it grows
        try:
            source = read_bytes(file, most_bytes=MOST_SOURCE_BYTES)
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            if file is path:
                raise
            continue
        num_bytes += len(source)
        if file is not path and (waiting.index(file) == _MOST_FILES or num_bytes > _MOST_BYTES):
            sets_variables = True  # the others may
            break
        needs_dynamo |= _NEEDS_DYNAMO.search(source) is not None
        packages = (at / "__init__.py" for at in file.parents if folders[0] in at.parents)
        waiting += [package for package in packages if package.is_file() and package not in waiting]
        at_import = {*ast.walk(tree)} if file is path else {*tree.body}
        is_safe = file is path and root is None  # before a module come its packages
        for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
            name = _variable_set_by(node)
            if name is not None and not name.startswith(_NOT_READ):
                sets_variables, is_safe = True, False
            for level, module in _imports(node):
                places = [file.parents[level - 1]] if level else folders
                inner = (f"{module}.{alias.name}" for alias in getattr(node, "names", ()))
                for own in filter(None, (_find(places, one) for one in (module, *inner))):
                    is_safe = False
                    waiting += [own] if own not in waiting else []
                if not level and module.partition(".")[0] in PRELOADED_PACKAGES:
                    heavy |= {module: None} if node in at_import else {}
                    safe |= {module: None} if is_safe and node in tree.body else {}
    if any(_find(folders, name) for name in PRELOADED_PACKAGES):
        return Program([], waiting)  # it may find a module of the user's in its place
    if sets_variables:
        return Program(list(safe), waiting)
    if needs_dynamo and any(name.startswith("torch") for name in heavy):
        heavy["torch._dynamo"] = None
    return Program(list(heavy), waiting)


def files_of(name: str | None) -> list[Path]:
    """Return the own files of what a job names as package.module:Class; none for other names."""
    module, colon, _ = (name or "").partition(":")
    file = _find([Path.cwd()], module) if colon else None
    return read_program(file, Path.cwd()).files if file else []


def _imports(node: ast.AST) -> list[tuple[int, str]]:
    """Return the modules that a statement names, each after its level: 0 unless it is relative."""
    if isinstance(node, ast.Import):
        return [(0, alias.name) for alias in node.names]
    return [(node.level, node.module or "")] if isinstance(node, ast.ImportFrom) else []


def _find(folders: list[Path], name: str) -> Path | None:
    """Return the file of an own module, or of the package that may define the name."""
    parts = name.strip(".").split(".")
    for folder, end in product(folders, range(len(parts), 0, -1)):
        place = folder.joinpath(*parts[:end])
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file() and parts[0] != "hpcdist":
                return file
    return None


def _variable_set_by(node: ast.AST) -> str | None:
    """Return the variable of the environment that a node sets or removes, no name for any, or None.
    Names decide: what is called environ is taken for os.environ."""
    match node:
        case ast.Subscript(value=owner, slice=key, ctx=ast.Store() | ast.Del()):
            return str(getattr(key, "value", "")) if _name(owner) == "environ" else None
        case ast.Call(func=function, args=args) if _name(function) in _SETTERS:
            name = str(getattr(args[0], "value", "")) if args else ""
            is_there = _name(function) == "setdefault" and name in os.environ
            whose = _name(getattr(function, "value", None))
            return name if whose in {"environ", "os", "dotenv", ""} and not is_there else None
        case ast.Assign(value=owner) | ast.AugAssign(target=owner):  # another name for it, or |=
            return "" if _name(owner) == "environ" else None
        case ast.alias(name="environ", asname=str()):
            return ""
    return None


def _name(node: object) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
