"""What names of a program stand for, besides known values and what is external."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdist.job.program_text import folding


class Scope(dict[str, Any]):
    """Names of a module, a class or a call; others are looked for in the scope around."""

    def __init__(self, module: Module, around: Scope | None = None) -> None:
        super().__init__()
        self.module = module
        self.around = around

    def find(self, name: str) -> Any:
        if name in self:
            return self[name]
        if self.around is not None:
            return self.around.find(name)
        return folding.constant(f"builtins.{name}")


class Module:
    """A file of the user's, or a folder without an __init__.py."""

    def __init__(self, name: str, path: Path, package: str) -> None:
        self.path = path
        self.package = package
        self.names = Scope(self)
        self.names |= {"__name__": name, "__file__": str(path), "__package__": package}
        self.rebound: set[str] = set()
        """Names that some function declares global: their values at the top may not last."""


@dataclass(eq=False)
class Function:
    """A function of the user's."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    defaults: Mapping[str, Any]
    was_called: bool = False


@dataclass(eq=False)
class Class:
    names: Scope
