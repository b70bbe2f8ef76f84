"""Write the tables of docs/exit-codes.md from hpcdist/base/errors.py and hpcdist/runs/meanings.py;
what stands around them stays.

python docs/generate_exit_codes.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hpcdist.base.errors import EXIT_CODES
from hpcdist.runs.meanings import KINDS, STATES

PAGE = Path(__file__).parent / "exit-codes.md"


def page(text: str) -> str:
    """Return the page with its tables as they are to be."""
    tables = {
        ("code", "meaning"): EXIT_CODES.items(),
        ("state", "meaning"): STATES.items(),
        ("kind", "meaning"): ((name, kind.meaning) for name, kind in KINDS.items()),
        ("kind", "what helps"): ((name, " ".join(kind.advice)) for name, kind in KINDS.items()),
    }
    for header, rows in tables.items():
        head = _row(header) + "|---|---|\n"
        before, _, after = text.partition(head)
        text = before + head + "".join(map(_row, rows)) + re.sub(r"\A(?:\|.*\n)*", "", after)
    return text


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
