"""Jobs as squeue and sacct tell of them: one call of each for any number of runs; and why a job
waits, in plain words (the codes: slurm.schedmd.com/job_reason_codes.html)."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import run_command
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.requeue import Cause, Decision

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

_STOPPED = {
    "SUSPENDED": (
        "Slurm has suspended it: it continues when it is resumed (scontrol resume JOBID, or "
        "when the job that has its nodes ends)"
    ),
    "STOPPED": (
        "its processes were stopped by SIGSTOP: scancel --signal=CONT JOBID lets them continue"
    ),
}
"""States of jobs that have their nodes and do nothing -> in plain words."""

_SQUEUE_FORMAT = "%i|%T|%r|%S|%j"  # the name comes last: it may hold what separates
_SACCT_FIELDS = "JobID,State,Reason,JobName"
_LONGEST_ARGUMENT = 100_000  # Linux refuses one of 128 KiB
_CLOCKS_DIFFER_S = 3600.0  # between the login node and the database, at most

_REASONS = {
    "AssocGrpCpuLimit": "your account uses all CPUs that it may have at one time",
    "AssocGrpGRES": "your account uses all GPUs that it may have at one time",
    "AssocGrpNodeLimit": "your account uses all nodes that it may have at one time",
    "AssocMaxJobsLimit": "your account runs as many jobs as it may at one time",
    "AssocMaxNodePerJobLimit": "it asks for more nodes than your account allows a job",
    "AssocMaxWallDurationPerJobLimit": "its time limit is longer than your account allows",
    "BeginTime": "its start time has not come; a requeued job is held for about two minutes",
    "Cleaning": "it was requeued, and its former processes are still being ended",
    "Dependency": "it waits for the end of another job",
    "DependencyNeverSatisfied": "the job that it waits for failed: it will never start",
    "JobArrayTaskLimit": "as many runs of the sweep as --max-parallel allows are active",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; release it with: scontrol release JOBID",
    "Licenses": "it waits for licenses",
    "MaxMemPerLimit": "it asks for more memory than the partition allows",
    "NodeDown": "a node that it needs is down",
    "None": "the scheduler has not looked at it yet",
    "PartitionConfig": "it asks for more than the nodes of the partition have",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs at present",
    "PartitionNodeLimit": "it asks for more nodes than the partition has",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "Priority": "other jobs come before it",
    "Prolog": "its nodes are being prepared",
    "QOSMaxCpuPerUserLimit": "you use all CPUs that the QOS allows you",
    "QOSMaxGRESPerUser": "you use all GPUs that the QOS allows you",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as the QOS allows you",
    "QOSMaxNodePerUserLimit": "you use all nodes that the QOS allows you",
    "QOSMaxWallDurationPerJobLimit": "its time limit is longer than the QOS allows",
    "ReqNodeNotAvail": "nodes that it needs are reserved or down, perhaps for maintenance",
    "Reservation": "its reservation has not begun",
    "Resources": "it waits for nodes to become free",
    "launch failed requeued held": "its start failed on a node, and it is held; release it with: "
    "scontrol release JOBID",
}
_WHY_ENDED = {
    "JobLaunchFailure": "its first node could not start its script, as where that node cannot "
    "write the runs folder",
}
_LOST_STATES = ("down", "fail")
_NEVER = "DependencyNeverSatisfied"
_REMOVED = (
    f"the run that it waited for did not end as --after requires, so Slurm removed it ({_NEVER})"
)


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
        """Return the number of its run in the array; empty where there is none."""
        return self.job_id.partition("_")[2]

    def condition(self) -> Condition:
        """Return the condition of its run."""
        state = _STATES.get(self.state, "running")
        if state == "pending":
            reason = plain_reason(self.reason)
            return Condition(state=state, reason=reason, expected_start_s=self.start_s)
        if state == "running":
            stopped = _STOPPED.get(self.state)
            return Condition(state=state, reason=stopped, is_suspended=stopped is not None)
        why = _REMOVED if self.reason == _NEVER else f"Slurm says {self.state}"
        if words := _WHY_ENDED.get(self.reason):
            why += f": {words} ({self.reason})"
        return Condition(state=state, reason=why)


def ask_queue() -> list[QueuedJob]:
    """Return all jobs of this user that squeue knows: those that wait and run, and some that ended.

    Raises SchedulerError.
    """
    argv = ["squeue", "--me", "--noheader", "--array", "--states=all", f"--format={_SQUEUE_FORMAT}"]
    return parse_queue(run_command(argv, timeout_s=TIMEOUT_S).stdout)


def parse_queue(text: str) -> list[QueuedJob]:
    """Return the lines of `squeue --format=%i|%T|%r|%S|%j`."""
    rows = (line.split("|", 4) for line in text.splitlines())
    return [
        QueuedJob(
            job_id=row[0], state=row[1], reason=row[2], start_s=unix_time(row[3]), name=row[4]
        )
        for row in rows
        if len(row) == 5
    ]


def show_job(job_id: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Return what scontrol says of a job, in one line; raises SchedulerError."""
    argv = ["scontrol", "--oneliner", "show", "job", job_id]
    return run_command(argv, timeout_s=timeout_s).stdout


def job_fields(text: str) -> dict[str, str]:
    """Return the fields of such a line."""
    return dict(re.findall(r"(\w+)=(\S*)", text))


def scancel(job_ids: Sequence[str]) -> None:
    """Have Slurm end jobs; those that have ended are none of its business.

    Raises SchedulerError.
    """
    if job_ids:
        run_command(["scancel", "--quiet", *job_ids], timeout_s=TIMEOUT_S)


def ask_accounting(job_ids: Iterable[str], *, since_s: float) -> list[QueuedJob]:
    """Return what accounting knows of these jobs; several lines where ids were used again.

    `since_s` is the Unix time of the oldest job's submission. Raises SchedulerError.
    """
    argv = ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2"]
    wanted = [f"--format={_SACCT_FIELDS}", *accounting_choice(job_ids, since_s)]
    return parse_accounting(run_command([*argv, *wanted], timeout_s=TIMEOUT_S).stdout)


def accounting_choice(job_ids: Iterable[str], since_s: float) -> list[str]:
    """Return how sacct is asked for any number of jobs: by id, an array by its one, or by time."""
    wanted = sorted({job_id.partition("_")[0] for job_id in job_ids})
    by_id = f"--jobs={','.join(wanted)}"
    if len(by_id) <= _LONGEST_ARGUMENT:
        return [by_id]
    since = time.localtime(max(since_s - _CLOCKS_DIFFER_S, 0))
    start = time.strftime("%Y-%m-%dT%H:%M:%S", since)
    return [f"--user={os.getuid()}", f"--starttime={start}"]


def parse_accounting(text: str) -> list[QueuedJob]:
    """Return the lines of `sacct --parsable2 --format=JobID,State,Reason,JobName`, oldest first; a
    line for several elements of an array as one for each."""
    rows = (line.split("|", 3) for line in text.splitlines())
    return [
        QueuedJob(
            job_id=job_id,
            state=row[1].partition(" ")[0],
            # A cancellation says by whom; but Slurm's own, of what could never start, does not.
            reason=row[2] if row[1:3] != ["CANCELLED", "Dependency"] else _NEVER,
            name=row[3],
        )
        for row in rows
        if len(row) == 4
        for job_id in _elements(row[0])
    ]


def _elements(job_id: str) -> list[str]:
    """Return 7_1, 7_3, 7_4 and 7_5 for 7_[1,3-5%2], and the id itself for another."""
    array, bracket, inner = job_id.partition("_[")
    if not bracket:
        return [job_id]
    ranges = re.findall(r"(\d+)(?:-(\d+))?(?::(\d+))?", inner.rstrip("]").partition("%")[0])
    return [
        f"{array}_{number}"
        for first, last, step in ranges
        for number in range(int(first), int(last or first) + 1, int(step or 1))
    ]


def unix_time(text: str) -> float | None:
    """Return the time of 2026-11-21T13:36:39 in this machine's time zone; None for N/A."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def plain_reason(code: str) -> str:
    """Return a sentence for a reason as squeue gives it, with the code; or an unknown one as is."""
    name = code.strip("()").partition(",")[0].strip()
    words = _REASONS.get(name)
    if words is None:
        return f"Slurm gives the reason {name or 'None'}"
    return words if name == "None" else f"{words} ({name})"


# The job that this process is part of. SIGTERM means many things: a preemption, with or without a
# grace period, an administrator's requeue, the time limit where the earlier warning was not enough,
# or a scancel. `scontrol show job` tells them apart.


def decide(verdict: Verdict, said: str, *, life: int) -> Decision:
    """Return what is to follow the end of a life, from what `show_job` says."""
    fields = job_fields(said)
    state, num_requeues = fields.get("JobState", ""), int(fields.get("Restarts") or 0)
    # Chosen to make room, perhaps with a grace period.
    is_preempted = fields.get("PreemptTime", "None") not in {"None", "Unknown"}
    if num_requeues > life or state in {"PENDING", "REQUEUED"}:  # one under way is counted
        # A preemption without a grace period looks like an administrator's requeue.
        cause: Cause = "preemption" if is_preempted else "requeue or preemption"
        return Decision(sequel="leave", cause=cause)
    if fields.get("Reason") == "TimeLimit":
        return Decision(sequel="requeue", cause="time_limit")
    if is_preempted:
        return Decision(sequel="requeue", cause="preemption")
    if state == "COMPLETING" and _was_killed(fields):
        return Decision(sequel="requeue", cause="kill of the script")
    is_terminated = verdict.signal == "SIGTERM"
    if state in {"COMPLETING", "CANCELLED"}:
        return Decision(sequel="final", cause="cancel" if is_terminated else "nothing")
    # Somebody sent SIGTERM by hand, for no reason that Slurm knows of: the job is to end.
    return Decision(sequel="final" if is_terminated else "requeue", cause="nothing")


def with_lost_node(decision: Decision, said: str, hosts: Sequence[str]) -> Decision:
    """Return the decision with the first of the job's hosts that Slurm has lost, where it has lost
    one, from the lines of `sinfo --Node --format=%N|%T|%E`."""
    rows = (line.split("|", 2) for line in said.splitlines())
    states = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
    for node, host in enumerate(hosts):
        state, reason = states.get(host, ("", ""))
        if state.startswith(_LOST_STATES) or state.endswith("*"):  # *: its slurmd does not respond
            why = state if reason in {"", "none"} else f"{state}, {reason}"
            lost = f"Slurm lost node {node} (host {host}: {why})"
            return msgspec.structs.replace(decision, node=node, host=host, lost=lost)
    return decision


def ask_nodes_of_job(node_list: str, *, timeout_s: float) -> str:
    """Return what sinfo says of nodes, for `with_lost_node`; nothing where it does not answer."""
    argv = ["sinfo", "--noheader", "--Node", f"--nodes={node_list}", "--format=%N|%T|%E"]
    try:
        return run_command(argv, timeout_s=timeout_s).stdout
    except SchedulerError:
        return ""


def _was_killed(fields: Mapping[str, str]) -> bool:
    """Return whether a job ends because its batch script was killed. After a cancellation there is
    no reason, and not soon an exit code."""
    exit_code, reason = fields.get("ExitCode", ""), fields.get("Reason", "None")
    return exit_code.endswith(f":{signal.SIGKILL.value}") and reason != "None"


def own_job_id() -> str:
    """Return the job's id; of an array's element with its place, for the last element's
    SLURM_JOB_ID is the array's own, and would mean all of them."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]
