"""What a program does that matters for its imports: it imports, and changes its environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a statement stands."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file.name}, line {self.line}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A variable of the environment is set or removed."""

    name: str | None
    """None: it may be any."""
    value: str | None
    """None: it is removed, or where `is_known` is false, set to what only the run can tell."""
    is_known: bool
    place: Place
    is_hidden: bool = False
    """By os.putenv or os.unsetenv: libraries in C see it, os.environ does not show it."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """A module is imported that is neither the user's own nor of the standard library."""

    module: str
    is_certain: bool
    place: Place


Event: TypeAlias = Change | Import


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a program imports and sets, in order."""

    events: list[Event] = field(default_factory=list)
    sources: list[bytes] = field(default_factory=list)
    """The user's files that were read."""


class Left(Exception):  # noqa: N818 - no error: it ends what is followed
    """The function that is followed returns, or the program ends."""

    def __init__(self, value: Any = None, *, is_return: bool) -> None:
        super().__init__()
        self.value = value
        self.is_return = is_return


class Trace:
    """Where a walk is, whether the program certainly comes there, and what it has done so far."""

    def __init__(self, file: Path) -> None:
        self.program = Program()
        self.file = file
        self.line = 1
        self.is_certain = True
        self.may_have_left = False
        """The function that is followed may have returned before."""

    def tell(self, event: Event) -> None:
        """The program does this next."""
        self.program.events.append(event)

    def place(self) -> Place:
        """Where the walk is."""
        return Place(file=self.file, line=self.line)

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        """What is followed here may not run; where it returns, neither may what comes after."""
        before = self.is_certain
        self.is_certain = False
        try:
            yield
        except Left as left:
            self.may_have_left = self.may_have_left or left.is_return
        finally:
            self.is_certain = before and not self.may_have_left
