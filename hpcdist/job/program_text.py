"""Read a user's program without running it: what it imports, and what it sets in its environment.

Statements at the top of a file are followed in their order, and own modules where they are
imported. Functions are not followed: what one does may happen at any time from the first place on
where code outside of functions mentions its name, be it by way of other functions. Values are
worked out where they are constants, texts made of constants, paths, or the environment itself. What
stands under a condition, in a loop or in a function is imported perhaps, and what is set there is
unknown; so is everything that is not understood. Names decide: what is called `environ` is taken
for os.environ, wherever it comes from.
"""

from __future__ import annotations

import ast
import importlib.util
import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from hpcdist.base.files import read_bytes
from hpcdist.job.files import MOST_SOURCE_BYTES

OF_EACH_RANK = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
        *("NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("PL_TRAINER_DEVICES", "PL_TRAINER_NUM_NODES", "TORCHELASTIC_USE_AGENT_STORE"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
        *("TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "HPCDIST_RUN_DIR"),
        *("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    )
)
"""Variables that every rank gets when it is forked, each with a value of its own."""

UNKNOWN: Any = object()
"""The value of an expression that the text does not determine."""

_MOST_FILES = 500
_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of what the user has installed, and not written."""
_MOST_DOTENV_BYTES = 1_000_000
_NAME_IN_DOTENV = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=", re.MULTILINE)
_READS = frozenset(("get", "copy", "items", "keys", "values"))
"""Methods of os.environ that change nothing."""
_ONLY_READ = frozenset(("dict", "len", "list", "print", "sorted", "str"))
"""Functions that leave what they are given as it is."""
_FIND_BY_NAME = frozenset(("getattr", "globals", "vars", "attrgetter", "methodcaller"))
"""Functions by which any other may be found without its name in the text."""
_CONSTANTS: Mapping[str, Any] = {
    "TYPE_CHECKING": False,
    "typing.TYPE_CHECKING": False,
    "os.name": os.name,
    "os.pathsep": os.pathsep,
    "os.sep": os.sep,
    "sys.platform": sys.platform,
}
_OF_THE_FOLDER: Mapping[str, Callable[..., Any]] = {
    "os.getcwd": os.getcwd,
    "os.path.abspath": os.path.abspath,
    "os.path.realpath": os.path.realpath,
}
_CALLS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "str": str,
    "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname,
    "os.path.expanduser": os.path.expanduser,
    "os.path.join": os.path.join,
    **_OF_THE_FOLDER,
}
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


class Place(Struct, frozen=True, kw_only=True):
    """The place of a statement."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.name}, line {self.line}"


class Change(Struct, frozen=True, kw_only=True):
    """A variable of the environment is set or removed."""

    name: str | None
    """None: it may be any."""
    value: str | None = None
    """None: it is removed, or where `unknown` says why, set to what only the run can tell."""
    unknown: Literal["", "value", "condition", "function"] = ""
    """Why the value is not known: it is not in the text, it may not be set, or a function sets it,
    at any time from here on. Empty: it is known."""
    place: Place


class Import(Struct, frozen=True, kw_only=True):
    """A module is imported that is neither the user's own nor of the standard library."""

    module: str
    is_certain: bool
    place: Place


Event: TypeAlias = Change | Import


class SourceFile(Struct, frozen=True, kw_only=True):
    """A file of the user's that was read."""

    path: Path
    source: bytes
    tree: ast.Module


def read_program(
    path: Path,
    *,
    environ: Mapping[str, str],
    installed: Container[str],
    first_on_path: Path | None = None,
    function: str | None = None,
) -> tuple[list[Event], list[SourceFile]]:
    """Follow the program that begins with a file: return its imports and the variables that it
    sets, in order, and the user's files that were read.

    `first_on_path` is where its imports look first, and the file is a module below it; None: the
    file is a script, whose own folder is first. `function` ("module:name") is what is called in a
    rank instead: its module is imported for it, but of a script it is sent without the rest.
    Packages that are `installed` are not looked into, wherever they are.

    Raises OSError, SyntaxError or ValueError where the file cannot be read, or cannot be followed:
    that must cost no more than time, since each rank can import all by itself.
    """
    reader = _Reader(path, environ, installed)
    main = reader.open_file(path, "__main__", "")
    try:
        if function is not None:
            reader.call(main, *function.split(":", 1))
        else:
            reader.run(main, first_on_path)
        reader.run_the_rest()
    except Exception as error:
        raise ValueError(f"the text of {path.name} cannot be followed: {error!r}") from error
    return reader.events, reader.sources


class _File:
    """A file of the user's that is followed."""

    def __init__(self, path: Path, name: str, package: str, tree: ast.Module) -> None:
        self.path = path
        self.package = package
        self.tree = tree
        self.bound = Counter(_bound_names(tree))
        """Name -> how often it is bound, wherever in the file."""
        self.values: dict[str, Any] = {"__name__": name, "__file__": str(path)}
        """Names that are bound once, and keep their values."""


_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Function: TypeAlias = tuple[_Definition, _File]


class _Environment:
    """os.environ of a program, on top of that of the process in which it begins."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = base
        self._changed: dict[str | None, Any] = {}
        self._lasting: set[str | None] = set()

    def change(self, change: Change) -> None:
        if change.unknown == "function":
            self._lasting.add(change.name)
        is_known = not change.unknown and change.name not in self._lasting
        self._changed[change.name] = change.value if is_known else UNKNOWN

    def read(self, name: Any, *, is_expected: bool = False) -> Any:
        """Return the value, None or UNKNOWN; `is_expected`: the program takes it for granted."""
        value = UNKNOWN
        if isinstance(name, str) and None not in self._changed:
            if name in self._changed:
                value = self._changed[name]
            elif name not in OF_EACH_RANK:
                value = self._base.get(name)
                if value is None and is_expected:
                    with suppress(KeyError):  # where it will run, it will be there
                        return self._base[name]
        return UNKNOWN if is_expected and value is None else value


class _Reader:
    """Goes through a program. `call` and `run` begin, `run_the_rest` ends."""

    def __init__(self, path: Path, environ: Mapping[str, str], installed: Container[str]) -> None:
        self.events: list[Event] = []
        self.sources: list[SourceFile] = []
        self._main = path
        self._environment = _Environment(environ)
        self._installed = installed
        self._folders = [path.parent]
        """Folders that the program looks for modules in first."""
        self._modules: dict[str, _File | None] = {}
        self._file: _File
        self._line = 1
        self._is_certain = True
        self._in_function = False
        self._functions: dict[str, list[_Function]] = {}
        self._mentioned: set[str] = set()
        self._is_any_mentioned = False
        self._waiting: list[_Function] = []
        self._done: set[ast.AST] = set()
        self._other_names: dict[str, set[str]] = {}
        """Names under which functions are imported -> their own."""
        self._environ_names = {"environ"}
        self._has_moved = False

    def open_file(self, path: Path, name: str, package: str) -> _File:
        """Read a file; raises OSError, SyntaxError or ValueError."""
        source = read_bytes(path, most_bytes=MOST_SOURCE_BYTES)
        try:
            file = _File(path, name, package, ast.parse(source))
        except RecursionError as error:
            raise ValueError(str(error)) from None
        self.sources.append(SourceFile(path=path, source=source, tree=file.tree))
        self._environ_names |= set(_names_of_environ(file.tree))
        return file

    def run(self, main: _File, first_on_path: Path | None) -> None:
        """Follow a script, or a module that is below a folder."""
        self._file = main
        if first_on_path is not None:
            self._folders = [first_on_path]
            if self._main.is_relative_to(first_on_path):
                parts = self._main.parent.relative_to(first_on_path).parts
                main.package = ".".join(parts)
        if main.package:
            self._import(main.package)
        self._block(main.tree.body)

    def call(self, main: _File, module: str, name: str) -> None:
        """Follow a function: after its module is imported, or alone, if a script is its module."""
        self._file = main
        if module == "__main__" or "<" in name:
            nodes = [node for node in main.tree.body if getattr(node, "name", None) == name]
            parts = [part for node in nodes for part in ast.walk(node)]
            self._declare(main.tree.body, {part.id for part in parts if isinstance(part, ast.Name)})
        else:
            parents = self._main.parents
            up = module.count(".") + (self._main.name == "__init__.py")
            self._folders = [parents[min(up, len(parents) - 1)]]
            imported = self._import(module)
            if imported is None:
                return
            self._file = imported
        found: Any = self._file.tree
        for part in name.split("."):
            body = getattr(found, "body", ())
            found = next((node for node in body if getattr(node, "name", None) == part), None)
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        self._done.add(found)
        for at, node in enumerate(found.body):
            self._statement(node)
            if any(isinstance(part, ast.Return | ast.Yield) for part in ast.walk(node)):
                with self._perhaps():
                    self._block(found.body[at + 1 :])
                return

    def run_the_rest(self) -> None:
        """Follow functions that are never mentioned: they may be called all the same. What those of
        own modules import is left to the ranks."""
        events = self.events
        for node, file in list(chain(*self._functions.values())):
            before = len(events)
            self._waiting.append((node, file))
            self._run_waiting()
            if file.path != self._main:
                events[before:] = [event for event in events[before:] if isinstance(event, Change)]

    def _declare(self, body: Sequence[ast.stmt], used: Container[str]) -> None:
        """Follow the top of a file for a function that is sent without it: the modules that it uses
        go with it, and others perhaps."""
        for node in body:
            if isinstance(node, ast.Try):
                self._declare(node.body, used)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self._statement(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
                is_used = any(name in used for name in names)
                with nullcontext() if is_used else self._perhaps():
                    self._statement(node)

    # Statements.

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        self._line = node.lineno
        match node:
            case ast.Assign() | ast.AnnAssign():
                self._assign(node)
            case ast.AugAssign() if self._is_environ(node.target):
                self._update([node.value])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._register(node, (node.name,))
            case ast.ClassDef():
                self._define_class(node)
            case ast.If():
                self._branch(node)
            case ast.Try():
                with self._perhaps() if node.handlers else nullcontext():
                    self._block([*node.body, *node.orelse])
                    for handler in node.handlers:
                        self._parts(handler)
                self._block(node.finalbody)
            case ast.Import() | ast.ImportFrom():
                self._import_names(node)
            case _:
                self._parts(node)
        if not self._in_function:
            self._run_waiting()

    def _parts(self, node: ast.AST) -> None:
        """Follow other statements (with, match, for, ...), of which parts may not run, or often."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                with self._perhaps():
                    self._statement(part)
            elif isinstance(part, ast.expr):
                self._look(part, is_whole=isinstance(node, ast.Expr))
            else:
                self._parts(part)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = self._value(node.value)
        if not self._is_environ(node.value):
            self._look(node.value, is_whole=True)
        elif not all(getattr(target, "id", "") in self._environ_names for target in targets):
            self._set(UNKNOWN, UNKNOWN)
        for target in targets:
            if isinstance(target, ast.Subscript) and self._is_environ(target.value):
                self._set(self._value(target.slice), value)
            elif not isinstance(target, ast.Name):
                self._look(target)
            elif self._is_certain and self._file.bound[target.id] == 1:
                self._file.values[target.id] = value

    def _branch(self, node: ast.If) -> None:
        test = self._value(node.test)
        self._look(node.test)
        if test is not UNKNOWN:
            self._block(node.body if test else node.orelse)
            return
        with self._perhaps():
            self._block([*node.body, *node.orelse])

    def _define_class(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self._look(part)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._register(statement, (node.name, statement.name))
            else:
                self._statement(statement)
        if node.decorator_list:
            self._mention(node.name)

    def _import_names(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._import(alias.name)
            return
        relative = "." * node.level + (node.module or "")
        try:
            base = importlib.util.resolve_name(relative, self._file.package)
        except ImportError:  # it is outside of the packages
            return
        module = self._import(base)
        for alias in node.names:
            if alias.asname is not None:
                self._other_names.setdefault(alias.asname, set()).add(alias.name)
            is_bound = module is not None and module.bound[alias.name]
            if base in self._modules and not is_bound and alias.name != "*":
                self._import(f"{base}.{alias.name}")

    # Functions.

    def _register(self, node: _Definition, names: tuple[str, ...]) -> None:
        """A function is defined, which the mention of any of the names may call."""
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self._look(part)
        is_special = names == (node.name,) and node.name.startswith("__")  # such as __getattr__
        may_be_called = node.decorator_list or not self._mentioned.isdisjoint(names)
        if self._in_function or self._is_any_mentioned or is_special or may_be_called:
            self._waiting.append((node, self._file))
            return
        for name in names:
            self._functions.setdefault(name, []).append((node, self._file))

    def _mention(self, name: str) -> None:
        if name in self._mentioned:
            return
        self._mentioned.add(name)
        self._waiting += self._functions.pop(name, [])
        for other in self._other_names.get(name, ()):
            self._mention(other)
        if name in _FIND_BY_NAME:
            self._is_any_mentioned = True
            for function in [*self._functions]:
                self._mention(function)

    def _run_waiting(self) -> None:
        while self._waiting:
            node, file = self._waiting.pop()
            if node not in self._done:
                self._done.add(node)
                with self._later(file):
                    self._block(node.body)

    @contextmanager
    def _perhaps(self) -> Iterator[None]:
        """Follow code that may not run."""
        before, self._is_certain = self._is_certain, False
        try:
            yield
        finally:
            self._is_certain = before

    @contextmanager
    def _later(self, file: _File) -> Iterator[None]:
        """Follow code that may run at any time from here on."""
        before = self._in_function, self._file, self._line
        self._in_function, self._file = True, file
        try:
            with self._perhaps():
                yield
        finally:
            self._in_function, self._file, self._line = before

    # Modules.

    def _import(self, dotted: str) -> _File | None:
        """Import a module as `import a.b` does; its file, where it is the user's own."""
        top = dotted.partition(".")[0]
        if top in sys.stdlib_module_names or top == "hpcdist":
            return None
        if not self._is_own(top):
            place = Place(file=self._file.path, line=self._line)
            event = Import(module=dotted, is_certain=self._is_certain, place=place)
            self.events.append(event)
            return None
        file = None
        for name in accumulate(dotted.split("."), "{}.{}".format):
            if name not in self._modules:
                file = self._modules[name] = None
                self._enter(name)
            file = self._modules[name]
        return file

    def _enter(self, name: str) -> None:
        """Follow an own module where it is imported for the first time."""
        place = name.replace(".", "/")
        files = (
            folder / end
            for folder in self._folders
            for end in (f"{place}/__init__.py", f"{place}.py")
        )
        path = next((path for path in files if path.is_file()), None)
        if path is None or len(self._modules) > _MOST_FILES:
            return
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        try:
            file = self.open_file(path, name, package)
        except (OSError, SyntaxError, ValueError):
            return
        self._modules[name] = file
        before = self._file, self._line
        self._file = file
        self._block(file.tree.body)
        self._file, self._line = before

    def _is_own(self, top: str) -> bool:
        """Return True if a package is in the program's folders, or outside of installed ones."""
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

    # Expressions.

    def _look(self, node: ast.AST, *, is_whole: bool = False) -> None:
        """Follow what an expression mentions and sets: perhaps, unless it is a whole statement."""
        if isinstance(node, ast.Call):
            with nullcontext() if is_whole else self._perhaps():
                self._look_at_call(node)
        elif self._is_environ(node):
            self._set(UNKNOWN, UNKNOWN)
        elif isinstance(node, ast.Lambda):
            with self._later(self._file):
                self._look(node.body)
        elif isinstance(node, ast.Subscript) and self._is_environ(node.value):
            self._look(node.slice)
            if not isinstance(node.ctx, ast.Load):
                removed = None if isinstance(node.ctx, ast.Del) else UNKNOWN
                self._set(self._value(node.slice), removed)
        else:
            self._mention(getattr(node, "attr", getattr(node, "id", "")))
            copies = isinstance(node, ast.Compare | ast.Dict | ast.BinOp)
            self._look_at(ast.iter_child_nodes(node), but_environ=copies)

    def _look_at(self, nodes: Iterable[ast.AST], *, but_environ: bool) -> None:
        for node in nodes:
            if not (but_environ and self._is_environ(node)):
                self._look(node)

    def _look_at_call(self, node: ast.Call) -> None:
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        is_of_environ = isinstance(function, ast.Attribute) and self._is_environ(function.value)
        if is_of_environ:
            self._call_of_environ(name, node)
        else:
            self._follow_call(name, node)
            self._look(function)
        is_read = isinstance(function, ast.Name) and name in _ONLY_READ
        self._look_at(node.args, but_environ=is_of_environ or is_read)
        for keyword in node.keywords:
            is_copied = keyword.arg in {None, "env"}  # of a new process, as subprocess calls it
            self._look_at([keyword.value], but_environ=is_copied)

    def _follow_call(self, name: str, node: ast.Call) -> None:
        """Do what the call of a function of this name does, wherever it comes from."""
        first = self._value(node.args[0]) if node.args else UNKNOWN
        match name:
            case "exec" | "eval" if isinstance(node.func, ast.Attribute):
                pass
            case "exec" | "eval" | "run_path" | "run_module":
                self._set(UNKNOWN, UNKNOWN)
            case "putenv" | "unsetenv":
                self._set(first, UNKNOWN)
            case "import_module" | "__import__" if isinstance(first, str) and first[:1] != ".":
                self._import(first)
            case "import_module" | "__import__":  # an own one perhaps, which may set any variable
                self._set(UNKNOWN, UNKNOWN)
            case "append" | "insert" if node.args:
                folder = self._value(node.args[-1])
                if isinstance(folder, str) and ast.unparse(node.func).startswith("sys.path."):
                    self._folders.append(Path(folder))
            case "chdir":
                self._has_moved = True
            case "load_dotenv":
                self._load_dotenv(node)

    def _call_of_environ(self, method: str, node: ast.Call) -> None:
        values = [self._value(part) for part in node.args]
        if method == "setdefault" and len(values) == 2:
            value = self._environment.read(values[0])
            if value is None or value is UNKNOWN:
                self._set(values[0], values[1] if value is None else UNKNOWN)
        elif method == "pop" and values:
            self._set(values[0], None)
        elif method == "update":
            self._update(node.args)
            for keyword in node.keywords:
                value = self._value(keyword.value)
                self._set(UNKNOWN if keyword.arg is None else keyword.arg, value)
        elif method not in _READS:
            self._set(UNKNOWN, UNKNOWN)

    def _update(self, args: Sequence[ast.expr]) -> None:
        for part in args:
            if not isinstance(part, ast.Dict):
                self._set(UNKNOWN, UNKNOWN)
                continue
            for key, value in zip(part.keys, part.values, strict=True):
                self._set(UNKNOWN if key is None else self._value(key), self._value(value))

    def _load_dotenv(self, node: ast.Call) -> None:
        """Look for a file as python-dotenv does: from the folder of the calling file upwards."""
        if node.args or node.keywords:
            self._set(UNKNOWN, UNKNOWN)
            return
        files = (folder / ".env" for folder in self._file.path.parents)
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            return
        text = read_bytes(found, most_bytes=_MOST_DOTENV_BYTES).decode(errors="replace")
        for name in _NAME_IN_DOTENV.findall(text):
            if self._environment.read(name) in {None, UNKNOWN}:
                self._set(name, UNKNOWN)

    def _set(self, name: Any, value: Any) -> None:
        """Set a variable, or remove it (None), for what follows."""
        unknown: Literal["", "value", "condition", "function"] = ""
        if self._in_function:
            unknown = "function"
        elif not isinstance(name, str) or not isinstance(value, str | None):
            unknown = "value"
        elif not self._is_certain:
            unknown = "condition"
        change = Change(
            name=name if isinstance(name, str) else None,
            value=None if unknown else value,
            unknown=unknown,
            place=Place(file=self._file.path, line=self._line),
        )
        self._environment.change(change)
        self.events.append(change)

    def _is_environ(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return node.attr == "environ"
        return isinstance(node, ast.Name) and node.id in self._environ_names

    # Values.

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or UNKNOWN; what it sets is not followed."""
        value = UNKNOWN
        match node:
            case ast.Constant():
                value = node.value
            case ast.Name() if node.id in self._file.values:
                value = self._file.values[node.id]
            case ast.Name() | ast.Attribute():
                value = _CONSTANTS.get(ast.unparse(node), UNKNOWN)
            case ast.JoinedStr():
                parts = [self._value(part) for part in node.values]
                value = UNKNOWN if UNKNOWN in parts else "".join(map(str, parts))
            case ast.FormattedValue(conversion=-1, format_spec=None):
                value = self._value(node.value)
            case ast.BinOp():
                value = _combined(type(node.op), self._value(node.left), self._value(node.right))
            case ast.Subscript() if self._is_environ(node.value):
                value = self._environment.read(self._value(node.slice), is_expected=True)
            case ast.Compare():
                value = self._value_of_comparison(node)
            case ast.Call():
                value = self._value_of_call(node)
        return value

    def _value_of_comparison(self, node: ast.Compare) -> Any:
        kind, left, right = type(node.ops[0]), self._value(node.left), node.comparators[0]
        if not self._is_environ(right):
            is_one = len(node.ops) == 1
            return _combined(kind, left, self._value(right)) if is_one else UNKNOWN
        value = self._environment.read(left)
        is_known = value is not UNKNOWN and kind in {ast.In, ast.NotIn}
        return (value is not None) is (kind is ast.In) if is_known else UNKNOWN

    def _value_of_call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        args = [self._value(part) for part in node.args]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if name == "os.getenv" or (name.endswith(".get") and self._is_environ(owner)):
            variable, default = [*args, None, None][:2]
            value = self._environment.read(variable)
            return default if value is None else value
        called = _CALLS.get(name)
        is_lost = self._has_moved and name in _OF_THE_FOLDER
        if called is None or is_lost or node.keywords or UNKNOWN in args:
            return UNKNOWN
        with suppress(Exception):
            return called(*args)
        return UNKNOWN


def _combined(kind: type[ast.AST], left: Any, right: Any) -> Any:
    combine = _OPERATORS.get(kind)
    if combine is None or left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    with suppress(Exception):
        return combine(left, right)
    return UNKNOWN


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Names as often as they are bound anywhere in a file; global ones twice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from (*node.names, *node.names)
        elif isinstance(name := getattr(node, "name", None), str):
            yield name


def _names_of_environ(tree: ast.Module) -> Iterator[str]:
    """Names that a file gives to os.environ."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name == "environ" and node.asname:
            yield node.asname
        elif isinstance(node, ast.Assign) and "environ" in {
            getattr(node.value, "attr", ""),
            getattr(node.value, "id", ""),
        }:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
