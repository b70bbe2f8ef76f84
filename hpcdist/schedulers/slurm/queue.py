"""What squeue and sacct say about jobs: one call of each for any number of runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

import msgspec

from hpcdist.machine.command import run_command
from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.slurm.reasons import ENDED_REASONS, plain_reason

TIMEOUT_S = 30.0

_STATES: dict[str, State] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESV_DEL_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "RUNNING": "running",
    "COMPLETING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "BOOT_FAIL": "failed",
    "DEADLINE": "failed",
    "FAILED": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "TIMEOUT": "failed",
}
"""Job states of slurm.schedmd.com/squeue.html and sacct.html -> ours."""

_SQUEUE_FORMAT = "%i|%T|%r|%S|%j"  # the name comes last: it may hold what separates
_SACCT_FIELDS = "JobID,State,Reason,JobName"
_LONGEST_ARGUMENT = 100_000  # Linux refuses one of 128 KiB
_CLOCKS_DIFFER_S = 3600.0  # between the login node and the database, at most


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One line of squeue or sacct."""

    job_id: str
    """123, or 123_4 in an array."""
    name: str
    state: str
    """Slurm's word for it."""
    reason: str = ""
    start_s: float | None = None
    """Unix time of the start, expected or past."""

    @property
    def task(self) -> str:
        """Number of its run in the array; empty where there is none."""
        return self.job_id.partition("_")[2]

    def condition(self) -> Condition:
        """What it means for a run."""
        state = _STATES.get(self.state, "running")
        if state == "pending":
            return Condition(
                state=state, reason=plain_reason(self.reason), expected_start_s=self.start_s
            )
        if state == "running":
            return Condition(state=state)
        why = ENDED_REASONS.get(self.reason)
        return Condition(state=state, reason=why or f"Slurm says {self.state}")


def ask_queue() -> list[QueuedJob]:
    """All jobs of this user that squeue knows: those that wait and run, and some that ended lately.

    Raises SchedulerError.
    """
    argv = ["squeue", "--me", "--noheader", "--array", "--states=all"]
    return parse_queue(
        run_command([*argv, f"--format={_SQUEUE_FORMAT}"], timeout_s=TIMEOUT_S).stdout
    )


def parse_queue(text: str) -> list[QueuedJob]:
    """The lines of `squeue --format=%i|%T|%r|%S|%j`."""
    rows = (line.split("|", 4) for line in text.splitlines())
    return [
        QueuedJob(
            job_id=row[0], state=row[1], reason=row[2], start_s=unix_time(row[3]), name=row[4]
        )
        for row in rows
        if len(row) == 5
    ]


def scancel(job_ids: Sequence[str]) -> None:
    """Have Slurm end jobs; those that have ended are none of its business.

    Raises SchedulerError.
    """
    if job_ids:
        run_command(["scancel", "--quiet", *job_ids], timeout_s=TIMEOUT_S)


def ask_accounting(job_ids: Iterable[str], *, since_s: float) -> list[QueuedJob]:
    """What accounting knows of these jobs; several lines where ids were used again.

    `since_s` is the Unix time of the oldest job's submission. Raises SchedulerError.
    """
    argv = ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2"]
    wanted = [f"--format={_SACCT_FIELDS}", *accounting_choice(job_ids, since_s)]
    return parse_accounting(run_command([*argv, *wanted], timeout_s=TIMEOUT_S).stdout)


def accounting_choice(job_ids: Iterable[str], since_s: float) -> list[str]:
    """How one sacct is asked for any number of jobs: by id, an array by its one; else by time."""
    wanted = sorted({job_id.partition("_")[0] for job_id in job_ids})
    by_id = f"--jobs={','.join(wanted)}"
    if len(by_id) <= _LONGEST_ARGUMENT:
        return [by_id]
    since = time.localtime(max(since_s - _CLOCKS_DIFFER_S, 0))
    start = time.strftime("%Y-%m-%dT%H:%M:%S", since)
    return [f"--user={os.getuid()}", f"--starttime={start}"]


def parse_accounting(text: str) -> list[QueuedJob]:
    """The lines of `sacct --parsable2 --format=JobID,State,Reason,JobName`, oldest first."""
    rows = (line.split("|", 3) for line in text.splitlines())
    return [
        QueuedJob(
            job_id=row[0],
            state=row[1].partition(" ")[0],
            reason=_accounted_reason(row[1], row[2]),
            name=row[3],
        )
        for row in rows
        if len(row) == 4
    ]


def _accounted_reason(state: str, reason: str) -> str:
    """A user's cancellation says by whom; Slurm's own, of what could never start, does not."""
    removed = state == "CANCELLED" and reason == "Dependency"
    return "DependencyNeverSatisfied" if removed else reason


def unix_time(text: str) -> float | None:
    """2026-11-21T13:36:39 in this machine's time zone, as Slurm prints it; N/A where not known."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
