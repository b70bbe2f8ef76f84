"""Counts the small faults that the tests find: `make mutants`.

Puts one fault at a time into the package (a comparison, a boolean operator, a sum, a number or a
branch is changed), runs the tests that are nearest to it and then the quick ones, and takes the
fault back. A fault that no test finds has survived: the tests have a gap, or the change makes
no difference to a user. The faults are drawn by a seed, at least one from each package.
"""

import argparse
import ast
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("base", "cluster", "data", "job", "machine", "monitor", "runs", "submission", "summary")
NEAREST = {
    "api": ("test_api.py",),
    "bench": ("bench", "summary"),
    "cli": ("cli",),
    "drill": ("drill",),
    "entry": ("runs", "agent"),
    "notify": ("agent",),
    "record": ("rank", "agent/test_script.py"),
    "schedulers": ("schedulers", "lsf", "pbs", "conformance", "submission"),
    "workloads": ("workloads", "agent"),
}
"""Tests of a package that do not stand in the folder of its name alone."""

_PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)
COMPARISONS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
SUMS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One fault: what stands in a file between two offsets, and what is put there."""

    path: Path
    begin: int
    end: int
    old: str
    new: str
    line: int

    def __str__(self) -> str:
        place = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{place}: {' '.join(self.old.split())[:60]} -> {' '.join(self.new.split())[:60]}"


def changed(node: ast.AST) -> ast.AST | None:  # noqa: PLR0911 - one for each kind of change
    """A copy of an expression with one change, or None where nothing of it is changed."""
    match node:
        case ast.Compare(left, [operator], comparators) if type(operator) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(operator)]()], comparators)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.BinOp(left, operator, right) if type(operator) in SUMS:
            if any(
                isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side)
                for side in (left, right)
            ):
                return None  # texts that are joined
            return ast.BinOp(left, SUMS[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
    return None


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


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
        old = text.encode()[begin:end].decode()
        new = f"({ast.unparse(ast.fix_missing_locations(new))})"
        found.append(Mutant(path, begin, end, old, new, node.lineno))
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


def killer(mutant: Mutant, processes: int, limit_s: float) -> str:
    """The stage of tests that finds a fault, or "" if none does."""
    room = room_of(mutant.path)
    nearest = [name for name in NEAREST.get(room, (room,)) if (ROOT / "tests" / name).exists()]
    stages = {"nearest": nearest, "quick": [name for name in QUICK if name not in nearest]}
    original = mutant.path.read_bytes()
    try:
        mutant.path.write_bytes(
            original[: mutant.begin] + mutant.new.encode() + original[mutant.end :]
        )
        for stage, names in stages.items():
            pytest = [sys.executable, "-m", "pytest", "-x", "-q", "--dist=loadfile"]
            tests = [f"tests/{name}" for name in names]
            command = [*pytest, f"--numprocesses={processes}", *tests]
            try:
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, timeout=limit_s, check=False
                )
            except subprocess.TimeoutExpired:
                return f"{stage}, by its time"
            if done.returncode not in {0, 5}:  # 5: no tests
                return stage
    finally:
        mutant.path.write_bytes(original)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=60, help="faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4, help="of the tests")
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds for the tests of one fault"
    )
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    options = parser.parse_args()
    mutants = drawn(options.number, options.seed)
    if options.list:
        print(*mutants, sep="\n")
        return
    killed = 0
    for mutant in mutants:
        begin = time.monotonic()
        stage = killer(mutant, options.processes, options.limit)
        killed += bool(stage)
        result = f"killed by {stage}" if stage else "SURVIVED"
        print(f"{result:24} {time.monotonic() - begin:5.0f} s  {mutant}", flush=True)
    print(f"{killed} of {len(mutants)} faults were found (seed {options.seed})")


if __name__ == "__main__":
    main()
