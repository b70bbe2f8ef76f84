"""Text that may be printed: what others wrote made harmless, numbers and ranks in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def one_line(text: str) -> str:
    """Text that prints as one line: newlines and other control characters, with which a name could
    act on the terminal, are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def as_utf8(text: str) -> str:
    """Text that any encoder takes: bytes of file names that are not UTF-8, which are halves of
    surrogate pairs in it, are escaped."""
    return text.encode(errors="backslashreplace").decode()


def count(number: int, noun: str) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def listed(ranks: Sequence[int]) -> str:
    """Ranks for a sentence: `rank 1`, `ranks 0, 2 and 3`; long lists as ranges."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts = _ranges(sorted(ranks))
    return "ranks " + (", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0])


def _ranges(ranks: Sequence[int]) -> list[str]:
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    shown: list[str] = []
    for part in parts:
        shown.extend([f"{part[0]}-{part[-1]}"] if len(part) > 3 else [str(rank) for rank in part])
    return shown
