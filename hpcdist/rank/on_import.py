"""Changes to modules of libraries in a rank, whether they are imported already or will be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


def on_import(changes: Mapping[str, Change]) -> None:
    """Make each change to the module of this name, once that is imported."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)
    if finder is None:
        sys.meta_path.insert(0, finder := _Finder())
    finder.changes |= changes


class _Finder(MetaPathFinder):
    """Finds modules as the other finders do, and changes some as they are imported."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the next finder returns, where it is one of those modules."""
        change = self.changes.get(fullname)
        if change is None:
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader  # it keeps its type, which tools look at
            exec_module = loader.exec_module

            def exec_and_change(module: ModuleType) -> None:
                exec_module(module)
                change(module)

            loader.exec_module = exec_and_change
        return spec
