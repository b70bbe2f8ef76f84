"""The rooms before the schedulers know none of them by name."""

import ast
import re
from pathlib import Path

import hpcdist

ROOT = Path(hpcdist.__file__).parent
FILES = [
    *(path for room in ("submission", "doctor", "job") for path in (ROOT / room).glob("*.py")),
    *(ROOT / "cluster" / name for name in ("load.py", "channels.py")),
]
NAMES = re.compile(r"\b(slurm|lsf|pbs|azure)\b", re.IGNORECASE)


def code_without_docstrings(path):
    """Return what a file does, without what it says of it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            is_text = [
                isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
                for one in node.body
            ]
            node.body = [
                ast.Pass() if skip else one for one, skip in zip(node.body, is_text, strict=True)
            ]
    return ast.unparse(tree)


def test_nothing_about_one_scheduler_stands_outside_of_its_folder():
    named = {path.name: NAMES.findall(code_without_docstrings(path)) for path in FILES}
    assert {name: found for name, found in named.items() if found} == {}
