"""Calls of a program: its own functions are followed, and those that set variables are known."""

from __future__ import annotations

import ast
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcdist.job.program_text import folding
from hpcdist.job.program_text.environment import Environment
from hpcdist.job.program_text.events import Left, Trace
from hpcdist.job.program_text.expressions import Expressions
from hpcdist.job.program_text.files import OwnFiles
from hpcdist.job.program_text.folding import ENVIRON, UNKNOWN, External, is_known
from hpcdist.job.program_text.names import Class, Function, Module, Scope

_MOST_CALLS = 2000
_MOST_DEPTH = 50
_CAN_SET_ANY = frozenset(
    (
        *("builtins.exec", "builtins.eval", "os.environ.clear", "os.environ.popitem"),
        *("runpy.run_module", "runpy.run_path", "unittest.mock.patch.dict"),
    )
)
_LEAVES = frozenset(("sys.exit", "os._exit", "os.abort", "builtins.exit", "builtins.quit"))


class Calls(Expressions):
    """Follows calls; statements are another's business."""

    def __init__(
        self, trace: Trace, environment: Environment, files: OwnFiles, scope: Scope
    ) -> None:
        super().__init__(trace, environment, scope)
        self._files = files
        self._functions: list[Function] = []
        self._methods: dict[str, list[Function]] = {}
        self._calls: list[Function] = []
        self._inert: set[Any] = set()
        self._num_calls = 0
        self._has_moved = False

    @abstractmethod
    def _block(self, body: Iterable[ast.stmt]) -> None: ...

    @abstractmethod
    def _import(self, dotted: str) -> Module | None: ...

    def value_of_call(self, node: ast.Call) -> Any:
        called = UNKNOWN
        base: Any = UNKNOWN
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Attribute):
            base = self._value(node.func.value)
            if isinstance(base, Module | Class):
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
        self._trace.line = node.lineno
        if method and (is_known(base) or isinstance(base, dict | list)):
            if self._has_moved and folding.depends_on_folder(method, [base]):
                return UNKNOWN
            return folding.call_method(base, method, args, keywords)
        if not isinstance(called, External | Function | Class):
            # Of an object that is not known: one of the user's own may have such a method.
            for function in self._methods.get(method, ()):
                self._call_perhaps(function)
        return self._call_value(called, args, keywords)

    def _call_value(self, called: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
        if isinstance(called, Function):
            return self._call(called, args, keywords)
        if isinstance(called, Class):
            begin = called.names.get("__init__")
            if isinstance(begin, Function):
                self._call(begin, [UNKNOWN, *args], keywords)
            return UNKNOWN
        if not isinstance(called, External):
            self._give([*args, *keywords.values()], is_looked_at=False)
            return UNKNOWN
        if called.name in _KNOWN:
            return _KNOWN[called.name](self, args, keywords)
        if called.name in _CAN_SET_ANY:
            self._environment.set_any()
        elif called.name in _LEAVES:
            raise Left(is_return=False)
        if self._has_moved and folding.depends_on_folder(called.name, args):
            return UNKNOWN
        value = folding.call(called.name, args, keywords)
        if value is UNKNOWN:
            self._give([*args, *keywords.values()], is_looked_at=_only_looks(called.name))
        return value

    def _give(self, args: list[Any], *, is_looked_at: bool) -> None:
        """Arguments of a call that is not followed: it may call them, and change them."""
        for argument in args:
            if isinstance(argument, Function):
                self._call_perhaps(argument)
            elif argument == ENVIRON and not is_looked_at:
                self._environment.set_any()
            elif isinstance(argument, Class | Module):
                plain = [name for name, value in argument.names.items() if is_known(value)]
                argument.names |= dict.fromkeys(plain, UNKNOWN)
            elif not is_looked_at:
                folding.spoil(argument)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Function:
        arguments = node.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        values = [self._value(default) for default in arguments.defaults]
        defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if default is not None:
                defaults[one.arg] = self._value(default)
        function = Function(node, self._scope, defaults)
        self._functions.append(function)
        return function

    def _call_perhaps(self, function: Function) -> None:
        with self._trace.perhaps():
            self._call(function, [], {}, is_seen=False)

    def _call(
        self, function: Function, args: list[Any], keywords: dict[str, Any], *, is_seen: bool = True
    ) -> Any:
        """Follow a call; `is_seen`: its arguments are those of the program."""
        function.was_called = True
        if function in self._calls:
            return UNKNOWN
        names = self._parameters(function, args, keywords, is_seen=is_seen)
        key = (
            function,
            self._trace.is_certain,
            repr(sorted(names.items(), key=lambda pair: pair[0])),
        )
        if key in self._inert:
            return UNKNOWN
        if len(self._calls) > _MOST_DEPTH or self._num_calls > _MOST_CALLS:
            self._environment.set_any()
            return UNKNOWN
        self._num_calls += 1
        scope = Scope(function.scope.module, function.scope)
        scope |= names
        num_events, num_functions = len(self._trace.program.events), len(self._functions)
        line = self._trace.line
        value = self._follow(function, scope)
        for inner in self._functions[num_functions:]:  # it may return them, as decorators do
            if not inner.was_called and inner.scope is scope:
                self._call_perhaps(inner)
        self._trace.line = line
        if len(self._trace.program.events) == num_events and not is_known(value):
            self._inert.add(key)
        return value

    def _follow(self, function: Function, scope: Scope) -> Any:
        node = function.node
        before = self._trace.is_certain, self._trace.may_have_left
        self._trace.may_have_left = False
        self._calls.append(function)
        try:
            with self._within(scope):
                if isinstance(node, ast.Lambda):
                    return self._value(node.body)
                if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node)):
                    self._trace.is_certain = False  # it runs bit by bit
                self._block(node.body)
        except Left as left:
            if not left.is_return:
                raise
            return UNKNOWN if self._trace.may_have_left else left.value
        finally:
            self._calls.pop()
            self._trace.is_certain, self._trace.may_have_left = before
        return UNKNOWN

    def _parameters(
        self, function: Function, args: list[Any], keywords: dict[str, Any], *, is_seen: bool
    ) -> dict[str, Any]:
        arguments = function.node.args
        positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        names = [*positional, *(one.arg for one in arguments.kwonlyargs)]
        values = dict.fromkeys(names, UNKNOWN)
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

    # Of what is known by its name.

    def getenv(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        name, default = [*args, keywords.get("default"), UNKNOWN][:2]
        is_there = self._environment.has(name)
        if is_there is UNKNOWN:
            return UNKNOWN
        return self._environment.read(name) if is_there else default

    def setdefault(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        name, value = [*args, UNKNOWN, UNKNOWN][:2]
        self._environment.set_default(name, value)
        return self._environment.read(name)

    def pop(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        name = [*args, UNKNOWN][0]
        value = self._environment.read(name)
        self._environment.set(name, None)
        return value

    def update(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        self._environment.update(args, keywords)

    def move(self, _args: list[Any], _keywords: dict[str, Any]) -> Any:
        self._has_moved = True
        return None

    def putenv(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        self._environment.set(*[*args, UNKNOWN, UNKNOWN][:2], is_hidden=True)

    def unsetenv(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        self._environment.set([*args, UNKNOWN][0], None, is_hidden=True)

    def load_dotenv(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        """As python-dotenv does it: from the folder of the calling file upwards."""
        names = ("dotenv_path", "stream", "verbose", "override", "interpolate", "encoding")
        given = dict(zip(names, args, strict=False)) | keywords
        path, is_override = given.get("dotenv_path"), given.get("override", False)
        if path is None:
            path = self.find_dotenv([], {})
        if given.get("stream") is not None or not isinstance(is_override, bool):
            self._environment.set_any()
        else:
            self._environment.load_file(path, is_override=is_override)
        return UNKNOWN

    def find_dotenv(self, args: list[Any], keywords: dict[str, Any]) -> Any:
        if args or keywords:
            return UNKNOWN
        at = self._scope.module.path
        return next((str(one / ".env") for one in at.parents if (one / ".env").is_file()), "")

    def import_by_name(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        name = [*args, UNKNOWN][0]
        if not isinstance(name, str) or name.startswith("."):
            with self._trace.perhaps():  # an own one, and so any
                self._environment.set_any()
            return UNKNOWN
        module = self._import(name)
        return External(name) if module is None else module

    def look_in(self, args: list[Any], _keywords: dict[str, Any]) -> Any:
        folder = [UNKNOWN, *args][-1]
        if isinstance(folder, str | Path):
            self._files.folders.append(Path(folder))


_KNOWN: Mapping[str, Callable[[Calls, list[Any], dict[str, Any]], Any]] = {
    "builtins.__import__": Calls.import_by_name,
    "dotenv.find_dotenv": Calls.find_dotenv,
    "dotenv.load_dotenv": Calls.load_dotenv,
    "dotenv.main.load_dotenv": Calls.load_dotenv,
    "importlib.import_module": Calls.import_by_name,
    "os.chdir": Calls.move,
    "os.environ.get": Calls.getenv,
    "os.environ.pop": Calls.pop,
    "os.environ.setdefault": Calls.setdefault,
    "os.environ.update": Calls.update,
    "os.getenv": Calls.getenv,
    "os.putenv": Calls.putenv,
    "os.unsetenv": Calls.unsetenv,
    "sys.path.append": Calls.look_in,
    "sys.path.insert": Calls.look_in,
}
"""External name -> what follows a call of it."""


def _only_looks(name: str) -> bool:
    """Whether a call leaves what it is given as it is: it copies or prints it."""
    changes = {"setattr", "delattr", "update", "shuffle", "heapify"}
    top, _, last = name.partition(".")[0], "", name.rpartition(".")[2]
    return top in sys.stdlib_module_names | {"builtins"} and last not in changes
