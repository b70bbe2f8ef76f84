"""Finding the file of a module by its name, as `python -m` would, without importing anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.nearest import nearest
from hpcdist.job.source import SUFFIX, check_module, find_in_folders


def find_module(name: str, shown: str) -> str:
    """Path of the source that `python -m NAME` would run here, in a zip file, too; of a package,
    its __main__.py.

    Packages that put together the folders of their modules when they are imported are seen as they
    lie on disk. Raises JobError, which calls the module `shown`, or names the file that has syntax
    errors.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise JobError(
            f"{shown}: {name!r} is not the name of a module",
            hint=_name_hint(name),
        )
    spec = _find(name, shown)
    if spec.submodule_search_locations is not None:
        main = _find_below(spec, f"{name}.__main__")
        if main is None:
            raise JobError(
                f"{shown}: {name} is a package without a module __main__, and cannot be run",
                hint=_modules_hint(spec),
            )
        spec = main
    if spec.origin is None or not spec.origin.endswith(SUFFIX):
        raise JobError(
            f"{shown}: the module {name} has no Python source that could be run",
            hint="give a module that is a .py file",
        )
    check_module(spec, os.path.relpath(spec.origin))
    return os.path.abspath(spec.origin)


def _find(name: str, shown: str) -> ModuleSpec:
    """The module, found part by part; a package on the way is not imported."""
    first, *others = name.split(".")
    spec = _ask_finders(first, None)
    found = first
    for part in others:
        if spec is None or spec.submodule_search_locations is None:
            break
        parent, found = spec, f"{found}.{part}"
        spec = _find_below(parent, found)
        if spec is None:
            raise JobError(
                f"{shown}: there is no module {found} in {_shown_folders(parent)}",
                hint=_modules_hint(parent, part),
            )
    if spec is None:
        raise JobError(
            f"{shown}: there is no module {first} here, nor where Python looks for packages",
            hint=_module_hint_here(first),
        )
    if found != name:
        raise JobError(
            f"{shown}: {found} is a module, and no package that could hold {name}",
            hint=f"did you mean {found}?",
        )
    return spec


def _find_below(parent: ModuleSpec, name: str) -> ModuleSpec | None:
    return _ask_finders(name, list(parent.submodule_search_locations or ()))


def _ask_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """As the import system does; packages in editable mode may have a finder of their own. Without
    a path, `python -m` looks into the working directory first."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = find_in_folders(name, [os.getcwd(), *sys.path] if path is None else path)
        else:
            spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _name_hint(name: str) -> str:
    if name.endswith(SUFFIX) or "/" in name:
        stem = os.path.normpath(name.removesuffix(SUFFIX)).replace("/", ".")
        return f"leave -m away to run a file; as a module it would be {stem}"
    return "give it as in an import statement: package.module"


def _shown_folders(spec: ModuleSpec) -> str:
    return " or ".join(os.path.relpath(folder) for folder in spec.submodule_search_locations or ())


def _modules_hint(package: ModuleSpec, wanted: str = "") -> str:
    names = sorted({name for f in package.submodule_search_locations or () for name in _names(f)})
    near = nearest(wanted, names) if wanted else None
    listed = f"{package.name} has {', '.join(names)}" if names else f"{package.name} is empty"
    return f"did you mean {package.name}.{near}? {listed}" if near else listed


def _module_hint_here(wanted: str) -> str:
    near = nearest(wanted, list(_names(".")))
    looked = f"modules are looked for in the working directory, {os.getcwd()}, first"
    return f"did you mean {near}? {looked}" if near else looked


def _names(folder: str) -> Iterator[str]:
    """Modules and packages in a folder."""
    try:
        entries = list(Path(folder).iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == SUFFIX and entry.stem.isidentifier() and entry.stem != "__init__":
            yield entry.stem
        elif entry.name.isidentifier() and _is_package(entry):
            yield entry.name


def _is_package(folder: Path) -> bool:
    """Whether it holds modules, be it without an __init__.py, or packages that do."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return False
    return any(entry.suffix == SUFFIX for entry in entries) or any(
        (entry / "__init__.py").is_file() for entry in entries
    )
