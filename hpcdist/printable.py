"""Text of others, as it may be printed."""

from __future__ import annotations


def one_line(text: str) -> str:
    """Text that prints as one line: newlines and other control characters, with which a name could
    act on the terminal, are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
