"""The user's own files among what a program imports."""

from __future__ import annotations

import importlib.util
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of what the user has installed, and not written."""


class OwnFiles:
    """Where the modules of the user's own are."""

    def __init__(self, folder: Path, installed: Container[str]) -> None:
        self.folders = [folder]
        """Where the program looks first."""
        self._installed = installed

    def is_own(self, top: str) -> bool:
        """Whether a package is the user's: below a folder of the program, or found elsewhere than
        where packages are installed, by PYTHONPATH for example."""
        if any((at / f"{top}.py").exists() or (at / top).is_dir() for at in self.folders):
            return True
        if top in self._installed:
            return False
        with suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(top)
            if spec is not None and spec.origin and spec.origin.endswith(".py"):
                origin = Path(spec.origin)
                if _INSTALLED.isdisjoint(origin.parts):
                    is_package = spec.submodule_search_locations is not None
                    self.folders.append(origin.parents[1 if is_package else 0])
                    return True
        return False

    def find(self, name: str) -> Path | None:
        """The file of a module, or its folder where that is all there is; None: it is not there."""
        place = name.replace(".", "/")
        for folder in self.folders:
            for path in (folder / place / "__init__.py", folder / f"{place}.py"):
                if path.is_file():
                    return path
            if (folder / place).is_dir():
                return folder / place
        return None


def is_there(name: str) -> bool:
    """Whether a module can be imported, as far as that is known without doing it."""
    with suppress(ImportError, ValueError, AttributeError):
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    return False
