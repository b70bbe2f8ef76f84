"""The jobs that have a name, for `hpcdist jobs`."""

from __future__ import annotations

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.job.comparison import check_comparison, find_comparison
from hpcdist.job.files import JobFile, named_jobs
from hpcdist.job.load import load_job


class JobListing(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `hpcdist jobs`."""

    name: str
    workload: str | None
    description: str
    path: str
    error: str | None = None
    """What is wrong with it, if it cannot be submitted."""


def list_jobs() -> list[JobListing]:
    """Every job that has a name; a broken one is listed with what is wrong with it."""
    return [_listing(name, file) for name, file in named_jobs().items()]


def _listing(name: str, file: JobFile) -> JobListing:
    try:
        if (comparison := find_comparison(name)) is not None:
            check_comparison(comparison)
            return JobListing(
                name=name,
                workload="compare",
                description=" ".join(comparison.description.split()),
                path=str(file.path),
            )
        job = load_job(name).job
    except JobError as error:
        return JobListing(
            name=name, workload=None, description="", path=str(file.path), error=error.message
        )
    return JobListing(
        name=name,
        workload=job.workload,
        description=" ".join(job.description.split()),
        path=str(file.path),
    )
