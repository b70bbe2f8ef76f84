"""Statements of a program, followed in the order in which they run."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from hpcdist.job.program_text import folding
from hpcdist.job.program_text.calls import Calls
from hpcdist.job.program_text.environment import Environment
from hpcdist.job.program_text.events import Change, Import, Left, Program, Trace
from hpcdist.job.program_text.files import OwnFiles, is_there
from hpcdist.job.program_text.folding import ENVIRON, UNKNOWN, External, is_known
from hpcdist.job.program_text.names import Class, Function, Module, Scope

_MOST_TURNS = 100
_MOST_FILES = 100
"""Of the user's own: looking further would take longer than it can save."""


class Walk(Calls):
    """Follows a program."""

    def __init__(self, path: Path, environ: Mapping[str, str], installed: Container[str]) -> None:
        trace = Trace(path)
        super().__init__(
            trace,
            Environment(environ, trace),
            OwnFiles(path.parent, installed),
            Module("__main__", path, "").names,
        )
        self._path = path
        self._modules: dict[str, Module | None] = {}

    @property
    def program(self) -> Program:
        """What it has done so far."""
        return self._trace.program

    def run(self, tree: ast.Module, source: bytes, first_on_path: Path | None) -> None:
        package = ""
        if first_on_path is not None:
            self._files.folders = [first_on_path]
            if self._path.is_relative_to(first_on_path):
                package = ".".join(self._path.parent.relative_to(first_on_path).parts)
        if package:
            self._import(package)
        self._scope = self._begin_file("__main__", self._path, package, tree, source).names
        with suppress(Left):
            self._block(tree.body)

    def call_in(self, tree: ast.Module, source: bytes, module: str, name: str) -> None:
        if module == "__main__" or "<" in name:
            self._scope = self._begin_file("__main__", self._path, "", tree, source).names
            self._declare(tree.body, _globals_of(tree, name))
        else:
            parents = self._path.parents
            up = module.count(".") + (self._path.name == "__init__.py")
            self._files.folders = [parents[min(up, len(parents) - 1)]]
            imported = self._import(module)
            if imported is None:
                return
            self._scope = imported.names
        called: Any = self._scope
        for part in name.split("."):
            names = called.names if isinstance(called, Class | Module) else called
            called = names.get(part, UNKNOWN) if isinstance(names, dict) else UNKNOWN
        with suppress(Left):
            self._call_value(called, [], {})

    def run_what_is_left(self) -> None:
        """What was not seen to be called may be called all the same. What own modules but the first
        import then is left to the ranks."""
        for function in self._functions:  # it grows meanwhile
            if not function.was_called:
                is_first = function.scope.module.path == self._path
                events = self.program.events
                before = len(events)
                self._call_perhaps(function)
                if not is_first:
                    events[before:] = [one for one in events[before:] if isinstance(one, Change)]

    def _declare(self, body: Sequence[ast.stmt], used: Container[str]) -> None:
        """What the top of a file defines for a function that is sent without it: with it go the
        modules that it uses, perhaps by others."""
        for node in body:
            if isinstance(node, ast.Try):
                self._declare(node.body, used)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = {(one.asname or one.name).partition(".")[0] for one in node.names}
                with (
                    nullcontext() if any(name in used for name in names) else self._trace.perhaps()
                ):
                    self._statement(node)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) or (
                isinstance(node, ast.Assign)
                and not any(isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node))
            ):
                self._statement(node)

    def _begin_file(
        self, name: str, path: Path, package: str, tree: ast.Module, source: bytes
    ) -> Module:
        module = Module(name, path, package)
        self.program.sources.append(source)
        declared = [node.names for node in ast.walk(tree) if isinstance(node, ast.Global)]
        module.rebound = {name for names in declared for name in names}
        return module

    def _import(self, dotted: str) -> Module | None:
        """Import a module as `import a.b` does; the module, where it is the user's own."""
        top = dotted.partition(".")[0]
        if top in sys.stdlib_module_names or top == "hpcdist":
            return None
        if not self._files.is_own(top):
            certain, place = self._trace.is_certain, self._trace.place()
            self._trace.tell(Import(module=dotted, is_certain=certain, place=place))
            return None
        last: Module | None = None
        for name in accumulate(dotted.split("."), "{}.{}".format):
            around, last = last, self._enter(name)
            if last is None:
                return None
            if around is not None:
                around.names[name.rpartition(".")[2]] = last
        return last

    def _enter(self, name: str) -> Module | None:
        """Run an own module where it is imported for the first time; None: there is none."""
        if name in self._modules:
            return self._modules[name]
        found = self._files.find(name)
        self._modules[name] = None
        if found is None or len(self._modules) > _MOST_FILES:
            return None
        if found.is_dir():
            module = self._modules[name] = Module(name, found, name)
            return module
        try:
            source = found.read_bytes()
            tree = parsed(source)
        except (OSError, SyntaxError, ValueError):
            return None
        package = name if found.name == "__init__.py" else name.rpartition(".")[0]
        module = self._modules[name] = self._begin_file(name, found, package, tree, source)
        with self._within(module.names), suppress(Left):
            self._block(tree.body)
        return module

    def run_import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            last = self._import(alias.name)
            if alias.asname is None:
                own = self._modules.get(top)
                self._bind(top, External(top) if last is None and own is None else own)
            else:
                self._bind(alias.asname, External(alias.name) if last is None else last)

    def run_import_from(self, node: ast.ImportFrom) -> None:
        base = _absolute(node, self._scope.module.package)
        if not base:
            return
        module = self._import(base)
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(module, Module):
                if alias.name == "*":
                    self._scope |= {k: v for k, v in module.names.items() if k[:1] != "_"}
                    continue
                if alias.name not in module.names:
                    self._import(f"{base}.{alias.name}")
                self._bind(name, module.names.get(alias.name, UNKNOWN))
            elif alias.name == "*":
                for known in os.__all__ if base == "os" else ():
                    self._bind(known, folding.constant(f"os.{known}"))
            else:
                self._bind(name, folding.constant(f"{base}.{alias.name}"))

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        self._trace.line = node.lineno
        _STATEMENTS.get(type(node), Walk.run_other)(self, node)

    def run_other(self, node: ast.AST) -> None:
        """Of a statement that has no method here (with, raise, assert, match, ...): values, then
        what is below it."""
        for _, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.expr):
                    self._value(part)
                elif isinstance(part, ast.stmt):
                    self._statement(part)
                elif isinstance(part, ast.match_case):
                    with self._trace.perhaps():
                        self._forget(part)
                        self._block(part.body)
                elif isinstance(part, ast.AST):
                    self.run_other(part)

    def run_with(self, node: ast.With | ast.AsyncWith) -> None:
        for part in node.items:
            self._value(part.context_expr)
            if part.optional_vars is not None:
                self._forget(part.optional_vars)
        self._block(node.body)

    def run_raise(self, node: ast.Raise) -> None:
        self.run_other(node)
        raise Left(is_return=False)

    def run_return(self, node: ast.Return) -> None:
        raise Left(None if node.value is None else self._value(node.value), is_return=True)

    def run_assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def run_ann_assign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._value(node.value))

    def run_aug_assign(self, node: ast.AugAssign) -> None:
        before, value = self._value(node.target), self._value(node.value)
        if before == ENVIRON:
            self._environment.update([value], {})
            return
        after = folding.combine(type(node.op), before, value)
        folding.spoil(before)
        self._assign(node.target, after)

    def run_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                base, key = self._value(target.value), self._value(target.slice)
                if base == ENVIRON:
                    self._environment.set(key, None)
                folding.spoil(base)
            else:
                self._forget(target)

    def run_if(self, node: ast.If) -> None:
        test = self._value(node.test)
        if is_known(test):
            self._block(node.body if test else node.orelse)
            return
        for body in (node.body, node.orelse):
            with self._trace.perhaps():
                self._block(body)

    def run_for(self, node: ast.For | ast.AsyncFor) -> None:
        turns = self._value(node.iter)
        turns = list(turns) if isinstance(turns, dict) else turns
        leaves = any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))
        is_told = isinstance(turns, list | tuple) and not any(one is UNKNOWN for one in turns)
        if is_told and len(turns) <= _MOST_TURNS and not leaves:
            for turn in [*turns]:
                self._assign(node.target, turn)
                self._block(node.body)
            self._block(node.orelse)
            return
        self._forget(node)
        with self._trace.perhaps():
            self._block([*node.body, *node.orelse])

    def run_while(self, node: ast.While) -> None:
        self._forget(node)
        self._value(node.test)
        with self._trace.perhaps():
            self._block([*node.body, *node.orelse])

    def run_try(self, node: ast.Try) -> None:
        """Where there are handlers, what follows a statement that may raise may not be reached."""
        if not node.handlers:
            self._block([*node.body, *node.orelse, *node.finalbody])
            return
        reached = 0
        for statement in node.body:
            before = len(self._trace.program.events)
            if reached < 0:
                with self._trace.perhaps():
                    self._statement(statement)
                continue
            try:
                self._statement(statement)
            except Left as left:
                if left.is_return:
                    self._block(node.finalbody)
                    raise
                reached = -1
            made = self._trace.program.events[before:]
            only_sets = bool(made) and all(isinstance(event, Change) for event in made)
            if not only_sets and not self._is_import_that_works(statement):
                reached = -1
        for body in (node.orelse, *(handler.body for handler in node.handlers)):
            with self._trace.perhaps():
                self._block(body)
        self._block(node.finalbody)

    def _is_import_that_works(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.ImportFrom):
            return is_there(node.module or "")
        return isinstance(node, ast.Import) and all(is_there(one.name) for one in node.names)

    def run_function_def(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = self._function(node)
        for decorator in node.decorator_list:
            self._call_value(self._value(decorator), [function], {})
        self._bind(node.name, function)

    def run_class_def(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases):
            self._value(part)
        names = Scope(self._scope.module, self._scope)
        with self._within(names):
            self._block(node.body)
        for name, value in names.items():
            if isinstance(value, Function):
                value.scope = self._scope
                self._methods.setdefault(name, []).append(value)
        self._bind(node.name, Class(names))


_STATEMENTS: Mapping[type[ast.stmt], Callable[[Any, Any], None]] = {
    ast.Import: Walk.run_import,
    ast.ImportFrom: Walk.run_import_from,
    ast.With: Walk.run_with,
    ast.Raise: Walk.run_raise,
    ast.Return: Walk.run_return,
    ast.Assign: Walk.run_assign,
    ast.AnnAssign: Walk.run_ann_assign,
    ast.AugAssign: Walk.run_aug_assign,
    ast.Delete: Walk.run_delete,
    ast.If: Walk.run_if,
    ast.For: Walk.run_for,
    ast.While: Walk.run_while,
    ast.Try: Walk.run_try,
    ast.FunctionDef: Walk.run_function_def,
    ast.ClassDef: Walk.run_class_def,
    ast.AsyncFor: Walk.run_for,
    ast.AsyncFunctionDef: Walk.run_function_def,
    ast.AsyncWith: Walk.run_with,
}


def parsed(source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module of a `from` import; empty where that is outside of what is known."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    kept = parents[: len(parents) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept) if all(kept) else ""


def _globals_of(tree: ast.Module, name: str) -> set[str]:
    """Names that a function at the top of a file takes from there."""
    nodes = [node for node in tree.body if getattr(node, "name", None) == name]
    parts = [part for node in nodes for part in ast.walk(node)]
    own = {
        (one.asname or one.name).partition(".")[0]
        for part in parts
        if isinstance(part, ast.Import | ast.ImportFrom)
        for one in part.names
    }
    return {part.id for part in parts if isinstance(part, ast.Name)} - own
