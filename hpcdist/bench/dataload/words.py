"""Words that sentences on loading share; pure."""

from __future__ import annotations

from collections.abc import Iterable

_WIDTH = 40
BRIEF = 24
"""For lines that have more to say."""


def shortened(text: str, width: int = _WIDTH) -> str:
    """As much of a list of transforms as a line, or a legend, has room for."""
    return text if len(text) <= width else f"{text[:width]}..."


def listed(names: Iterable[str]) -> str:
    """Names of transforms."""
    return ", ".join(map(shortened, names))


def capital(text: str) -> str:
    """A sentence, from what could follow a colon."""
    return text[:1].upper() + text[1:]


def with_workers(number: int) -> str:
    """So many in a rank: `with 2 workers`."""
    if not number:
        return "without workers"
    return f"with {number:,} worker{'' if number == 1 else 's'}"


def num_cpus(number: float) -> str:
    """`2 CPUs`, of which a quota may be a part: `0.5 CPUs`."""
    return f"{number:g} CPU{'' if number == 1 else 's'}"
