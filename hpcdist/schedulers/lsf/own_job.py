"""What LSF tells a job of itself, and what the job tells LSF in the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HOSTS_VARIABLE = "HPCDIST_LSF_HOSTS"
"""The hosts and slots of the job, as LSB_MCPU_HOSTS has them, each host once."""
LIFE_VARIABLE = "HPCDIST_LSF_LIFE"
"""How often LSF had started the job before."""
TASK_VARIABLE = "HPCDIST_LSF_TASK"
"""Number of the command's copy, counted over all hosts."""
TASKS_PER_NODE_VARIABLE = "HPCDIST_LSF_TASKS_PER_NODE"


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host of the job."""

    name: str
    slots: int


def job_hosts(text: str, *, skip_first: bool = False) -> list[Host]:
    """The hosts of LSB_MCPU_HOSTS, "hostA 8 hostB 8 ", in their order; one that is named twice has
    the slots of both.

    `skip_first` is for sites whose first host only launches (IBM CSM). Source: IBM Spectrum LSF
    10.1 documentation, Environment variables set for job execution.
    """
    words = text.split()
    slots: dict[str, int] = {}
    for name, number in zip(words[0::2], words[1::2], strict=False):
        slots[name] = slots.get(name, 0) + int(number)
    hosts = [Host(name=name, slots=number) for name, number in slots.items()]
    return hosts[1:] if skip_first else hosts


def exit_code_for_lsf(code: int, requeued: str) -> int:
    """The exit code that LSF is told: never one for which it would start the job again.

    `requeued` is LSB_EXIT_REQUEUE: codes, or `all` but some (`all ~1`), and EXCLUDE(codes). A job
    that was killed, or stopped for good, must not come back; what is to come back is requeued by
    name.
    """
    if code == 0:
        return 0
    return next((one for one in (code, *range(1, 256)) if not _requeues(one, requeued)), code)


def _requeues(code: int, requeued: str) -> bool:
    words = requeued.replace("EXCLUDE(", " ").replace(")", " ").split()
    return f"~{code}" not in words and (str(code) in words or "all" in words)


def count_start(logs: str, job: str, index: str) -> int:
    """How often the job was started before; a job that was submitted anew goes on counting."""
    with Path(logs, f"starts-{index or 0}").open("a+") as file:
        file.seek(0)
        before = len(file.readlines())
        file.write(f"{job}\n")
    return before
