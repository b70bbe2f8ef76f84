"""What a run directory says of how it was submitted; damaged files say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.run import Run


def section(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One section of a file's values; empty where there is none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def job_section(run: Run, key: str) -> dict[str, Any]:
    """One section of the run's job, such as its resources."""
    return section(section(run.read_spec() or {}, "job"), key)
