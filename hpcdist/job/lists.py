"""Keys of a job whose values are lists of what is to be run or timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import JobError


def check_each_once(
    key: str, values: Sequence[Any], *, hint: str, show: Callable[[Any], str] = str
) -> None:
    """Raise JobError where a value of `key` is there more than once, as it would be shown."""
    shown = [show(value) for value in values]
    twice = next((text for text in shown if shown.count(text) > 1), None)
    if twice is not None:
        message = f"{key} has {twice} {shown.count(twice)} times"
        raise JobError(message, hint=f"list each once; {hint}")
