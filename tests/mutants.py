"""Counts the small faults that the tests find: `make mutants`.

Puts one fault at a time into the package (a comparison, a boolean operator, a sum, a number or a
branch is changed), runs the tests of its package and then the quick ones, and takes the fault
back. A fault that no test finds has survived: the tests have a gap, or the change makes
no difference to a user. The faults are drawn by a seed, at least one from each package.
"""

import argparse
import ast
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
QUICK = "base cluster data job machine monitor runs submission summary rank agent conformance lsf"
LIMIT_S = 900
"""For the tests of one fault."""

_PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
)
OPERATORS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
# Texts and paths are not subtracted or multiplied.
OPERATORS |= {ast.Sub: ast.Add, ast.Mult: ast.Div, ast.FloorDiv: ast.Mult}


class Mutant(NamedTuple):
    """One fault: what stands in a file between two offsets, and what is put there."""

    path: Path
    begin: int
    end: int
    new: str

    def __str__(self) -> str:
        text = self.path.read_bytes()
        line = 1 + text[: self.begin].count(b"\n")
        old = text[self.begin : self.end].decode()
        return f"{self.path.relative_to(ROOT)}:{line}: {old} -> {self.new}"


def changed(node: ast.AST) -> ast.AST | None:  # noqa: PLR0911 - one for each kind of change
    """A copy of an expression with one change, or None where nothing of it is changed."""
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in OPERATORS:
            return ast.Compare(left, [OPERATORS[type(operator)]()], comparators)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(OPERATORS[type(operator)](), values)
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            return ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
    return None


def mutants_of(path: Path) -> list[Mutant]:
    """All faults that can be put into a file."""
    text = path.read_text()
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    tree = ast.parse(text)
    # Annotations, and texts of f-strings, are no behaviour.
    parts = [
        part
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None), node)
        if part is not None and (part is not node or isinstance(node, ast.JoinedStr))
    ]
    skipped = {id(inner) for part in parts for inner in ast.walk(part)}
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr) or (new := changed(node)) is None:
            continue
        begin = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        new = f"({ast.unparse(ast.fix_missing_locations(new))})"
        found.append(Mutant(path, begin, end, new))
    return found


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "hpcdist").parts[0].removesuffix(".py")


def drawn(number: int, seed: int) -> list[Mutant]:
    """Faults of all packages: one of each, and the rest by the packages' sizes."""
    chance = random.Random(seed)
    rooms: dict[str, list[Mutant]] = {}
    for path in sorted((ROOT / "hpcdist").rglob("*.py")):
        rooms.setdefault(room_of(path), []).extend(mutants_of(path))
    chosen = [chance.choice(mutants) for mutants in rooms.values() if mutants]
    rest = [mutant for mutants in rooms.values() for mutant in mutants if mutant not in chosen]
    return (chosen + chance.sample(rest, max(0, number - len(chosen))))[:number]


def is_found(mutant: Mutant, processes: int) -> bool:
    room = room_of(mutant.path)
    names = [room, f"test_{room}.py", *QUICK.split()]
    tests = [f"tests/{name}" for name in dict.fromkeys(names) if (ROOT / "tests" / name).exists()]
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "--dist=loadfile"]
    command = [*pytest, "--no-loadscope-reorder", f"--numprocesses={processes}", *tests]
    original = mutant.path.read_bytes()
    try:
        before, after = original[: mutant.begin], original[mutant.end :]
        mutant.path.write_bytes(before + mutant.new.encode() + after)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    finally:
        mutant.path.write_bytes(original)
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=60, help="faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4, help="of the tests")
    options = parser.parse_args()
    mutants = drawn(options.number, options.seed)
    num_found = 0
    for mutant in mutants:
        begin_s = time.monotonic()
        found = is_found(mutant, options.processes)
        num_found += found
        result = "found" if found else "SURVIVED"
        print(f"{result:8} {time.monotonic() - begin_s:5.0f} s  {mutant}", flush=True)
    print(f"{num_found} of {len(mutants)} faults were found (seed {options.seed})")


if __name__ == "__main__":
    main()
