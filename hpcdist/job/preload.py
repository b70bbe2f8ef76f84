"""What is imported before the ranks are forked, in which environment, and what is left to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcdist.job.program_text import Change, Place

_COSTS = "some seconds of its CPU and memory of its own, instead of once per node"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A package that each rank imports itself, and what that is because of."""

    package: str
    change: Change
    imported_at: Place | None = None
    """Where it may be imported before the change or may not, which decides what it reads; None: it
    is imported after the change."""

    def because(self) -> str:
        """Why, as the beginning of a sentence."""
        name = self.change.name or "variables of any name"
        if self.imported_at is not None:
            return f"{self.change.place} sets {name}, which {self.imported_at} may come before"
        return f"{self.change.place} sets {name} to what only the run can tell"

    def way_out(self) -> str:
        """What keeps the package imported once per node."""
        name = self.change.name
        if self.imported_at is not None:
            return f"set {name or 'them'} at the top of the program, before all imports"
        if name is None:
            return "name the variables and their values in the text, or set them where you submit"
        return f"write the value out, or set {name} where you submit: export {name}=..."


@dataclass(frozen=True, kw_only=True)
class Preload:
    """What is imported before the fork."""

    steps: list[Change | str] = field(default_factory=list)
    """Changes of the environment, and the modules that are imported in it, in order."""
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def modules(self) -> list[str]:
        """The modules alone."""
        return [step for step in self.steps if isinstance(step, str)]

    def notes(self) -> list[str]:
        """What the user should know, a sentence for each change that keeps packages out."""
        packages: dict[str, list[str]] = {}
        ways = {}
        for one in self.left_out:
            packages.setdefault(one.because(), []).append(one.package)
            ways[one.because()] = one.way_out()
        return [
            f"{because}: each rank imports {' and '.join(names)} itself, at {_COSTS} "
            f"({ways[because]})"
            for because, names in packages.items()
        ]

    def in_turn(self) -> Iterator[str]:
        """The modules, each to be imported before the next is asked for: the environment of this
        process is then as the program would have it. At the end it is as it was before, since each
        rank runs the program from its beginning."""
        before = dict(os.environ)
        changes = [step for step in self.steps if isinstance(step, Change)]
        try:
            for step in self.steps:
                if isinstance(step, str):
                    yield step
                else:
                    _apply(step)
        finally:
            for change in changes:
                assert change.name is not None
                if change.name in before:
                    os.environ[change.name] = before[change.name]
                else:
                    os.environ.pop(change.name, None)
                    os.unsetenv(change.name)


def _apply(change: Change) -> None:
    assert change.name is not None
    if change.value is not None:
        if change.is_hidden:
            os.putenv(change.name, change.value)
        else:
            os.environ[change.name] = change.value
    elif change.is_hidden:
        os.unsetenv(change.name)
    else:
        os.environ.pop(change.name, None)
