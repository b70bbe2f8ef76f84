"""What one check found."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FindingState = Literal["pass", "warn", "FAIL", "skip"]


class Finding(Struct, frozen=True, kw_only=True):
    """One line of the doctor's."""

    name: str
    """What was checked."""
    state: FindingState
    """warn: it works, and may not for long; skip: it does not apply, or could not be looked at."""
    detail: str
    """What was found."""
    advice: str = ""
    """What to do, where it does not pass."""


def passed(name: str, detail: str) -> Finding:
    """It works."""
    return Finding(name=name, state="pass", detail=detail)


def warned(name: str, detail: str, advice: str) -> Finding:
    """It works, and may not for long."""
    return Finding(name=name, state="warn", detail=detail, advice=advice)


def failed(name: str, detail: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(name=name, state="FAIL", detail=detail, advice=advice)


def skipped(name: str, detail: str) -> Finding:
    """It does not apply, or could not be looked at."""
    return Finding(name=name, state="skip", detail=detail)
