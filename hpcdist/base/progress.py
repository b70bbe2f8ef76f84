"""How much of some long work is done: the rooms say it as they work, the command line shows it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Advance: TypeAlias = Callable[[], None]
"""Says that one more is done."""
Show: TypeAlias = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows some work, in a word or two, of so many parts."""


def _nothing() -> None:
    pass


def _show_nothing(_what: str, _total: int) -> AbstractContextManager[Advance]:
    return nullcontext(_nothing)


_show: Show = _show_nothing
_end: Callable[[], None] = _nothing


def show_by(show: Show, *, end: Callable[[], None]) -> None:
    """Have all work of this process shown; `end` takes away what is shown of work that was left."""
    global _show, _end
    _show, _end = show, end


def end() -> None:
    """Take away what is shown, also in the middle of work: an error is to be seen."""
    _end()


def track(items: Iterable[T], what: str, *, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show how many of them are done; `total` where they have no length."""
    number = len(items) if total is None and isinstance(items, Collection) else total or 0
    with _show(what, number) as advance:
        for item in items:
            yield item
            advance()
