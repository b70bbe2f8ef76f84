"""Submissions that end unclear: sbatch got no answer in time, and Slurm may have the job."""

from __future__ import annotations

import re
import time

from hpcdist.errors import SchedulerError, SubmissionUnclearError
from hpcdist.schedulers.command import CommandFailedError, CommandTimeoutError
from hpcdist.schedulers.slurm.queue import ask_queue

_SETTLE_S = 5.0
"""A controller that answers again may have the request before it still."""
_POLL_S = 0.5
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
    deadline = time.monotonic() + _SETTLE_S
    while (found := _job_id(name, error)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def _job_id(name: str, error: SchedulerError) -> str | None:
    try:
        queue = ask_queue()
    except SchedulerError:
        raise SubmissionUnclearError(
            f"it is not known whether {name} was submitted: {error.message}",
            hint=f"hpcdist status {name} will tell, hpcdist cancel {name} ends it",
        ) from error
    return next((job.job_id.partition("_")[0] for job in queue if job.name == name), None)
