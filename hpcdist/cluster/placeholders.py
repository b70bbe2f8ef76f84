"""Texts of a profile with places to be filled in, such as num={gpus}."""

from __future__ import annotations

import re

_PLACE = re.compile(r"\{([^{}]*)\}")


def placeholders(text: str) -> list[str]:
    """The names in braces."""
    return _PLACE.findall(text)


def has_stray_brace(text: str) -> bool:
    """Whether there is a brace that belongs to no name."""
    return bool(re.search(r"[{}]", _PLACE.sub("", text)))


def fill(text: str, **values: str | int) -> str:
    """The text with the values in their places; a name without a value is a KeyError."""
    return _PLACE.sub(lambda place: str(values[place[1]]), text)
