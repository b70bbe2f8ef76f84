"""Every error that hpcdist raises on purpose, and the exit code that each ends the command with.

    HpcdistError                 1   anything below that has no code of its own
    ├── UserError                2   the user's input is wrong: nothing was submitted
    │   ├── JobError             2   a job file, a job name, a script or a flag
    │   ├── ProfileError         2   a cluster profile, or the name of one
    │   └── RunNotFoundError     2   a run id that matches none or several
    ├── RunDirectoryError        2   the directory for the runs cannot be written
    ├── RunFailedError           1   a run's result was asked for, and it has failed
    └── SchedulerError           3   the scheduler refused, or cannot be reached
        ├── NoSchedulerError         3   this machine has none
        └── SubmissionUnclearError   3   it may have the job, or not: the run is kept

A command that ends without an error ends with 0, with the run's own code where it waited for a
run, and with 130 where the user interrupted it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdist.runs.verdict import Verdict

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USER = 2
EXIT_SCHEDULER = 3
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130

EXIT_CODES = {
    EXIT_DONE: "done",
    EXIT_FAILED: "the run failed",
    EXIT_USER: "the input is wrong (job, flag, run id, runs folder); nothing was submitted",
    EXIT_SCHEDULER: "the scheduler refused the job or cannot be reached; if it may still have the "
    "job, the message says so",
    EXIT_STOPPED: "stopped before its end, to continue later: before the time limit, for a "
    "preemption or a requeue (`--no-requeue`, or a scheduler that does not start jobs again)",
    EXIT_INTERRUPTED: "interrupted or cancelled",
}
"""The codes in words, for the help, `hpcdist explain` and docs/terms/exit-codes.md."""


class HpcdistError(Exception):
    """An error with one line that says what is wrong and one that says what to do."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(HpcdistError):
    """The user's input is wrong."""

    exit_code = EXIT_USER


class JobError(UserError):
    """A job file, a job name, a script or a flag is wrong."""


class ProfileError(UserError):
    """A cluster profile (hpcdist.yaml), or the name of one, is wrong."""


class RunNotFoundError(UserError):
    """A run id matches no run, or several."""


class RunDirectoryError(HpcdistError):
    """The directory for the runs cannot be made or written."""

    exit_code = EXIT_USER


class RunFailedError(HpcdistError):
    """A run whose result was asked for did not end well; its cause is what a rank raised."""

    def __init__(self, run: str, verdict: Verdict) -> None:
        super().__init__(f"run {run}: {verdict.message}")
        first = verdict.first
        self.verdict = verdict
        """Why it ended: `kind`, `message`, `first` (the end of the rank that failed first)."""
        self.rank = None if first is None else first.rank
        """The rank that failed first; None where none is to blame."""
        self.host = (first or verdict).host
        """The host of that rank, or of the agent that is to blame."""
        self.remote_traceback = None if first is None else first.report.traceback
        """The traceback of that rank, as text."""

    def __str__(self) -> str:
        traceback = self.remote_traceback
        where = f"rank {self.rank} on {self.host}"
        return self.message if traceback is None else f"{self.message}\n\nin {where}:\n{traceback}"


class SchedulerError(HpcdistError):
    """The scheduler refused the job, or does not answer."""

    exit_code = EXIT_SCHEDULER


class NoSchedulerError(SchedulerError):
    """No scheduler answers on this machine."""


class SubmissionUnclearError(SchedulerError):
    """The scheduler did not say whether it took the job: what the job needs must stay."""
