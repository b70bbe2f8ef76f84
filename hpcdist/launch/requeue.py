"""What follows the end of a job that could go on: another start of it, or the final verdict.

A job that is stopped before its end leaves the verdict on its last attempt, and asks its scheduler
to be started again; only a run that will not go on gets a verdict.json.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from hpcdist.errors import EXIT_INTERRUPTED, EXIT_STOPPED, SchedulerError
from hpcdist.launch import lives
from hpcdist.run import Run
from hpcdist.spec import JobSpec
from hpcdist.verdict import Verdict

Decision = Literal["requeue", "leave", "final", "cancelled"]
"""Ask the scheduler to start the job again; leave that to the scheduler, which does so by itself;
let the run end; or let it end as one that somebody cancelled."""


class Requeuer(Protocol):
    """A scheduler, as seen from within one of its jobs: a module offers one as `requeuer`."""

    def life(self) -> int:
        """How often the scheduler had started this job before: 0 in its first life."""

    def decide(self, verdict: Verdict) -> Decision:
        """What is to follow a stop after a warning, whose signal is `verdict.signal`, or the loss
        of an agent (kind agent_lost). Raises SchedulerError or OSError where that is not known."""

    def requeue(self) -> None:
        """Have the scheduler start this job again; it may end the caller at once.

        Raises SchedulerError or OSError where it refuses.
        """


REQUEUERS = {
    "slurm": "hpcdist.schedulers.slurm.requeue",
}
"""Scheduler -> module with a `requeuer`; the others never start a job again."""


def load_requeuer(scheduler: str) -> Requeuer | None:
    """The requeuer of a scheduler; None where it has none."""
    if scheduler not in REQUEUERS:
        return None
    requeuer: Requeuer = importlib.import_module(REQUEUERS[scheduler]).requeuer
    return requeuer


def conclude(
    run: Run,
    job: JobSpec,
    verdict: Verdict,
    requeuer: Requeuer | None,
    *,
    begin_attempt: Callable[[], int] | None = None,
) -> None:
    """Write the verdict on the run; or that on its last attempt, and have the job started again.

    `begin_attempt` takes an attempt number where the job ended before it had one. Of several
    agents that call this at the end of one life, one acts.
    """
    if requeuer is None or not _may_go_on(verdict):
        run.write_verdict(verdict)
        return
    try:
        decision = requeuer.decide(verdict)
    except (SchedulerError, OSError) as error:
        run.write_verdict(_not_requeued(verdict, error) if job.launch.requeue else verdict)
        return
    if decision == "cancelled":
        run.write_verdict(_cancelled(verdict))
    elif decision == "final" or not job.launch.requeue:
        run.write_verdict(verdict)
    elif (stalled := lives.stalled_at_end(run, job, verdict)) is not None:
        run.write_verdict(stalled)
    elif run.claim_end_of_life(requeuer.life()):
        _go_on(run, verdict, requeuer if decision == "requeue" else None, begin_attempt)


def _go_on(
    run: Run,
    verdict: Verdict,
    requeuer: Requeuer | None,
    begin_attempt: Callable[[], int] | None,
) -> None:
    if begin_attempt is not None:
        verdict = msgspec.structs.replace(verdict, attempt=begin_attempt())
    run.write_attempt_verdict(verdict)
    if requeuer is None:
        return
    try:
        requeuer.requeue()
    except (SchedulerError, OSError) as error:
        run.write_verdict(_not_requeued(verdict, error))


def _may_go_on(verdict: Verdict) -> bool:
    return verdict.exit_code_of_run == EXIT_STOPPED or verdict.kind == "agent_lost"


def _cancelled(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(
        verdict,
        kind="cancelled",
        state="cancelled",
        message=f"cancelled ({verdict.signal})",
        exit_code_of_run=EXIT_INTERRUPTED,
    )


def _not_requeued(verdict: Verdict, error: Exception) -> Verdict:
    message = f"{verdict.message}; it could not be requeued: {error}"
    return msgspec.structs.replace(verdict, message=message)
