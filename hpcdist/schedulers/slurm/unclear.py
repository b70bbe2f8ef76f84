"""Submissions that end unclear: sbatch got no answer in time, and Slurm may have the job."""

from __future__ import annotations

import re

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.schedulers.known import find_by_name
from hpcdist.schedulers.slurm.queue import ask_queue

_UNCLEAR = re.compile(r"timed out|zero bytes|receive failure|reset by peer", re.IGNORECASE)
"""In slurm_errno.c: the request may have been sent, and no answer came."""


class NoJobNamedError(SchedulerError):
    """sbatch succeeded, and did not say which job it made."""


def is_unclear(error: SchedulerError) -> bool:
    """Whether the job may have been submitted in spite of sbatch's error."""
    if isinstance(error, CommandFailedError):
        return _UNCLEAR.search(error.said) is not None
    return isinstance(error, CommandTimeoutError | NoJobNamedError)


def find_job(name: str, error: SchedulerError) -> str | None:
    """Id of the job that sbatch has told nothing but `error` of; None where there is none.

    Raises SubmissionUnclearError where Slurm does not say.
    """
    found = find_by_name(name, error, ask_queue)
    return None if found is None else found.job_id.partition("_")[0]
