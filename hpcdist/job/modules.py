"""Finding the file of a module by its name, as `python -m` would, without importing anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from hpcdist.errors import JobError
from hpcdist.nearest import nearest

_SUFFIX = ".py"


def find_module(name: str, shown: str) -> str:
    """Path of the source that `python -m NAME` would run here; of a package, its __main__.py.

    Packages that put together the folders of their modules when they are imported are seen as they
    lie on disk. Raises JobError, which calls the module `shown`.
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
    if spec.origin is None or not spec.origin.endswith(_SUFFIX):
        raise JobError(
            f"{shown}: the module {name} has no Python source that could be run",
            hint="give a module that is a .py file",
        )
    return os.path.abspath(spec.origin)


def module_path() -> list[str]:
    """Where `python -m` looks first: the working directory."""
    return [os.getcwd()]


def _find(name: str, shown: str) -> ModuleSpec:
    """The module, found part by part; a package on the way is not imported."""
    first, *others = name.split(".")
    spec = _find_on_path(first)
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


def _find_on_path(name: str) -> ModuleSpec | None:
    return PathFinder.find_spec(name, module_path()) or _ask_finders(name, None)


def _find_below(parent: ModuleSpec, name: str) -> ModuleSpec | None:
    return _ask_finders(name, list(parent.submodule_search_locations or ()))


def _ask_finders(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """As the import system does; packages in editable mode may have a finder of their own."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is not None and (spec := find_spec(name, path)) is not None:
            found: ModuleSpec = spec
            return found
    return None


def _name_hint(name: str) -> str:
    if name.endswith(_SUFFIX) or "/" in name:
        stem = os.path.normpath(name.removesuffix(_SUFFIX)).replace("/", ".")
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
        if entry.suffix == _SUFFIX and entry.stem.isidentifier() and entry.stem != "__init__":
            yield entry.stem
        elif (entry / "__init__.py").is_file():
            yield entry.name
