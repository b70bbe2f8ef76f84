"""What a run directory says of how it was submitted; damaged files say nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.runs.run import Run


def section(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One section of a file's values; empty where there is none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def job_section(run: Run, key: str) -> dict[str, Any]:
    """One section of the run's job, such as its resources."""
    return section(section(run.read_spec() or {}, "job"), key)


def scheduler_of(run: Run) -> str | None:
    """The scheduler that has the run, or is taking it just now; None where files are damaged.

    Without submission.json a submission goes on or was killed, and its agents may live: then the
    scheduler is the one that spec.json names.
    """
    submitted = run.submission_file.exists()
    found = run.read_submission() if submitted else run.read_spec()
    scheduler = (found or {}).get("scheduler")
    return scheduler if isinstance(scheduler, str) else None
