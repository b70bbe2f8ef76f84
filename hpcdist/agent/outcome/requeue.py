"""What follows the end of a job that could go on: another start of it, or the final verdict.

A job that is stopped before its end leaves the verdict on its last attempt, and asks its scheduler
to be started again; only a run that will not go on gets a verdict.json.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hpcdist.agent.outcome import lives
from hpcdist.agent.patience import Patience
from hpcdist.base.errors import EXIT_STOPPED, SchedulerError
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.causes import is_overdue, with_cause
from hpcdist.schedulers.requeue import Requeuer, RequeueRefusedError


def conclude(
    run: Run,
    job: JobSpec,
    verdict: Verdict,
    requeuer: Requeuer | None,
    *,
    patience: Patience,
    has_a_say: Callable[[], bool] = lambda: True,
    begin_attempt: Callable[[], int] | None = None,
) -> Verdict:
    """Write the verdict on the run; or that on its last attempt, and have the job started again.

    Returns the verdict with what the scheduler knows of it. `has_a_say` turns false once a newer
    attempt has begun elsewhere, as it may while the scheduler is asked: then nothing is written.
    `begin_attempt` takes an attempt number where the job ended before it had one. Of several agents
    that call this at the end of one life, one acts.
    """
    if requeuer is None or not _may_go_on(verdict):
        run.write_verdict(verdict)
        return verdict
    try:
        decision = patience.retry(lambda: requeuer.decide(verdict))
    except (SchedulerError, OSError) as error:
        told = with_cause(verdict, None)
        if has_a_say():
            _end_undecided(run, job, told, error)
        return told
    told = with_cause(verdict, decision.cause)
    if not has_a_say():
        return told
    is_lost = is_overdue(told) and not lives.has_saved(run, job)
    goes_on = job.launch.requeue or decision.sequel == "open"
    if decision.sequel == "final" or not goes_on or is_lost:
        run.write_verdict(told)
    elif (stalled := lives.stalled_at_end(run, job, told)) is not None:
        run.write_verdict(stalled)
        return stalled
    elif run.claim_end_of_life(requeuer.life()):
        if begin_attempt is not None:
            told = msgspec.structs.replace(told, attempt=begin_attempt())
        run.write_attempt_verdict(told)
        if decision.sequel == "requeue":
            _requeue(run, told, requeuer, patience, has_a_say)
    return told


def _end_undecided(run: Run, job: JobSpec, verdict: Verdict, error: Exception) -> None:
    """The scheduler could not be asked. An agent that has lost the others may be the one that is
    cut off, while they go on: it leaves the run to them, and to the scheduler."""
    if not job.launch.requeue:
        run.write_verdict(verdict)
    elif verdict.kind == "agent_lost":
        run.write_attempt_verdict(_not_requeued(verdict, error))
    else:
        run.write_verdict(_not_requeued(verdict, error))


def _requeue(
    run: Run,
    verdict: Verdict,
    requeuer: Requeuer,
    patience: Patience,
    has_a_say: Callable[[], bool],
) -> None:
    try:
        _requeue_with_patience(run, verdict, requeuer, patience)
    except (RequeueRefusedError, SchedulerError, OSError) as error:
        if has_a_say():
            run.write_verdict(_not_requeued(verdict, error))


def _requeue_with_patience(
    run: Run, verdict: Verdict, requeuer: Requeuer, patience: Patience
) -> None:
    try:
        requeuer.requeue(run)
    except (SchedulerError, OSError):
        patience.retry(lambda: _requeue_again(run, verdict, requeuer), at_once=False)


def _requeue_again(run: Run, verdict: Verdict, requeuer: Requeuer) -> None:
    """What was asked without an answer may have been heard: to ask twice would be refused."""
    sequel = requeuer.decide(verdict).sequel
    if sequel == "requeue":
        requeuer.requeue(run)
    elif sequel == "final":
        raise SchedulerError("the job is being ended")


def _may_go_on(verdict: Verdict) -> bool:
    return (
        verdict.exit_code_of_run == EXIT_STOPPED
        or verdict.kind in {"agent_lost", "preempted"}
        or is_overdue(verdict)
    )


def _not_requeued(verdict: Verdict, error: Exception) -> Verdict:
    message = f"{verdict.message}; it could not be requeued: {error}"
    return msgspec.structs.replace(verdict, message=message)
