"""Starting an LSF job again from within: by `brequeue`, or by a new job where that is refused.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back.
"""

from __future__ import annotations

import re

from hpcdist.base.errors import SubmissionUnclearError
from hpcdist.base.polling import poll
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.hosts import means_first_host
from hpcdist.schedulers.jobs import leave_run, note_successor, own_submission
from hpcdist.schedulers.lsf.bjobs import ListedJob, ask_jobs, submit_script
from hpcdist.schedulers.lsf.commands import (
    DOWN,
    array_id,
    brequeue,
    submission_environment,
)
from hpcdist.schedulers.lsf.hosts import own_id, own_index
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
        lost_first = verdict.kind == "agent_lost" and verdict.node == 0
        if verdict.kind == "preempted" or (lost_first and _is_ending()):
            return Decision(sequel="open", cause="kill or requeue")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> None:
        """Call brequeue, which ends this job's processes, and queues it again."""
        try:
            brequeue(own_id(), timeout_s=_TIMEOUT_S)
        except CommandTimeoutError:
            self._is_unclear = True
            raise
        except CommandFailedError as refusal:
            if self._is_unclear:
                return
            try:
                _submit_anew(run)
            except SubmissionUnclearError:
                self._is_unclear = True
                raise
            except CommandFailedError as error:
                if DOWN.search(error.said):
                    raise
                raise RequeueRefusedError(f"{refusal.message}; {error.message}") from None


def _is_ending() -> bool:
    """Return whether LSF ends the job, or has lost its first host, where that one's agent was lost:
    a kill ends that host first, and a job whose first host is gone is LSF's to start again.

    Raises SchedulerError.
    """

    def look() -> bool | None:
        runs = any(job.job_id == own_id() and job.state == "RUN" for job in ask_jobs([own_id()]))
        return None if runs else True

    return poll(look, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S) or False


def _submit_anew(run: Run) -> None:
    """Submit the same run as another job, by the same script."""
    submission, script = own_submission(run)
    name = str(submission.job_name)
    index = own_index()
    called = f"{name}[{index}]" if index else name
    script = _ONLY_ONCE.sub("", script)
    environment = {
        key: value for key, value in submission_environment().items() if not means_first_host(key)
    }
    leave_run(submission, int(index or 0), own_id())
    job_id, _ = submit_script(
        script, name, options=["-J", called], environment=environment, ask=_others
    )
    new_id = f"{job_id}[{index}]" if index else job_id
    own, new = (one.replace("[", "_").rstrip("]") for one in (own_id(), new_id))
    note_successor(run, submission, new_id, pickles=(own, new))


def _others() -> list[ListedJob]:
    """Return the jobs that this one may just have been submitted as; it has their name too."""
    own, index = array_id(own_id()), own_index()
    return [
        job
        for job in ask_jobs()
        if array_id(job.job_id) != own
        and job.task == (str(int(index) - 1) if index else "")
        and job.is_active
    ]
