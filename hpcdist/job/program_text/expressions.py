"""Expressions of a program: what they are worth, and the calls in them."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpcdist.job.program_text import folding
from hpcdist.job.program_text.environment import Environment
from hpcdist.job.program_text.events import Trace
from hpcdist.job.program_text.folding import ENVIRON, UNKNOWN, is_known
from hpcdist.job.program_text.names import Class, Function, Module, Scope


class Expressions(ABC):
    """Works out values; statements and calls are another's business."""

    def __init__(self, trace: Trace, environment: Environment, scope: Scope) -> None:
        self._trace = trace
        self._environment = environment
        self._scope = scope

    @abstractmethod
    def run_other(self, node: ast.AST) -> None: ...

    @abstractmethod
    def value_of_call(self, node: ast.Call) -> Any: ...

    @abstractmethod
    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Function: ...

    def _value(self, node: ast.expr) -> Any:
        """What an expression is worth; the calls in it are followed."""
        follow = _VALUES.get(type(node))
        return self.value_of_other(node) if follow is None else follow(self, node)

    def value_of_other(self, node: ast.expr) -> Any:
        self.run_other(node)
        return UNKNOWN

    def value_of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def value_of_name(self, node: ast.Name) -> Any:
        return self._scope.find(node.id)

    def value_of_tuple(self, node: ast.Tuple | ast.List) -> Any:
        values = [self._value(part) for part in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def value_of_dict(self, node: ast.Dict) -> Any:
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

    def value_of_attribute(self, node: ast.Attribute) -> Any:
        base = self._value(node.value)
        if isinstance(base, Module):
            return base.names.get(node.attr, UNKNOWN)
        if isinstance(base, Class):
            return base.names.get(node.attr, UNKNOWN)
        return folding.attribute(base, node.attr)

    def value_of_subscript(self, node: ast.Subscript) -> Any:
        base, key = self._value(node.value), self._value(node.slice)
        return self._environment.read(key) if base == ENVIRON else folding.item(base, key)

    def value_of_joined_str(self, node: ast.JoinedStr) -> Any:
        parts = [self._value(part) for part in node.values]
        return "".join(parts) if all(isinstance(part, str) for part in parts) else UNKNOWN

    def value_of_formatted_value(self, node: ast.FormattedValue) -> Any:
        spec = "" if node.format_spec is None else self._value(node.format_spec)
        return folding.text(self._value(node.value), node.conversion, spec)

    def value_of_bin_op(self, node: ast.BinOp) -> Any:
        return folding.combine(type(node.op), self._value(node.left), self._value(node.right))

    def value_of_unary_op(self, node: ast.UnaryOp) -> Any:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not) and is_known(value):
            return not value
        is_number = isinstance(value, int | float) and isinstance(node.op, ast.USub)
        return -value if is_number else UNKNOWN

    def value_of_compare(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            return self.value_of_other(node)
        left, right = self._value(node.left), self._value(node.comparators[0])
        kind = type(node.ops[0])
        if right == ENVIRON and kind in {ast.In, ast.NotIn}:
            is_there = self._environment.has(left)
            return is_there if kind is ast.In or is_there is UNKNOWN else not is_there
        return folding.combine(kind, left, right)

    def value_of_bool_op(self, node: ast.BoolOp) -> Any:
        decides = isinstance(node.op, ast.Or)
        value = self._value(node.values[0])
        for part in node.values[1:]:
            if not is_known(value):
                later = UNKNOWN  # where the part leaves the program
                with self._trace.perhaps():
                    later = self._value(part)
                # `unknown and False` is false whatever the unknown is, where only that is asked.
                value = later if is_known(later) and bool(later) is decides else UNKNOWN
                continue
            if bool(value) is decides:
                return value
            value = self._value(part)
        return value

    def value_of_if_exp(self, node: ast.IfExp) -> Any:
        test = self._value(node.test)
        if is_known(test):
            return self._value(node.body if test else node.orelse)
        values = []
        for branch in (node.body, node.orelse):
            with self._trace.perhaps():
                values.append(self._value(branch))
        is_same = len(values) == 2 and is_known(values[0]) and values[0] == values[1]
        return values[0] if is_same else UNKNOWN

    def value_of_named_expr(self, node: ast.NamedExpr) -> Any:
        value = self._value(node.value)
        self._assign(node.target, value)
        return value

    def value_of_lambda(self, node: ast.Lambda) -> Any:
        return self._function(node)

    def value_of_comprehension(self, node: Any) -> Any:
        with self._trace.perhaps(), self._within(Scope(self._scope.module, self._scope)):
            for generator in node.generators:
                self._value(generator.iter)
                self._forget(generator.target)
            self.run_other(node)
        return UNKNOWN

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id, value)
        elif isinstance(target, ast.Subscript):
            base, key = self._value(target.value), self._value(target.slice)
            if base == ENVIRON:
                self._environment.set(key, value)
            folding.spoil(base)
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(self._value(target.value), target.attr, value)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, list | tuple) else []
            if len(parts) != len(target.elts):
                parts = [UNKNOWN] * len(target.elts)
            for part, worth in zip(target.elts, parts, strict=True):
                self._assign(part, worth)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, UNKNOWN)

    def _assign_attribute(self, base: Any, name: str, value: Any) -> None:
        if isinstance(base, Module | Class):
            base.names[name] = UNKNOWN if is_known(value) else value
        elif folding.attribute(base, name) == ENVIRON:
            self._environment.set_any()

    def _bind(self, name: str, value: Any) -> None:
        is_lasting = self._trace.is_certain and name not in self._scope.module.rebound
        self._scope[name] = UNKNOWN if is_known(value) and not is_lasting else value

    def _forget(self, node: ast.AST) -> None:
        """What is assigned somewhere below a node has no known value."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                self._scope[part.id] = UNKNOWN

    @contextmanager
    def _within(self, scope: Scope) -> Iterator[None]:
        before, line = self._scope, self._trace.line
        self._scope, self._trace.file = scope, scope.module.path
        try:
            yield
        finally:
            self._scope, self._trace.file, self._trace.line = before, before.module.path, line


_VALUES: Mapping[type[ast.expr], Callable[[Any, Any], Any]] = {
    ast.Constant: Expressions.value_of_constant,
    ast.Name: Expressions.value_of_name,
    ast.Tuple: Expressions.value_of_tuple,
    ast.Dict: Expressions.value_of_dict,
    ast.Attribute: Expressions.value_of_attribute,
    ast.Subscript: Expressions.value_of_subscript,
    ast.JoinedStr: Expressions.value_of_joined_str,
    ast.FormattedValue: Expressions.value_of_formatted_value,
    ast.BinOp: Expressions.value_of_bin_op,
    ast.UnaryOp: Expressions.value_of_unary_op,
    ast.Compare: Expressions.value_of_compare,
    ast.BoolOp: Expressions.value_of_bool_op,
    ast.IfExp: Expressions.value_of_if_exp,
    ast.NamedExpr: Expressions.value_of_named_expr,
    ast.Lambda: Expressions.value_of_lambda,
    ast.Call: lambda walk, node: walk.value_of_call(node),
    ast.List: Expressions.value_of_tuple,
    ast.ListComp: Expressions.value_of_comprehension,
    ast.SetComp: Expressions.value_of_comprehension,
    ast.DictComp: Expressions.value_of_comprehension,
    ast.GeneratorExp: Expressions.value_of_comprehension,
}
