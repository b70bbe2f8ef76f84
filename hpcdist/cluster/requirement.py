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
    """Return the value of a directive that is -R; None for another option.

    Raises ValueError where it is -R and more, or less.
    """
    if not directive.startswith("-R"):
        return None
    match = _OPTION.fullmatch(directive)
    if match is None:
        raise ValueError('must be one -R with its string in quotes: -R "select[...]"')
    return next(part for part in match.groups() if part is not None)


def parse_requirement(text: str) -> dict[str, str]:
    """Return a string as its sections.

    Raises ValueError for what hpcdist cannot put together with its own.
    """
    found: dict[str, str] = {}
    for name, content in _SECTION.findall(text):
        if name not in SECTIONS:
            raise ValueError(f"{name}[...] is no section; they are {', '.join(SECTIONS)}")
        if name in found:
            raise ValueError(f"{name}[...] appears twice")
        found[name] = content.strip()
    rest = _SECTION.sub(" ", text).strip()
    if re.search(r"[\[\]{}]", rest):
        raise ValueError("its brackets do not match, or it is of several parts: 2*{...}")
    if rest and "select" in found:
        raise ValueError(f"{rest!r} is in no section")
    if "||" in found.get("rusage", ""):
        raise ValueError("rusage[... || ...] has alternatives")
    return found | ({"select": rest} if rest else {})


def merge_requirements(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Return one requirement that asks for all; of a resource in rusage, the last has the word."""
    merged: dict[str, str] = {}
    for requirement in requirements:
        for name, content in requirement.items():
            earlier = merged.get(name)
            if earlier is None:
                merged[name] = content
            elif name == "select":
                merged[name] = f"({earlier}) && ({content})"
            elif name == "rusage":
                merged[name] = _merge_rusage(earlier, content)
            else:
                merged[name] = f"{earlier}:{content}"
    return merged


def write_requirement(requirement: Requirement) -> str:
    """Return the requirement as bsub reads it."""
    return " ".join(f"{name}[{requirement[name]}]" for name in SECTIONS if name in requirement)


def rusage_value(rusage: str, resource: str) -> str | None:
    """Return the amount of a resource that is asked for, as it is written."""
    terms = [term.partition("=") for usage in _usages(rusage) for term in usage]
    return next((value for name, _, value in terms if name == resource), None)


def _merge_rusage(earlier: str, later: str) -> str:
    """Ask for resources side by side; with a colon where possible: old engines know no comma."""
    named = {term.partition("=")[0] for usage in _usages(later) for term in usage}
    usages: list[list[str]] = []
    for usage in _usages(earlier):
        left = [term for term in usage if term.partition("=")[0] not in named - {*_ABOUT_TIME}]
        if not all(term.startswith(_ABOUT_TIME) for term in left):
            usages.append(left)
    usages += filter(None, _usages(later))
    timed = any(term.startswith(_ABOUT_TIME) for usage in usages for term in usage)
    return (", " if timed else ":").join(":".join(usage) for usage in usages)


def _usages(rusage: str) -> list[list[str]]:
    """Split `mem=20:duration=1h, license=1` into lists of terms; a duration is about its list."""
    return [[term.strip() for term in usage.split(":")] for usage in rusage.split(",")]


_PLACE = re.compile(r"\{([^{}]*)\}")


def placeholders(text: str) -> list[str]:
    """Return the names in braces."""
    return _PLACE.findall(text)


def has_stray_brace(text: str) -> bool:
    """Return True if there is a brace that belongs to no name."""
    return bool(re.search(r"[{}]", _PLACE.sub("", text)))


def fill(text: str, **values: str | int) -> str:
    """Return the text with the values in their places; a name without a value is a KeyError."""
    return _PLACE.sub(lambda place: str(values[place[1]]), text)
