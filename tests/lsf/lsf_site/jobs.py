"""A job as the daemon knows it."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from lsf_site.resources import Request

ENDED = ("DONE", "EXIT")
STARTED = ("RUN", "USUSP", "SSUSP", "UNKWN", "ZOMBI")
REASONS = {
    "TERM_OWNER": "job killed by owner",
    "TERM_ADMIN": "job killed by root or LSF administrator",
    "TERM_FORCE_OWNER": "job killed by owner without time for cleanup",
    "TERM_RUNLIMIT": "job killed after reaching LSF run time limit",
    "TERM_REQUEUE_OWNER": "job killed and requeued by owner",
    "TERM_REQUEUE_ADMIN": "job killed and requeued by root or LSF administrator",
    "TERM_PREEMPT": "job killed after preemption",
    "TERM_ORPHAN_SYSTEM": "orphaned job killed automatically by LSF",
    "TERM_ZOMBIE": "job exited while LSF is not available",
    "TERM_EXTERNAL_SIGNAL": "job killed by a signal external to LSF",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a job has of one host."""

    host: str
    slots: int
    gpus: tuple = ()


@dataclass(kw_only=True)
class Job:
    """One job, or one element of an array."""

    id: int
    index: int = 0
    """0 for a job that is no element."""
    stem: str = ""
    """The name, without the index."""
    array_limit: int | None = None
    array_end: int = 0
    user: str = "user1"
    queue: str = "normal"
    script: str = ""
    """Text of the file that runs."""
    environment: dict = field(default_factory=dict)
    cwd: str = "/"
    run_cwd: str | None = None
    output: str | None = None
    overwrites: bool = False
    """Whether the output file is begun anew."""
    request: Request = field(default_factory=Request)
    run_limit_min: float | None = None
    condition: tuple | None = None
    ends_as_orphan: bool = False
    rerunnable: bool = False
    options: dict = field(default_factory=dict)
    """As bsub was given them, merged."""

    state: str = "PEND"
    pending_reason: str = "New job is waiting for scheduling"
    submit_s: float = field(default_factory=time.time)
    not_before_s: float = 0
    start_s: float | None = None
    end_s: float | None = None
    limit_s: float | None = None
    """When the run limit is reached."""
    lost_s: float | None = None
    """When its first host was lost, of a job that ran there."""
    places: list = field(default_factory=list)
    attempts: int = 0
    pid: int | None = None
    """Of the script; also its process group."""
    exit_code: int | None = None
    signal: int | None = None
    term_reason: str = ""
    killed_as: str = ""
    """The reason of a kill that goes on."""
    kills: list = field(default_factory=list)
    """Signals still to come: (when, number)."""
    requeues: str = ""
    """Reason of a requeue that goes on."""
    spooled: Path | None = None
    """Where this attempt's output goes until the end."""

    @property
    def key(self):
        """As LSF writes it: 12 or 12[3]."""
        return f"{self.id}[{self.index}]" if self.index else str(self.id)

    @property
    def name(self):
        return f"{self.stem}[{self.index}]" if self.index else self.stem

    @property
    def has_ended(self):
        return self.state in ENDED

    @property
    def has_started(self):
        return self.state in STARTED

    @property
    def first_host(self):
        return self.places[0].host if self.places else None
