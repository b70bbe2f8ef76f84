"""Why a job waits, in plain words (the codes: slurm.schedmd.com/job_reason_codes.html)."""

from __future__ import annotations

_HELD = "it is held; release it with: scontrol release JOBID"

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
    "JobArrayTaskLimit": "as many runs of the sweep as --max-parallel allows are under way",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": _HELD,
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


ENDED_REASONS = {
    "DependencyNeverSatisfied": "what it was to follow did not end as --after asks, so Slurm "
    "removed it (DependencyNeverSatisfied)",
}
"""Reason of a job that has ended -> in plain words, where it tells more than the state."""


def plain_reason(code: str) -> str:
    """A sentence for a reason as squeue gives it, with the code; unknown codes as they are."""
    name = code.strip("()").partition(",")[0].strip()
    words = _REASONS.get(name)
    if words is None:
        return f"Slurm gives the reason {name or 'None'}"
    return words if name == "None" else f"{words} ({name})"
