"""Starting an LSF job again from within: by `brequeue`, or by a new job where that is refused.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec

from hpcdist.base.errors import SubmissionUnclearError
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf.bjobs import ListedJob, ask_jobs, submit_script
from hpcdist.schedulers.lsf.commands import (
    DOWN,
    array_id,
    brequeue,
    own_id,
    submission_environment,
)
from hpcdist.schedulers.lsf.hosts import means_first_host
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError

_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""
_END_IS_KNOWN_S = 10.0
"""Time in which LSF notices that a job's script has ended."""
_POLL_S = 1.0
_ONLY_ONCE = re.compile(r"^#BSUB (?:-J|-w|-ti)\b.*\n", re.MULTILINE)
"""Lines that a job must not have when it goes on: its array, and the jobs that it waited for."""


class LsfRequeuer:
    """Starts the job again that the environment names."""

    def __init__(self) -> None:
        self._is_unclear = False
        """LSF may have heard a request that it did not answer: one more could be the run twice."""

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the run limit, and the loss of a host, by a requeue; never a kill."""
        if verdict.kind == "preempted" or (_is_of_first_host(verdict) and not _still_runs()):
            return Decision(sequel="open", cause="kill or requeue")
        return Decision(
            sequel="requeue", cause="time_limit" if verdict.kind == "time_limit" else "nothing"
        )

    def requeue(self, run: Run) -> None:
        """Call brequeue, which ends this job's processes, and queues it again."""
        try:
            brequeue(own_id(), timeout_s=_TIMEOUT_S)
        except CommandTimeoutError:
            self._is_unclear = True
            raise
        except CommandFailedError as error:
            if not self._is_unclear:
                self._go_on_as_another(run, error)

    def _go_on_as_another(self, run: Run, refusal: CommandFailedError) -> None:
        try:
            _submit_anew(run)
        except SubmissionUnclearError:
            self._is_unclear = True
            raise
        except CommandFailedError as error:
            if DOWN.search(error.said):
                raise
            raise RequeueRefusedError(f"{refusal.message}; {error.message}") from None


def _is_of_first_host(verdict: Verdict) -> bool:
    return verdict.kind == "agent_lost" and verdict.node == 0


def _still_runs() -> bool:
    """Return whether LSF means the job to run on after its first host's agent was lost: a kill
    ends that host first, and a job whose first host is gone is LSF's to start again.

    Raises SchedulerError.
    """
    deadline = time.monotonic() + _END_IS_KNOWN_S
    while any(job.job_id == own_id() and job.stat == "RUN" for job in ask_jobs([own_id()])):
        if time.monotonic() > deadline:
            return True
        time.sleep(_POLL_S)
    return False


def _submit_anew(run: Run) -> None:
    """Submit the same run as another job, by the same script."""
    submission = run.read_submission() or Submission()
    name, folder = str(submission.job_name), Path(str(submission.folder))
    index = os.environ.get("LSB_JOBINDEX", "0")
    called = name if index in {"", "0"} else f"{name}[{index}]"
    script = _ONLY_ONCE.sub("", (folder / "script.sh").read_text())
    environment = {
        key: value for key, value in submission_environment().items() if not means_first_host(key)
    }
    job_id, _ = submit_script(
        script, name, options=["-J", called], environment=environment, ask=_others
    )
    new_id = job_id if called == name else f"{job_id}[{index}]"
    _give_pickle(folder / "submitit", own_id(), new_id)
    former = [*submission.former_job_ids, str(submission.job_id)]
    run.write_submission(msgspec.structs.replace(submission, job_id=new_id, former_job_ids=former))


def _others() -> list[ListedJob]:
    """Return the jobs that this one may just have been submitted as; it has their name too."""
    own, index = array_id(own_id()), os.environ.get("LSB_JOBINDEX", "0")
    task = "" if index in {"", "0"} else str(int(index) - 1)
    return [
        job
        for job in ask_jobs()
        if array_id(job.job_id) != own
        and job.task == task
        and job.condition().state in ("pending", "running")
    ]


def _give_pickle(folder: Path, former: str, new: str) -> None:
    """Link the pickle; it may come after the job's start: submitit waits a minute for it."""
    names = [one.replace("[", "_").rstrip("]") + "_submitted.pkl" for one in (former, new)]
    os.symlink(names[0], folder / names[1])
