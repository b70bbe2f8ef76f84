"""Names near to a misspelt one, for error messages that list what is known."""

from __future__ import annotations

from collections.abc import Iterable

_SIMILAR = 0.6  # difflib's own limit for a good match


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`; None where none is like it."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=_SIMILAR)
    return matches[0] if matches else None


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """All known names, the one most like `name` first."""
    import difflib

    def unlikeness(other: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(a=name, b=other).ratio(), other

    return sorted(known, key=unlikeness)
