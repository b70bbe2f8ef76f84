"""Text of others, as it may be printed."""

from __future__ import annotations


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
