"""The hpcdist.yaml files that come with hpcdist, for clusters that its users are known to have."""

from __future__ import annotations

from pathlib import Path

from hpcdist.base.errors import ProfileError
from hpcdist.base.nearest import nearest, nearest_first
from hpcdist.base.shipped import shipped_folder

_SUFFIX = ".yaml"


def shipped_names() -> list[str]:
    """What can be copied."""
    return sorted(path.stem for path in _folder().glob(f"*{_SUFFIX}"))


def shipped_file(name: str) -> str:
    """The text of a file; ProfileError with the nearest names where there is none of the name."""
    known = shipped_names()
    if name not in known:
        near = nearest(name, known)
        listed = f"those that ship are {', '.join(nearest_first(name, known))}"
        raise ProfileError(
            f"no profile called {name!r} comes with hpcdist",
            hint=f"did you mean {near}? {listed}" if near else listed,
        )
    return (_folder() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")


def description(name: str) -> str:
    """The first line of a file: what it is for."""
    return shipped_file(name).splitlines()[0].removeprefix("#").strip()


def _folder() -> Path:
    return shipped_folder("templates") / "clusters"
