"""A user's program as it runs, read and not run: what it imports, and what it sets in os.environ.

Statements are followed in the order in which a rank runs them: own modules where they are imported,
functions where they are called, what stands under `if __name__ == "__main__"`. Values are worked
out as far as the text and the environment tell. What may or may not run (a branch, a loop, a
callback) imports perhaps, and leaves what it sets unknown; so does what is not understood.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from hpcdist.workloads import folding
from hpcdist.workloads.folding import UNKNOWN, External, is_known

OF_EACH_RANK = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("PL_TRAINER_DEVICES", "PL_TRAINER_NUM_NODES", "TORCHELASTIC_USE_AGENT_STORE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "HPCDIST_RUN_DIR"),
    )
)
"""Variables that a rank gets when it is forked: there in every rank, each with a value of its
own."""

_MOST_FILES = 100
"""Of the user's own: looking further would take longer than it can save."""
_MOST_CALLS = 2000
_MOST_DEPTH = 50
_MOST_TURNS = 100
_ENVIRON = "os.environ"
_CAN_SET_ANY = frozenset(
    (
        *("builtins.exec", "builtins.eval", "os.environ.clear", "os.environ.popitem"),
        *("runpy.run_module", "runpy.run_path", "unittest.mock.patch.dict"),
    )
)
_LEAVES = frozenset(("sys.exit", "os._exit", "os.abort", "builtins.exit", "builtins.quit"))
_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of what the user has installed, and not written."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a statement stands."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.name}, line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A variable of the environment is set or removed."""

    name: str | None
    """None: it may be any."""
    value: str | None
    """None: it is removed, or where `is_known` is false, set to what only the run can tell."""
    is_known: bool
    place: Place
    is_hidden: bool = False
    """By os.putenv or os.unsetenv: libraries in C see it, os.environ does not show it."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """A module is imported that is neither the user's own nor of the standard library."""

    module: str
    is_certain: bool
    place: Place


Event: TypeAlias = Change | Import


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a program imports and sets, in order."""

    events: list[Event] = field(default_factory=list)
    sources: list[bytes] = field(default_factory=list)
    """The user's files that were read."""


def read_program(
    path: Path,
    *,
    environ: Mapping[str, str],
    installed: Container[str],
    first_on_path: Path | None = None,
    function: str | None = None,
) -> Program:
    """Follow the program that begins with a file.

    `first_on_path` is where its imports look first, and the file is a module below it; None: the
    file is a script, whose own folder is first. `function` ("module:name") is what is called in a
    rank instead: its module is imported for it, but of a script it is sent without the rest.
    Packages that are `installed` are not looked into, wherever they are.

    Raises OSError, SyntaxError or ValueError where the file cannot be read.
    """
    source = path.read_bytes()
    walk = _Walk(path, environ, installed)
    tree = _parsed(source)
    try:
        if function is not None:
            walk.call_in(tree, source, *function.split(":", 1))
        else:
            walk.run(tree, source, first_on_path)
        walk.run_what_is_left()
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return walk.program


# What names stand for, besides known values and what is external.


class _Scope(dict[str, Any]):
    """Names of a module, a class or a call; others are looked for in the scope around."""

    def __init__(self, module: _Module, around: _Scope | None = None) -> None:
        super().__init__()
        self.module = module
        self.around = around

    def find(self, name: str) -> Any:
        if name in self:
            return self[name]
        if self.around is not None:
            return self.around.find(name)
        return folding.constant(f"builtins.{name}")


class _Module:
    """A file of the user's, or a folder without an __init__.py."""

    def __init__(self, name: str, path: Path, package: str) -> None:
        self.path = path
        self.package = package
        self.names = _Scope(self)
        self.names |= {"__name__": name, "__file__": str(path), "__package__": package}
        self.rebound: set[str] = set()
        """Names that some function declares global: their values at the top may not last."""


@dataclass(eq=False)
class _Function:
    """A function of the user's."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: _Scope
    defaults: Mapping[str, Any]
    was_called: bool = False


@dataclass(eq=False)
class _Class:
    names: _Scope


class _Left(Exception):  # noqa: N818 - no error: it ends what is followed
    """The function returns, or the program ends."""

    def __init__(self, value: Any = UNKNOWN, *, is_return: bool) -> None:
        super().__init__()
        self.value = value
        self.is_return = is_return


class _Walk:
    """Follows a program; `program` is what it has done so far."""

    def __init__(
        self, path: Path, environ: Mapping[str, str], installed: Container[str]
    ) -> None:
        self.program = Program()
        self._path = path
        self._base = environ
        self._installed = installed
        self._changed: dict[str, Any] = {}
        self._is_any_changed = False
        self._folders = [path.parent]
        self._modules: dict[str, _Module | None] = {}
        self._functions: list[_Function] = []
        self._methods: dict[str, list[_Function]] = {}
        self._calls: list[_Function] = []
        self._inert: set[Any] = set()
        self._num_calls = 0
        self._is_certain = True
        self._may_have_left = False
        self._scope = _Module("__main__", path, "").names
        self._line = 1

    # How a program begins, and what remains.

    def run(self, tree: ast.Module, source: bytes, first_on_path: Path | None) -> None:
        package = ""
        if first_on_path is not None:
            self._folders = [first_on_path]
            if self._path.is_relative_to(first_on_path):
                package = ".".join(self._path.parent.relative_to(first_on_path).parts)
        if package:
            self._import(package)
        self._scope = self._begin_file("__main__", self._path, package, tree, source).names
        with suppress(_Left):
            self._block(tree.body)

    def call_in(self, tree: ast.Module, source: bytes, module: str, name: str) -> None:
        if module == "__main__" or "<" in name:
            self._scope = self._begin_file("__main__", self._path, "", tree, source).names
            self._declare(tree.body, _globals_of(tree, name))
        else:
            parents = self._path.parents
            up = module.count(".") + (self._path.name == "__init__.py")
            self._folders = [parents[min(up, len(parents) - 1)]]
            self._scope = self._begin_file(module, self._path, module.rpartition(".")[0]).names
            if isinstance(imported := self._import(module), _Module):
                self._scope = imported.names
        called: Any = self._scope
        for part in name.split("."):
            names = called.names if isinstance(called, _Class | _Module) else called
            called = names.get(part, UNKNOWN) if isinstance(names, dict) else UNKNOWN
        with suppress(_Left):
            self._call_value(called, [], {})

    def run_what_is_left(self) -> None:
        """What was not seen to be called may be called all the same. What own modules but the first
        import then is left to the ranks."""
        for function in self._functions:  # it grows meanwhile
            if not function.was_called:
                is_first = function.scope.module.path == self._path
                before = len(self.program.events)
                self._call_perhaps(function)
                if not is_first:
                    self.program.events[before:] = [
                        event
                        for event in self.program.events[before:]
                        if isinstance(event, Change)
                    ]

    def give_up(self) -> None:
        """From here on anything may have been set."""
        self._set(UNKNOWN, UNKNOWN)

    def _declare(self, body: Sequence[ast.stmt], used: Container[str]) -> None:
        """What the top of a file defines for a function that is sent without it: with it go the
        modules that it uses, perhaps by others."""
        for node in body:
            if isinstance(node, ast.Try):
                self._declare(node.body, used)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = {(one.asname or one.name).partition(".")[0] for one in node.names}
                with nullcontext() if any(name in used for name in names) else self._perhaps():
                    self._statement(node)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self._statement(node)
            elif isinstance(node, ast.Assign) and not any(
                isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node)
            ):
                self._statement(node)

    # Files and imports.

    def _begin_file(
        self,
        name: str,
        path: Path,
        package: str,
        tree: ast.Module | None = None,
        source: bytes | None = None,
    ) -> _Module:
        module = _Module(name, path, package)
        if source is not None and tree is not None:
            self.program.sources.append(source)
            module.rebound = {
                name
                for node in ast.walk(tree)
                if isinstance(node, ast.Global)
                for name in node.names
            }
        return module

    def _import(self, dotted: str) -> Any:
        """Import a module as `import a.b` does; the module, where it is the user's own."""
        top = dotted.partition(".")[0]
        if top in sys.stdlib_module_names or top == "hpcdist":
            return None
        if not self._is_own(top):
            self._tell(Import(module=dotted, is_certain=self._is_certain, place=self._place()))
            return None
        last: _Module | None = None
        for name in accumulate(dotted.split("."), "{}.{}".format):
            around, last = last, self._enter(name)
            if last is None:
                return None
            if around is not None:
                around.names[name.rpartition(".")[2]] = last
        return last

    def _is_own(self, top: str) -> bool:
        """Whether a package is the user's: below a folder of the program, or found elsewhere than
        where packages are installed, by PYTHONPATH for example."""
        if any((at / f"{top}.py").exists() or (at / top).is_dir() for at in self._folders):
            return True
        if top in self._installed:
            return False
        with suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(top)
            if spec is not None and spec.origin and spec.origin.endswith(".py"):
                origin = Path(spec.origin)
                if _INSTALLED.isdisjoint(origin.parts):
                    is_package = spec.submodule_search_locations is not None
                    self._folders.append(origin.parents[1 if is_package else 0])
                    return True
        return False

    def _enter(self, name: str) -> _Module | None:
        """Run an own module where it is imported for the first time; None: there is none."""
        if name in self._modules:
            return self._modules[name]
        place = name.replace(".", "/")
        found = None
        for folder in self._folders:
            files = (folder / place / "__init__.py", folder / f"{place}.py")
            found = next((file for file in files if file.is_file()), None)
            if found is None and (folder / place).is_dir():
                found = folder / place
            if found is not None:
                break
        self._modules[name] = None
        if found is None or len(self._modules) > _MOST_FILES:
            return None
        if found.is_dir():
            module = self._modules[name] = _Module(name, found, name)
            return module
        try:
            source = found.read_bytes()
            tree = _parsed(source)
        except (OSError, SyntaxError, ValueError):
            return None
        package = name if found.name == "__init__.py" else name.rpartition(".")[0]
        module = self._modules[name] = self._begin_file(name, found, package, tree, source)
        with self._within(module.names), suppress(_Left):
            self._block(tree.body)
        return module

    def _run_Import(self, node: ast.Import) -> None:  # noqa: N802 - as ast names it
        for alias in node.names:
            top = alias.name.partition(".")[0]
            last = self._import(alias.name)
            if alias.asname is None:
                own = self._modules.get(top)
                self._bind(top, External(top) if last is None and own is None else own)
            else:
                self._bind(alias.asname, External(alias.name) if last is None else last)

    def _run_ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802 - as above
        base = _absolute(node, self._scope.module.package)
        if not base:
            return
        module = self._import(base)
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(module, _Module):
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

    # Statements.

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        self._line = node.lineno
        getattr(self, f"_run_{type(node).__name__}", self._run_other)(node)

    def _run_other(self, node: ast.AST) -> None:
        """Of a statement that has no method here (with, raise, assert, match, ...): values, then
        what is below it."""
        for _, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.expr):
                    self._value(part)
                elif isinstance(part, ast.stmt):
                    self._statement(part)
                elif isinstance(part, ast.match_case):
                    with self._perhaps():
                        self._forget(part)
                        self._block(part.body)
                elif isinstance(part, ast.AST):
                    self._run_other(part)

    def _run_With(self, node: ast.With | ast.AsyncWith) -> None:  # noqa: N802 - as above
        for part in node.items:
            self._value(part.context_expr)
            if part.optional_vars is not None:
                self._forget(part.optional_vars)
        self._block(node.body)

    _run_AsyncWith = _run_With  # noqa: N815 - as above

    def _run_Raise(self, node: ast.Raise) -> None:  # noqa: N802 - as above
        self._run_other(node)
        raise _Left(is_return=False)

    def _run_Return(self, node: ast.Return) -> None:  # noqa: N802 - as above
        raise _Left(None if node.value is None else self._value(node.value), is_return=True)

    def _run_Assign(self, node: ast.Assign) -> None:  # noqa: N802 - as above
        value = self._value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _run_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802 - as above
        if node.value is not None:
            self._assign(node.target, self._value(node.value))

    def _run_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802 - as above
        before, value = self._value(node.target), self._value(node.value)
        if before == External(_ENVIRON):
            self._update([value], {})
            return
        self._assign(node.target, folding.combine(type(node.op), before, value))

    def _run_Delete(self, node: ast.Delete) -> None:  # noqa: N802 - as above
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                if self._value(target.value) == External(_ENVIRON):
                    self._set(self._value(target.slice), None)
            else:
                self._forget(target)

    def _run_If(self, node: ast.If) -> None:  # noqa: N802 - as above
        test = self._value(node.test)
        if is_known(test):
            self._block(node.body if test else node.orelse)
            return
        for body in (node.body, node.orelse):
            with self._perhaps():
                self._block(body)

    def _run_For(self, node: ast.For | ast.AsyncFor) -> None:  # noqa: N802 - as above
        turns = self._value(node.iter)
        turns = list(turns) if isinstance(turns, dict) else turns
        leaves = any(isinstance(part, ast.Break | ast.Continue) for part in ast.walk(node))
        if isinstance(turns, list | tuple) and len(turns) <= _MOST_TURNS and not leaves:
            for turn in turns:
                self._assign(node.target, turn)
                self._block(node.body)
            self._block(node.orelse)
            return
        self._forget(node)
        with self._perhaps():
            self._block([*node.body, *node.orelse])

    _run_AsyncFor = _run_For  # noqa: N815 - as above

    def _run_While(self, node: ast.While) -> None:  # noqa: N802 - as above
        self._forget(node)
        self._value(node.test)
        with self._perhaps():
            self._block([*node.body, *node.orelse])

    def _run_Try(self, node: ast.Try) -> None:  # noqa: N802 - as above
        """Where there are handlers, what follows a statement that may raise may not be reached."""
        if not node.handlers:
            self._block([*node.body, *node.orelse, *node.finalbody])
            return
        reached = 0
        for statement in node.body:
            before = len(self.program.events)
            if reached < 0:
                with self._perhaps():
                    self._statement(statement)
                continue
            try:
                self._statement(statement)
            except _Left as left:
                if left.is_return:
                    self._block(node.finalbody)
                    raise
                reached = -1
            made = self.program.events[before:]
            only_sets = bool(made) and all(isinstance(event, Change) for event in made)
            if not only_sets and not self._is_import_that_works(statement):
                reached = -1
        for body in (node.orelse, *(handler.body for handler in node.handlers)):
            with self._perhaps():
                self._block(body)
        self._block(node.finalbody)

    _run_TryStar = _run_Try  # noqa: N815 - as above

    def _is_import_that_works(self, node: ast.stmt) -> bool:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        with suppress(ImportError, ValueError):
            return bool(names) and all(
                name and importlib.util.find_spec(name.partition(".")[0]) for name in names
            )
        return False

    def _run_FunctionDef(  # noqa: N802 - as above
        self, node: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        function = self._function(node)
        for decorator in node.decorator_list:
            self._call_value(self._value(decorator), [function], {})
        self._bind(node.name, function)

    _run_AsyncFunctionDef = _run_FunctionDef  # noqa: N815 - as above

    def _run_ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802 - as above
        for part in (*node.decorator_list, *node.bases):
            self._value(part)
        names = _Scope(self._scope.module, self._scope)
        with self._within(names):
            self._block(node.body)
        for name, value in names.items():
            if isinstance(value, _Function):
                value.scope = self._scope
                self._methods.setdefault(name, []).append(value)
        self._bind(node.name, _Class(names))

    # Names.

    def _bind(self, name: str, value: Any) -> None:
        is_lasting = self._is_certain and name not in self._scope.module.rebound
        self._scope[name] = UNKNOWN if is_known(value) and not is_lasting else value

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value)
        elif isinstance(target, ast.Subscript):
            base, key = self._value(target.value), self._value(target.slice)
            if base == External(_ENVIRON):
                self._set(key, value)
            elif isinstance(target.value, ast.Name) and is_known(base):
                self._bind(target.value.id, UNKNOWN)  # a list or dict that is changed
        elif isinstance(target, ast.Attribute):
            base = self._value(target.value)
            if isinstance(base, _Module):
                base.names[target.attr] = UNKNOWN if is_known(value) else value
            elif folding.attribute(base, target.attr) == External(_ENVIRON):
                self.give_up()
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, list | tuple) else []
            fits = len(parts) == len(target.elts)
            for index, part in enumerate(target.elts):
                self._assign(part, parts[index] if fits else UNKNOWN)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, UNKNOWN)

    def _forget(self, node: ast.AST) -> None:
        """What is assigned somewhere below a node has no known value."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                self._scope[part.id] = UNKNOWN

    # Values.

    def _value(self, node: ast.expr) -> Any:
        """What an expression is worth; the calls in it are followed."""
        return getattr(self, f"_value_{type(node).__name__}", self._value_other)(node)

    def _value_other(self, node: ast.expr) -> Any:
        self._run_other(node)
        return UNKNOWN

    def _value_Constant(self, node: ast.Constant) -> Any:  # noqa: N802 - as above
        return node.value

    def _value_Name(self, node: ast.Name) -> Any:  # noqa: N802 - as above
        return self._scope.find(node.id)

    def _value_Tuple(self, node: ast.Tuple | ast.List) -> Any:  # noqa: N802 - as above
        return [self._value(part) for part in node.elts]

    _value_List = _value_Tuple  # noqa: N815 - as above

    def _value_Dict(self, node: ast.Dict) -> Any:  # noqa: N802 - as above
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            part = self._value(value)
            if key is None:
                if not isinstance(part, dict):
                    return UNKNOWN
                found |= part
                continue
            name = self._value(key)
            if not isinstance(name, str | int):
                return UNKNOWN
            found[name] = part
        return found

    def _value_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802 - as above
        base = self._value(node.value)
        if isinstance(base, _Module):
            return base.names.get(node.attr, UNKNOWN)
        if isinstance(base, _Class):
            return base.names.get(node.attr, UNKNOWN)
        return folding.attribute(base, node.attr)

    def _value_Subscript(self, node: ast.Subscript) -> Any:  # noqa: N802 - as above
        base, key = self._value(node.value), self._value(node.slice)
        return self._read(key) if base == External(_ENVIRON) else folding.item(base, key)

    def _value_JoinedStr(self, node: ast.JoinedStr) -> Any:  # noqa: N802 - as above
        parts = [self._value(part) for part in node.values]
        return "".join(parts) if all(isinstance(part, str) for part in parts) else UNKNOWN

    def _value_FormattedValue(self, node: ast.FormattedValue) -> Any:  # noqa: N802 - as above
        spec = "" if node.format_spec is None else self._value(node.format_spec)
        return folding.text(self._value(node.value), node.conversion, spec)

    def _value_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802 - as above
        return folding.combine(type(node.op), self._value(node.left), self._value(node.right))

    def _value_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802 - as above
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not) and is_known(value):
            return not value
        is_number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
        return -value if is_number else UNKNOWN

    def _value_Compare(self, node: ast.Compare) -> Any:  # noqa: N802 - as above
        if len(node.ops) > 1:
            return self._value_other(node)
        left, right = self._value(node.left), self._value(node.comparators[0])
        kind = type(node.ops[0])
        if right == External(_ENVIRON) and kind in {ast.In, ast.NotIn}:
            is_there = self._has(left)
            return is_there if kind is ast.In or is_there is UNKNOWN else not is_there
        return folding.combine(kind, left, right)

    def _value_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802 - as above
        decides = isinstance(node.op, ast.Or)
        value = self._value(node.values[0])
        for part in node.values[1:]:
            if not is_known(value):
                with self._perhaps():
                    later = self._value(part)
                # `unknown and False` is false whatever the unknown is, where only that is asked.
                value = later if is_known(later) and bool(later) is decides else UNKNOWN
                continue
            if bool(value) is decides:
                return value
            value = self._value(part)
        return value

    def _value_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802 - as above
        test = self._value(node.test)
        if is_known(test):
            return self._value(node.body if test else node.orelse)
        with self._perhaps():
            values = [self._value(node.body), self._value(node.orelse)]
        return values[0] if values[0] == values[1] and is_known(values[0]) else UNKNOWN

    def _value_NamedExpr(self, node: ast.NamedExpr) -> Any:  # noqa: N802 - as above
        value = self._value(node.value)
        self._assign(node.target, value)
        return value

    def _value_Lambda(self, node: ast.Lambda) -> Any:  # noqa: N802 - as above
        return self._function(node)

    def _value_comprehension(self, node: Any) -> Any:
        with self._perhaps(), self._within(_Scope(self._scope.module, self._scope)):
            for generator in node.generators:
                self._value(generator.iter)
                self._forget(generator.target)
            self._run_other(node)
        return UNKNOWN

    _value_ListComp = _value_SetComp = _value_DictComp = _value_GeneratorExp = _value_comprehension  # noqa: N815 - as above

    # Calls.

    def _value_Call(self, node: ast.Call) -> Any:  # noqa: N802 - as above
        called = UNKNOWN
        base: Any = UNKNOWN
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Attribute):
            base = self._value(node.func.value)
            if isinstance(base, _Module | _Class):
                called = base.names.get(method, UNKNOWN)
            else:
                called = folding.attribute(base, method)
        else:
            called = self._value(node.func)
        args = [self._value(part) for part in node.args]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords |= {str(name): part for name, part in value.items()}
            else:
                keywords["**"] = UNKNOWN
        self._line = node.lineno
        if is_known(base) and method:
            return folding.call_method(base, method, args, keywords)
        if not isinstance(called, External | _Function | _Class):
            # Of an object that is not known: one of the user's own may have such a method.
            for function in self._methods.get(method, ()):
                self._call_perhaps(function)
        return self._call_value(called, args, keywords)

    def _call_value(self, called: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        if isinstance(called, _Function):
            return self._call(called, args, keywords)
        if isinstance(called, _Class):
            begin = called.names.get("__init__")
            if isinstance(begin, _Function):
                self._call(begin, [UNKNOWN, *args], keywords)
            return UNKNOWN
        if isinstance(called, External):
            follow = getattr(self, f"_call_{called.name.replace('.', '_')}", None)
            if follow is not None:
                return follow(args, keywords)
            if called.name in _CAN_SET_ANY:
                self.give_up()
            elif called.name in _LEAVES:
                raise _Left(is_return=False)
        for argument in (*args, *keywords.values()):
            if isinstance(argument, _Function):
                self._call_perhaps(argument)  # it is given to be called
            elif argument == External(_ENVIRON) and not _only_looks(called):
                self.give_up()
        return (
            folding.call(called.name, args, keywords) if isinstance(called, External) else UNKNOWN
        )

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> _Function:
        arguments = node.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        values = [self._value(default) for default in arguments.defaults]
        defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                defaults[one.arg] = self._value(default)
        function = _Function(node, self._scope, defaults)
        self._functions.append(function)
        return function

    def _call_perhaps(self, function: _Function) -> None:
        with self._perhaps():
            self._call(function, [], {}, is_seen=False)

    def _call(
        self, function: _Function, args: list[Any], keywords: dict[str, Any], *, is_seen: bool = True
    ) -> Any:
        """Follow a call; `is_seen`: its arguments are those of the program."""
        function.was_called = True
        if function in self._calls:
            return UNKNOWN
        names = self._parameters(function, args, keywords, is_seen=is_seen)
        key = (function, self._is_certain, repr(sorted(names.items(), key=lambda pair: pair[0])))
        if key in self._inert:
            return UNKNOWN
        if len(self._calls) > _MOST_DEPTH or self._num_calls > _MOST_CALLS:
            self.give_up()
            return UNKNOWN
        self._num_calls += 1
        scope = _Scope(function.scope.module, function.scope)
        scope |= names
        num_events, num_functions = len(self.program.events), len(self._functions)
        line = self._line
        value = self._follow(function, scope)
        for inner in self._functions[num_functions:]:  # it may return them, as decorators do
            if not inner.was_called and inner.scope is scope:
                self._call_perhaps(inner)
        self._line = line
        if len(self.program.events) == num_events and not is_known(value):
            self._inert.add(key)
        return value

    def _follow(self, function: _Function, scope: _Scope) -> Any:
        node = function.node
        before = self._is_certain, self._may_have_left
        self._may_have_left = False
        self._calls.append(function)
        try:
            with self._within(scope):
                if isinstance(node, ast.Lambda):
                    return self._value(node.body)
                if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node)):
                    self._is_certain = False  # it runs bit by bit
                self._block(node.body)
        except _Left as left:
            if not left.is_return:
                raise
            return UNKNOWN if self._may_have_left else left.value
        finally:
            self._calls.pop()
            self._is_certain, self._may_have_left = before
        return UNKNOWN

    def _parameters(
        self, function: _Function, args: list[Any], keywords: dict[str, Any], *, is_seen: bool
    ) -> dict[str, Any]:
        arguments = function.node.args
        positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        names = [*positional, *(one.arg for one in arguments.kwonlyargs)]
        values = {name: UNKNOWN for name in names}
        if is_seen and "**" not in keywords:
            values |= function.defaults
            values |= dict(zip(positional, args, strict=False))
            values |= {name: value for name, value in keywords.items() if name in values}
        if arguments.vararg is not None:
            values[arguments.vararg.arg] = UNKNOWN
        if arguments.kwarg is not None:
            extra = {name: value for name, value in keywords.items() if name not in names}
            values[arguments.kwarg.arg] = extra if is_seen and "**" not in keywords else UNKNOWN
        return values

    # Calls that set or import something; their names are looked up by `_call_value`.

    def _call_os_getenv(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        name, default = [*args, keywords.get("default"), UNKNOWN][:2]
        is_there = self._has(name)
        if is_there is UNKNOWN:
            return UNKNOWN
        return self._read(name) if is_there else default

    _call_os_environ_get = _call_os_getenv

    def _call_os_environ_setdefault(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        name, value = [*args, UNKNOWN, UNKNOWN][:2]
        is_there = self._has(name)
        if is_there is not True:
            self._set(name, value if is_there is False else UNKNOWN)
        return self._read(name)

    def _call_os_environ_pop(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        name = [*args, UNKNOWN][0]
        value = self._read(name)
        self._set(name, None)
        return value

    def _call_os_environ_update(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        self._update(args, keywords)
        return None

    def _call_os_putenv(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        self._set(*[*args, UNKNOWN, UNKNOWN][:2], is_hidden=True)

    def _call_os_unsetenv(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        self._set([*args, UNKNOWN][0], None, is_hidden=True)

    def _call_dotenv_load_dotenv(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        """As python-dotenv does it: from the folder of the calling file upwards."""
        names = ("dotenv_path", "stream", "verbose", "override", "interpolate", "encoding")
        given = dict(zip(names, args, strict=False)) | keywords
        path, is_override = given.get("dotenv_path"), given.get("override", False)
        if path is None:
            path = self._call_dotenv_find_dotenv([], {})
        values = _dotenv_values(path)
        if given.get("stream") is not None or not isinstance(is_override, bool) or values is None:
            self.give_up()
            return UNKNOWN
        for name, value in values.items():
            if is_override:
                self._set(name, value)
            else:
                self._call_os_environ_setdefault([name, value], {})
        return UNKNOWN

    _call_dotenv_main_load_dotenv = _call_dotenv_load_dotenv

    def _call_dotenv_find_dotenv(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        if args or keywords:
            return UNKNOWN
        at = self._scope.module.path
        return next((str(one / ".env") for one in at.parents if (one / ".env").is_file()), "")

    def _call_importlib_import_module(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        name = [*args, UNKNOWN][0]
        if not isinstance(name, str) or name.startswith("."):
            with self._perhaps():  # an own one, and so any
                self.give_up()
            return UNKNOWN
        module = self._import(name)
        return External(name) if module is None else module

    _call_builtins___import__ = _call_importlib_import_module

    def _call_sys_path_append(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        folder = [UNKNOWN, *args][-1]
        if isinstance(folder, str | Path):
            self._folders.append(Path(folder))

    _call_sys_path_insert = _call_sys_path_append

    # The environment.

    def _has(self, name: Any) -> Any:
        if not isinstance(name, str) or self._is_any_changed:
            return UNKNOWN
        if name in self._changed:
            value = self._changed[name]
            return UNKNOWN if value is UNKNOWN else value is not None
        return name in OF_EACH_RANK or name in self._base

    def _read(self, name: Any) -> Any:
        if not isinstance(name, str) or self._is_any_changed:
            return UNKNOWN
        if name in self._changed:
            value = self._changed[name]
            return UNKNOWN if value is None else value
        if name in OF_EACH_RANK:
            return UNKNOWN
        try:
            return self._base[name]
        except KeyError:
            return UNKNOWN

    def _update(self, args: list[Any], keywords: dict[str, Any]) -> None:
        for values in (*args, keywords):
            if isinstance(values, dict) and "**" not in values:
                for name, value in values.items():
                    self._set(name, value)
            elif isinstance(values, list | tuple) and all(
                isinstance(pair, list | tuple) and len(pair) == len("nv") for pair in values
            ):
                for name, value in values:
                    self._set(name, value)
            else:
                self.give_up()

    def _set(self, name: Any, value: Any, *, is_hidden: bool = False) -> None:
        """Set a variable, or remove it (None), here and for what follows."""
        known = isinstance(value, str | None) and self._is_certain
        if not isinstance(name, str):
            self._is_any_changed = True
            name, known = None, False
        elif not is_hidden:
            self._changed[name] = value if known else UNKNOWN
        shown = value if known else None
        self._tell(
            Change(
                name=name, value=shown, is_known=known, place=self._place(), is_hidden=is_hidden
            )
        )

    # Where the walk is.

    def _tell(self, event: Event) -> None:
        self.program.events.append(event)

    def _place(self) -> Place:
        return Place(file=self._scope.module.path, line=self._line)

    @contextmanager
    def _within(self, scope: _Scope) -> Iterator[None]:
        before, line = self._scope, self._line
        self._scope = scope
        try:
            yield
        finally:
            self._scope, self._line = before, line

    @contextmanager
    def _perhaps(self) -> Iterator[None]:
        """What is followed here may not run; where it returns, neither may what comes after."""
        before = self._is_certain
        self._is_certain = False
        try:
            yield
        except _Left as left:
            self._may_have_left = self._may_have_left or left.is_return
        finally:
            self._is_certain = before and not self._may_have_left


def _parsed(source: bytes) -> ast.Module:
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


def _only_looks(called: Any) -> bool:
    """Whether a call that is given os.environ leaves it as it is: what copies or prints it."""
    return isinstance(called, External) and (
        called.name.startswith(("builtins.", "os.environ.")) or called.name.partition(".")[0] in sys.stdlib_module_names
    )


def _dotenv_values(path: Any) -> dict[str, Any] | None:
    """What a file for load_dotenv sets; None where that is not known."""
    if not isinstance(path, str | Path):
        return None
    if not os.path.isfile(path):
        return {}
    try:
        from dotenv import dotenv_values

        values = dotenv_values(path, interpolate=False)
    except Exception:  # noqa: BLE001 - it is not installed, or cannot read the file
        return None
    return {
        name: UNKNOWN if "$" in value else value
        for name, value in values.items()
        if value is not None
    }
