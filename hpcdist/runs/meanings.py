"""The meanings of states, verdicts, exit codes and words, from the tables of
docs/terms/exit-codes.md, which `hpcdist explain` prints."""

from __future__ import annotations

import itertools
import signal

from hpcdist.base.errors import EXIT_CODES
from hpcdist.base.files import shipped_folder


def meanings(name: str, column: str = "meaning") -> dict[str, str]:
    """Return the page's table of these two columns, by the first one: `state`, `kind` or `word`."""
    lines = (shipped_folder("docs/terms") / "exit-codes.md").read_text().splitlines()
    rows = lines[lines.index(f"| {name} | {column} |") + 2 :]
    table = itertools.takewhile(lambda line: line.startswith("|"), rows)
    return dict(row.strip("| ").split(" | ", 1) for row in table)


def advice(kind: str) -> list[str]:
    """Return what helps against a kind of verdict, the most usual first; RUN stands for the run."""
    return meanings("kind", "what helps")[kind].split("<br>")


def exit_code_in_words(code: int) -> str | None:
    """Return what an exit code of hpcdist or of a program means; None for a code that a program
    has chosen for itself."""
    if code in EXIT_CODES:
        return EXIT_CODES[code]
    try:
        return f"the shell's code for a program that {signal.Signals(code - 128).name} ended"
    except ValueError:
        return None
