"""Programs that start their ranks themselves, as by mp.spawn: under a launcher they wait forever.

A launcher starts one rank per GPU. Where each of these starts ranks of its own, nobody serves the
store that they want to meet at. Such a program is known by its text: it calls a function that
starts processes, and joins a process group. One that reads RANK or its like knows of launchers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpcdist.job.program_text import Place, SourceFile

_MULTIPROCESSING = frozenset(("multiprocessing", "torch.multiprocessing"))
_STARTS_ALL = frozenset(("spawn", "start_processes"))
_STARTS_ONE = "Process"
_ADDRESSES = frozenset(("MASTER_ADDR", "MASTER_PORT"))
_KNOWN_TO_LAUNCHED = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"))
_ASKS_FOR_LAUNCHER = "is_torchelastic_launched"
_JOINS = "init_process_group"
_IMPORTS_HYDRA = re.compile(r"^\s*(import|from)\s+hydra\b", re.MULTILINE)
HOW_TO_CHANGE = (
    "call the function that it starts once in each rank, with RANK and LOCAL_RANK of the "
    "environment as its numbers, and do not set MASTER_ADDR and MASTER_PORT"
)


def note_on_own_ranks(files: Sequence[SourceFile]) -> str | None:
    """Return what to change in a program that starts its ranks itself; None for all others."""
    nodes = [(file, node) for file in files for node in ast.walk(file.tree)]
    if not any(_name(node) == _JOINS for _, node in nodes) or any(
        _is_for_launchers(node) for _, node in nodes
    ):
        return None
    sets_address = any(_sets_address(node) for _, node in nodes)
    for file in files:
        for call, function in _starts(file.tree):
            if sets_address or function != _STARTS_ONE:
                place = Place(file=file.path, line=call.lineno)
                return (
                    f"{place} starts ranks by {ast.unparse(call.func)}, as hpcdist does: "
                    "each rank would start all of them again, and these would wait for "
                    f"each other forever ({HOW_TO_CHANGE})"
                )
    return None


def _starts(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Calls that start processes, with the functions' own names."""
    nodes = list(ast.walk(tree))
    modules, functions = _names_of_multiprocessing(nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            name = functions.get(getattr(node.func, "id", ""), "")
            if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in modules:
                name = node.func.attr
            if name in _STARTS_ALL or name == _STARTS_ONE:
                yield node, name


def _names_of_multiprocessing(nodes: Iterable[ast.AST]) -> tuple[set[str], dict[str, str]]:
    """Names that a file gives to the modules, and to their functions."""
    modules, functions = set(_MULTIPROCESSING), {}
    for node in nodes:
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if package + alias.name in _MULTIPROCESSING:
                modules.add(alias.asname or alias.name)
            elif package.rstrip(".") in _MULTIPROCESSING:
                functions[alias.asname or alias.name] = alias.name
    return modules, functions


def _is_for_launchers(node: ast.AST) -> bool:
    """Return True where a variable of launchers is read, or it is asked whether there is one."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=name), ctx=ast.Load()):
            return name in _KNOWN_TO_LAUNCHED
        case ast.Call():
            return _any_constant(node.args, _KNOWN_TO_LAUNCHED) and _name(node.func) in {
                "get",
                "getenv",
            }
        case ast.Compare(ops=[ast.In() | ast.NotIn()], left=ast.Constant(value=name)):
            return name in _KNOWN_TO_LAUNCHED
        case ast.Compare(ops=[ast.LtE() | ast.GtE()], left=ast.Set(elts=names)):
            return _any_constant(names, _KNOWN_TO_LAUNCHED)
    return _name(node) == _ASKS_FOR_LAUNCHER


def _sets_address(node: ast.AST) -> bool:
    match node:
        case ast.Subscript(slice=ast.Constant(value=name), ctx=ast.Store()):
            return name in _ADDRESSES
        case ast.Dict():
            return _any_constant(filter(None, node.keys), _ADDRESSES)
        case ast.keyword(arg=str(name)):
            return name in _ADDRESSES or name == "init_method"
    return False


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _any_constant(nodes: Iterable[ast.AST], values: frozenset[str]) -> bool:
    return any(isinstance(node, ast.Constant) and node.value in values for node in nodes)


def note_on_multirun(path: Path, arguments: Sequence[str], *, num_ranks: int) -> str | None:
    """Return a note on a program of several ranks that has Hydra do a sweep: each of them would."""
    if num_ranks == 1 or not {"-m", "--multirun"}.intersection(arguments):
        return None
    try:
        text = path.read_text(errors="replace")
    except OSError:  # it is read again where it runs
        return None
    if _IMPORTS_HYDRA.search(text) is None:
        return None
    return (
        "Hydra's --multirun has every rank do the whole sweep, job after job; a run for each "
        "combination: --sweep 'args=[lr=0.1],[lr=0.01]'"
    )
