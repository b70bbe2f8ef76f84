"""Starting a job again from within: what Slurm is about to do with it, and `scontrol requeue`.

SIGTERM means many things: a preemption, with or without a grace period, an administrator's requeue,
the time limit where the earlier warning was not enough, or a scancel. `scontrol show job` tells
them apart.
"""

from __future__ import annotations

import os

import msgspec

from hpcdist.machine.command import run_command
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.requeue import Cause, Decision
from hpcdist.schedulers.slurm.queue import job_fields, show_job

_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""


class OwnJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that this process is part of, in Slurm's view."""

    state: str
    reason: str
    restarts: int
    """Number of its requeues, a requeue under way included."""
    is_preempted: bool
    """Slurm has chosen it to make room, perhaps with a grace period."""


def ask_own_job() -> OwnJob:
    """Ask Slurm about the job that the environment names; raises SchedulerError."""
    return parse_job(show_job(_job_id(), timeout_s=_TIMEOUT_S))


def requeue_own_job() -> None:
    """Have Slurm end this job's processes, and queue it again; raises SchedulerError."""
    run_command(["scontrol", "requeue", _job_id()], timeout_s=_TIMEOUT_S)


def decide(verdict: Verdict, job: OwnJob, *, life: int) -> Decision:
    """Return what is to follow the end of a life."""
    if job.restarts > life or job.state in {"PENDING", "REQUEUED"}:
        # A preemption without a grace period looks like an administrator's requeue.
        cause: Cause = "preemption" if job.is_preempted else "requeue or preemption"
        return Decision(sequel="leave", cause=cause)
    if job.reason == "TimeLimit":
        return Decision(sequel="requeue", cause="time_limit")
    if job.is_preempted:
        return Decision(sequel="requeue", cause="preemption")
    is_terminated = verdict.signal == "SIGTERM"
    if job.state in {"COMPLETING", "CANCELLED"}:
        return Decision(sequel="final", cause="cancel" if is_terminated else "nothing")
    # Somebody sent SIGTERM by hand, for no reason that Slurm knows of: the job is to end.
    return Decision(sequel="final" if is_terminated else "requeue", cause="nothing")


def parse_job(text: str) -> OwnJob:
    """Read one line of `scontrol --oneliner show job`."""
    fields = job_fields(text)
    return OwnJob(
        state=fields.get("JobState", ""),
        reason=fields.get("Reason", ""),
        restarts=int(fields.get("Restarts") or 0),
        is_preempted=fields.get("PreemptTime", "None") not in {"None", "Unknown"},
    )


def _job_id() -> str:
    """Return the job's id; of an array's element with its place, for the last element's
    SLURM_JOB_ID is the array's own, and would mean all of them."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]
