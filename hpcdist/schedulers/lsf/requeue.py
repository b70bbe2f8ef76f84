"""Starting an LSF job again from within: by `brequeue`, or by a new job where that is refused, or
would get a host that is lost.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back. A job
whose first host is lost is LSF's to start again (-r): a brequeue would end it for good.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path

from hpcdist.base.errors import SchedulerError, SubmissionUnclearError
from hpcdist.base.polling import poll
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.hosts import (
    FIRST_END_VARIABLE,
    HOSTS_VARIABLE,
    KILLED,
    means_first_host,
    read_hosts,
)
from hpcdist.schedulers.jobs import leave_run, note_successor, own_submission
from hpcdist.schedulers.lsf.bjobs import ListedJob, ask_jobs, submit_script
from hpcdist.schedulers.lsf.commands import (
    DOWN,
    array_id,
    brequeue,
    submission_environment,
)
from hpcdist.schedulers.lsf.elsewhere import (
    elsewhere_sentence,
    has_others,
    lost_hosts,
    pause_s,
    without_hosts,
)
from hpcdist.schedulers.lsf.hosts import own_id, own_index
from hpcdist.schedulers.lsf.site import ask_hosts
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError, RequeueUnclearError

_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""
_END_IS_KNOWN_S = 10.0
"""Time in which the program on the first host tells the others that its command has ended."""
_POLL_S = 1.0
_LSF_ACTS_S = 600.0
"""Time in which LSF starts a job again whose first host is lost; it was 135 s."""
_LSF_POLL_S = 5.0
_LOST_WITH_HOST = ("TERM_ZOMBI", "TERM_REMOVE_HUNG_JOB")
"""LSF's reasons for the end of a job whose host it could not reach."""
_ONLY_ONCE = re.compile(r"^#BSUB (?:-J|-w|-ti)\b.*\n", re.MULTILINE)
"""Lines that a job must not have when it goes on: its array, and the jobs that it waited for."""


class LsfRequeuer:
    """Starts the job again that the environment names."""

    def __init__(self) -> None:
        self._is_unclear = False
        """LSF may have heard a request that it did not answer: one more could be the run twice."""
        self._is_first_host_lost = False

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the run limit, and the loss of a host, by a requeue; never a kill."""
        if verdict.kind == "preempted":
            return Decision(sequel="open", cause="kill or requeue")
        if verdict.kind == "agent_lost" and verdict.node == 0:
            end = _end_of_first()
            self._is_first_host_lost = end is None
            if end == KILLED:
                return Decision(sequel="open", cause="kill or requeue")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> str | None:
        """Call brequeue, which ends this job's processes, and queues it again; submit the run anew
        where a host was lost as the job began, or where LSF is done with the job."""
        if self._is_first_host_lost:
            if _is_over_with_its_host(run):
                self._anew(run)
            return None
        ends = {one: found for one in run.attempts() if (found := run.read_attempt_verdict(one))}
        if ends and ends[max(ends)].try_elsewhere and not self._is_unclear:
            lost = lost_hosts(ends.values(), now_s=time.time())
            if lost and _are_others_up(run, lost) and self._goes_elsewhere(run, lost):
                return elsewhere_sentence(lost)
            _wait(run, pause_s(ends))
        self._brequeue(run)
        return None

    def _goes_elsewhere(self, run: Run, lost: Collection[str]) -> bool:
        """Submit the run anew without hosts that were lost; False where LSF refuses."""
        try:
            self._anew(run, without=lost)
        except CommandFailedError as refusal:
            if DOWN.search(refusal.said):
                raise
            return False
        return True

    def _anew(self, run: Run, *, without: Collection[str] = ()) -> None:
        try:
            _submit_anew(run, without=without)
        except SubmissionUnclearError:
            self._is_unclear = True
            raise

    def _brequeue(self, run: Run) -> None:
        try:
            brequeue(own_id(), timeout_s=_TIMEOUT_S)
        except CommandTimeoutError as error:
            self._is_unclear = True
            raise RequeueUnclearError(f"LSF may start it again, or not: {error.message}") from None
        except CommandFailedError as refusal:
            if self._is_unclear:
                return
            try:
                self._anew(run)
            except CommandFailedError as error:
                if DOWN.search(error.said):
                    raise
                raise RequeueRefusedError(f"{refusal.message}; {error.message}") from None


def _end_of_first() -> str | None:
    """Return how the first host's command ended, as the program there tells it, which outlives it;
    None where that is silent, too: then the host is gone."""
    file = Path(os.environ.get(FIRST_END_VARIABLE, ""))

    def look() -> str | None:
        try:
            return file.read_text()
        except OSError:
            return None

    return poll(look, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S)


def _is_over_with_its_host(run: Run) -> bool:
    """Wait until LSF starts a job again whose first host is lost, or says that it is over; return
    whether it is over, for no other reason than that host. What LSF does later is left to it."""
    first = [host.name for host in read_hosts(os.environ.get(HOSTS_VARIABLE, ""))][:1]

    def look() -> bool | None:
        if run.verdict_file.exists() or run.cancel_file.exists():
            return False
        try:
            job = next((job for job in ask_jobs([own_id()]) if job.job_id == own_id()), None)
        except SchedulerError:
            return None
        if job is None:  # an answer without the job says nothing
            return None
        if job.state == "EXIT":
            return job.exit_reason.startswith(_LOST_WITH_HOST)
        is_again = job.state == "PEND" or (job.state == "RUN" and job.nodes[:1] != first)
        return False if is_again else None

    return poll(look, interval_s=_LSF_POLL_S, limit_s=_LSF_ACTS_S) or False


def _are_others_up(run: Run, lost: Collection[str]) -> bool:
    hosts = read_hosts(os.environ.get(HOSTS_VARIABLE, ""))
    slots = max((host.slots for host in hosts), default=1)
    nodes = run.read_outline().resources.nodes or len(hosts)
    return has_others(ask_hosts(), lost, nodes=nodes, slots=slots)


def _wait(run: Run, limit_s: float) -> None:
    """Wait so long, or until nobody wants the run any more."""
    poll(
        lambda: run.cancel_file.exists() or run.verdict_file.exists() or None,
        interval_s=_POLL_S,
        limit_s=limit_s,
    )


def _submit_anew(run: Run, *, without: Collection[str] = ()) -> None:
    """Submit the same run as another job, by the same script, which may ask for other hosts."""
    submission, script = own_submission(run)
    name = str(submission.job_name)
    index = own_index()
    called = f"{name}[{index}]" if index else name
    script = _ONLY_ONCE.sub("", script)
    if without:
        script = without_hosts(script, without)
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
