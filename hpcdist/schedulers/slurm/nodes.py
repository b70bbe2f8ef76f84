"""Lists of nodes as Slurm writes them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_MOST = 100_000
"""Nodes; a larger list is damaged."""
_PART = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


def expand_nodes(text: str) -> list[str]:
    """`n[01-03,7],m1` -> n01, n02, n03, n7, m1; what is no list of nodes gives none."""
    if text.strip() in {"", "None assigned", "(null)", "Unknown"}:
        return []
    parts = (
        [list(_expand_ranges(ranges)) if ranges else [plain] for ranges, plain in pieces]
        for pieces in map(_PIECE.findall, _PART.findall(text.strip()))
    )
    names = ("".join(name) for pieces in parts for name in itertools.product(*pieces))
    return list(itertools.islice(names, _MOST))


def _expand_ranges(text: str) -> Iterator[str]:
    for one in text.split(","):
        first, _, last = one.partition("-")
        if first.isdecimal() and last.isdecimal() and int(last) - int(first) < _MOST:
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
        else:
            yield one
