"""The end of one life of a job: why its scheduler ended it, and whether another life follows.

The ranks and their agents see no more than a signal; SIGTERM in particular means many things.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hpcdist.base.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    HpcdistError,
    SchedulerError,
)
from hpcdist.runs.verdict import Verdict

Cause = Literal[
    "time_limit",
    "preemption",
    "requeue or preemption",
    "kill or requeue",
    "kill of the script",
    "cancel",
    "nothing",
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
    node: int | None = None
    """The node of the job that the scheduler has lost."""
    host: str | None = None
    lost: str = ""
    """The words on that node, the begin of a sentence."""


class RequeueRefusedError(HpcdistError):
    """The scheduler has answered, and will not start the job again: to ask once more is in vain."""


class RequeueUnclearError(SchedulerError):
    """The scheduler has not answered, and may have heard: what it does next tells."""


_PREFIXES: dict[Cause | None, str] = {
    "time_limit": "the time limit was reached: ",
    "preemption": "preempted: ",
    "requeue or preemption": "preempted or requeued: ",
    "kill or requeue": "killed, requeued or preempted: ",
    "kill of the script": "the job's script was killed: ",
    "nothing": "",
    None: "preempted or requeued: ",
}


def with_cause(verdict: Verdict, decision: Decision | None) -> Verdict:
    """Return the verdict with its cause; None: the scheduler was not asked or did not answer."""
    replace = msgspec.structs.replace
    cause = decision.cause if decision else None
    if cause == "cancel":
        return replace(
            verdict,
            kind="cancelled",
            state="cancelled",
            message=f"cancelled ({verdict.signal}): {verdict.message}",
            exit_code_of_run=EXIT_INTERRUPTED,
        )
    if cause == "kill or requeue":
        # Only the scheduler knows whether the job comes back: the exit code must not ask for it.
        return _preempted(verdict, _PREFIXES[cause] + verdict.message, EXIT_INTERRUPTED)
    is_open = verdict.signal == "SIGTERM" and verdict.kind in {"preempted", "time_limit"}
    was_warned = is_overdue(verdict) and cause in {None, "nothing"}
    if not is_open or was_warned:
        return verdict
    message = _PREFIXES[cause] + verdict.message
    if decision and decision.lost:
        message = f"{decision.lost}: {verdict.message}"
        verdict = replace(verdict, node=decision.node, host=decision.host)
    if cause != "time_limit":
        found = _preempted(verdict, message, EXIT_STOPPED)
        return replace(found, kind="agent_lost") if decision and decision.lost else found
    if verdict.exit_code == EXIT_STOPPED:
        return replace(verdict, kind=cause, message=message)
    return replace(
        verdict, kind=cause, state="failed", message=message, exit_code_of_run=EXIT_FAILED
    )


def _preempted(verdict: Verdict, message: str, code: int) -> Verdict:
    return msgspec.structs.replace(
        verdict, kind="preempted", state="preempted", message=message, exit_code_of_run=code
    )


def is_overdue(verdict: Verdict) -> bool:
    """Return whether the ranks were ended at the time limit without having stopped; they may have
    saved before."""
    return (verdict.kind, verdict.state, verdict.signal) == ("time_limit", "failed", "SIGTERM")
