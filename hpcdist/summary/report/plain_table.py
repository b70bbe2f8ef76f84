"""A table as plain text, before anything is known of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PlainTable(NamedTuple):
    """A caption, headers with units, and rows of text; numbers stand right."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
