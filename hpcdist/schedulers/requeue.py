"""What a scheduler does for a job that could go on, as seen from within the job."""

from __future__ import annotations

import importlib
from typing import Literal, Protocol

import msgspec

from hpcdist.base.errors import HpcdistError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.causes import Cause

Sequel = Literal["requeue", "leave", "open", "final"]
"""Ask the scheduler to start the job again; leave that to the scheduler, which does so by itself;
leave it open, since the scheduler may do so and does not say: its word decides what became of the
run; or let the run end."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to follow the end of a life."""

    sequel: Sequel
    cause: Cause
    """Why the scheduler ended it; after a cancel, the sequel is final."""


class RequeueRefusedError(HpcdistError):
    """The scheduler has answered, and will not start the job again: to ask once more is in vain."""


class Requeuer(Protocol):
    """A scheduler, as seen from within one of its jobs: a module offers one as `requeuer`."""

    def life(self) -> int:
        """How often the scheduler had started this job before: 0 in its first life."""

    def decide(self, verdict: Verdict) -> Decision:
        """What is to follow a stop after a warning, whose signal is `verdict.signal`, or the loss
        of an agent (kind agent_lost). Raises SchedulerError or OSError where that is not known."""

    def requeue(self, run: Run) -> None:
        """Have the scheduler start this job, which is the run's, again; it may end the caller at
        once.

        Raises RequeueRefusedError where it refuses for good, SchedulerError or OSError where it is
        worth while to ask again.
        """


REQUEUERS = {
    "slurm": "hpcdist.schedulers.slurm.requeue",
    "lsf": "hpcdist.schedulers.lsf.requeue",
}
"""Scheduler -> module with a `requeuer`; the others never start a job again."""


def load_requeuer(scheduler: str) -> Requeuer | None:
    """The requeuer of a scheduler; None where it has none."""
    if scheduler not in REQUEUERS:
        return None
    requeuer: Requeuer = importlib.import_module(REQUEUERS[scheduler]).requeuer
    return requeuer
