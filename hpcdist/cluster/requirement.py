"""Texts that LSF profiles hold: places to be filled in, and resource requirement strings. Pure.

A requirement, the value of bsub's -R, is sections: `select[...] span[...] rusage[...]`; what stands
in no section belongs to select. IBM's bsub takes several -R and merges them, others refuse that:
hpcdist sends one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SECTIONS = ("select", "order", "span", "rusage", "same", "cu", "affinity")
"""In the order in which they are written; select must be the first."""

_SECTION = re.compile(r"(\w+)\s*\[([^\[\]]*)\]")
_OPTION = re.compile(r"""-R\s*(?:"([^"]*)"|'([^']*)'|([^"'\s]+))\s*""")
_ABOUT_TIME = ("duration", "decay")

Requirement = Mapping[str, str]
"""Section -> what stands in its brackets."""


def requirement_of(directive: str) -> str | None:
    """The value of a directive that is -R; None for another option.

    Raises ValueError where it is -R and more, or less.
    """
    if not directive.startswith("-R"):
        return None
    match = _OPTION.fullmatch(directive)
    if match is None:
        raise ValueError('must be one -R with its string in quotes: -R "select[...]"')
    return next(part for part in match.groups() if part is not None)


def parse_requirement(text: str) -> dict[str, str]:
    """A string as its sections; ValueError for what hpcdist cannot put together with its own."""
    found: dict[str, str] = {}
    for name, content in _SECTION.findall(text):
        if name not in SECTIONS:
            raise ValueError(f"{name}[...] is no section; they are {', '.join(SECTIONS)}")
        if name in found:
            raise ValueError(f"{name}[...] stands there twice")
        found[name] = content.strip()
    rest = _SECTION.sub(" ", text).strip()
    if re.search(r"[\[\]{}]", rest):
        raise ValueError("its brackets do not match, or it is of several parts: 2*{...}")
    if rest and "select" in found:
        raise ValueError(f"{rest!r} stands in no section")
    if "||" in found.get("rusage", ""):
        raise ValueError("rusage[... || ...] has alternatives")
    return found | ({"select": rest} if rest else {})


def merge_requirements(requirements: Iterable[Requirement]) -> dict[str, str]:
    """One requirement that asks for all; of a resource in rusage, the last has the word."""
    merged: dict[str, str] = {}
    for requirement in requirements:
        for name, content in requirement.items():
            merged[name] = (
                _JOINED.get(name, _by_colon)(merged[name], content) if (name in merged) else content
            )
    return merged


def write_requirement(requirement: Requirement) -> str:
    """The requirement as bsub reads it."""
    return " ".join(f"{name}[{requirement[name]}]" for name in SECTIONS if name in requirement)


def rusage_value(rusage: str, resource: str) -> str | None:
    """Return the amount of a resource that is asked for, as it is written."""
    for usage in _usages(rusage):
        for term in usage:
            name, _, value = term.partition("=")
            if name == resource:
                return value
    return None


def _both(one: str, other: str) -> str:
    return f"({one}) && ({other})"


def _by_colon(one: str, other: str) -> str:
    return f"{one}:{other}"


def _rusage(earlier: str, later: str) -> str:
    """Resources side by side; with a colon where possible, for old engines know no comma."""
    named = {term.partition("=")[0] for usage in _usages(later) for term in usage}
    kept = [_without(usage, named.difference(_ABOUT_TIME)) for usage in _usages(earlier)]
    usages = [usage for usage in (*kept, *_usages(later)) if usage]
    timed = any(term.startswith(_ABOUT_TIME) for usage in usages for term in usage)
    return (", " if timed else ":").join(":".join(usage) for usage in usages)


def _usages(rusage: str) -> list[list[str]]:
    """`mem=20:duration=1h, license=1` as lists of terms: a duration is about its own list."""
    return [[term.strip() for term in usage.split(":")] for usage in rusage.split(",")]


def _without(usage: list[str], names: set[str]) -> list[str]:
    left = [term for term in usage if term.partition("=")[0] not in names]
    return [] if all(term.startswith(_ABOUT_TIME) for term in left) else left


_JOINED = {"select": _both, "rusage": _rusage}
"""Section -> function that joins two of it; others are lists with colons."""


_PLACE = re.compile(r"\{([^{}]*)\}")


def placeholders(text: str) -> list[str]:
    """The names in braces."""
    return _PLACE.findall(text)


def has_stray_brace(text: str) -> bool:
    """Return True if there is a brace that belongs to no name."""
    return bool(re.search(r"[{}]", _PLACE.sub("", text)))


def fill(text: str, **values: str | int) -> str:
    """The text with the values in their places; a name without a value is a KeyError."""
    return _PLACE.sub(lambda place: str(values[place[1]]), text)
