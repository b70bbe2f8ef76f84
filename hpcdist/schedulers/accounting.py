"""What a scheduler's books have on a run's job: how long it waited and ran, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from hpcdist.runs.run import Run


class Accounting(Struct, frozen=True, kw_only=True):
    """One run's job; over all its lives, where the scheduler started it again. What is not known is
    None."""

    job_id: str
    state: str
    """The scheduler's own word."""
    submit_s: float | None = None
    """Unix time of the first submission."""
    start_s: float | None = None
    """Unix time of the first start."""
    end_s: float | None = None
    """Unix time of the last end; None while it goes on."""
    queue_wait_s: float | None = None
    """In the queue, since it could have started: without the time in which it waited for other jobs
    or was held. All lives together."""
    elapsed_s: float | None = None
    """Running, all lives together; so far where it goes on."""
    exit_code: int | None = None
    signal: int | None = None
    """That ended the job."""
    nodes: list[str] = []
    """Of the last life, in the scheduler's order."""
    max_rss_bytes: int | None = None
    """Largest resident memory of a task, all processes on its node included."""
    cpu_time_s: float | None = None
    """Of all CPUs together."""
    energy_j: float | None = None
    """Where the site measures it."""


@runtime_checkable
class AccountingScheduler(Protocol):
    """A scheduler that keeps books."""

    def accounting(self, runs: Sequence[Run]) -> dict[str, Accounting]:
        """By run id, of those runs that it knows; one question for all of them.

        Raises SchedulerError where it does not answer.
        """
