"""The end of one life of a job: why its scheduler ended it, and whether another life follows.

The ranks and their agents see no more than a signal; SIGTERM in particular means many things.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hpcdist.base.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, HpcdistError
from hpcdist.runs.verdict import Verdict

Cause = Literal[
    "time_limit", "preemption", "requeue or preemption", "kill or requeue", "cancel", "nothing"
]
"""Nothing: the scheduler does not mean to end the job, so somebody sent the signal by hand."""

Sequel = Literal["requeue", "leave", "open", "final"]
"""Ask the scheduler to start the job again; leave that to the scheduler, which does so by itself;
leave it open, since the scheduler may do so and does not say: its word decides what became of the
run; or let the run end."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The sequel of a life, and why the scheduler ended it; after a cancel, the sequel is final."""

    sequel: Sequel
    cause: Cause


class RequeueRefusedError(HpcdistError):
    """The scheduler has answered, and will not start the job again: to ask once more is in vain."""


_PREFIXES: dict[Cause | None, str] = {
    "time_limit": "the time limit was reached: ",
    "preemption": "preempted: ",
    "requeue or preemption": "preempted or requeued: ",
    "kill or requeue": "killed, requeued or preempted: ",
    "nothing": "",
    None: "preempted or requeued: ",
}


def with_cause(verdict: Verdict, cause: Cause | None) -> Verdict:
    """Return the verdict with its cause; None: the scheduler was not asked or did not answer."""
    if cause == "cancel":
        return _cancelled(verdict)
    if cause == "kill or requeue":
        return _killed(verdict)
    if verdict.signal != "SIGTERM" or verdict.kind not in {"preempted", "time_limit"}:
        return verdict
    if is_overdue(verdict) and cause in {None, "nothing"}:  # a warning came before
        return verdict
    verdict = msgspec.structs.replace(verdict, message=_PREFIXES[cause] + verdict.message)
    return _at_the_limit(verdict) if cause == "time_limit" else _preempted(verdict)


def is_overdue(verdict: Verdict) -> bool:
    """Return whether the ranks were ended at the time limit without having stopped; they may have
    saved before."""
    return (verdict.kind, verdict.state, verdict.signal) == ("time_limit", "failed", "SIGTERM")


def _cancelled(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(
        verdict,
        kind="cancelled",
        state="cancelled",
        message=f"cancelled ({verdict.signal}): {verdict.message}",
        exit_code_of_run=EXIT_INTERRUPTED,
    )


def _killed(verdict: Verdict) -> Verdict:
    """Return the verdict of a kill. Only the scheduler knows whether the job is to come back: the
    exit code must not ask for it."""
    return msgspec.structs.replace(
        verdict,
        kind="preempted",
        state="preempted",
        message=_PREFIXES["kill or requeue"] + verdict.message,
        exit_code_of_run=EXIT_INTERRUPTED,
    )


def _at_the_limit(verdict: Verdict) -> Verdict:
    if verdict.exit_code == EXIT_STOPPED:
        return msgspec.structs.replace(verdict, kind="time_limit")
    return msgspec.structs.replace(
        verdict, kind="time_limit", state="failed", exit_code_of_run=EXIT_FAILED
    )


def _preempted(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(
        verdict, kind="preempted", state="preempted", exit_code_of_run=EXIT_STOPPED
    )
