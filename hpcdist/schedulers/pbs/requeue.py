"""Going on with a run after its job: users may not have PBS start a job again (qrerun), so the run
is submitted anew from within, and what waits for the job is told to wait for the new one.

PBS warns nobody of a time limit: the agents' own clock does. SIGTERM comes from a qdel, from an
operator's qrerun and from a preemption alike: what could be saved is saved, and PBS alone knows
whether the job comes back.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from hpcdist.base.errors import EXIT_STOPPED, SchedulerError, SubmissionUnclearError
from hpcdist.base.polling import poll
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.hosts import PLACE_VARIABLE
from hpcdist.schedulers.jobs import leave_run, note_successor, own_submission
from hpcdist.schedulers.pbs.commands import TIMEOUT_S, array_id, qsub, submitit_id
from hpcdist.schedulers.pbs.hosts import own_id, successor_file
from hpcdist.schedulers.pbs.qstat import QstatJob, ask_jobs, parse_whole
from hpcdist.schedulers.pbs.request import INDEX
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError

_END_IS_KNOWN_S = 6.0
"""Time in which PBS notices that a job is at its end."""
_POLL_S = 1.0
_ONLY_ONCE = re.compile(r"-(?:J|W depend)\b")
"""Directives that a job must not have when it goes on: its array, and the jobs that it waited
for."""


class PbsRequeuer:
    """Submits the run again that this job is."""

    def __init__(self) -> None:
        self._is_unclear = False
        """PBS may have heard a request that it did not answer: one more could be the run twice."""

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the time limit, and the loss of a host, by a new job; never a kill."""
        if verdict.try_elsewhere:  # PBS would give the new job the same hosts
            return Decision(sequel="final", cause="nothing")
        lost_first = verdict.kind == "agent_lost" and verdict.node == 0
        if verdict.kind == "preempted" or (lost_first and _is_ending()):
            return Decision(sequel="open", cause="kill or requeue")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> None:
        """Submit the same run as another job, by the same script."""
        if self._is_unclear:
            return
        try:
            _submit_anew(run)
        except SubmissionUnclearError:
            self._is_unclear = True
            raise
        except CommandFailedError as error:
            raise RequeueRefusedError(error.message) from None


def _is_ending() -> bool:
    """Return whether PBS ends the job, or starts it again, where the first host's agent was lost: a
    kill may end that one first, and a job whose first host is gone is PBS's to start again, though
    it takes its time. What it starts then leaves the run to the new job.

    Raises SchedulerError.
    """

    def look() -> bool | None:
        runs = any(job.job_id == own_id() and job.state == "R" for job in ask_jobs([own_id()]))
        return None if runs else True

    return poll(look, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S) or False


def _submit_anew(run: Run) -> None:
    submission, script = own_submission(run)
    folder, name = Path(str(submission.folder)), str(submission.job_name)
    place = os.environ.get(PLACE_VARIABLE, "")
    if place and not name.endswith(f"-{place}"):  # others of the array go on, too
        name += f"-{place}"
        submission = msgspec.structs.replace(submission, job_name=name)
    leave_run(submission, int(place or 0), own_id())
    job_id, _ = qsub(
        folder,
        script,
        name,
        arguments=[place],
        change=lambda line: "" if _ONLY_ONCE.match(line) else line.replace(INDEX, place),
        ask=_others,
    )
    own = submitit_id(own_id())
    note_successor(run, submission, job_id, pickles=(own, job_id))
    # PBS removes what waited for this job to end well, if it does not, whatever it waits for now.
    code = 0 if "beforeok" in _tell_waiting(job_id) else EXIT_STOPPED
    successor_file(folder / "submitit", own).write_text(f"{code}\n")


def _others() -> list[QstatJob]:
    """Return the jobs that this one may just have been submitted as; it has their name too."""
    own = array_id(own_id())
    return [job for job in ask_jobs() if array_id(job.job_id) != own and job.is_active]


def _tell_waiting(job_id: str) -> set[str]:
    """Have the jobs that wait for this one wait for the new one; return how they wait, such as
    beforeok. An array's end is waited for besides."""
    own = array_id(own_id())
    kinds: set[str] = set()
    try:
        this = _show(own)
        for term in this.depend.split(",") if this is not None else ():
            kind, *others = term.split(":")
            for other in (one.partition("@")[0] for one in others if kind.startswith("before")):
                kinds.add(kind)
                its = _show(other)
                depend = with_successor(its.depend, own, job_id) if its is not None else ""
                if depend:
                    argv = ["qalter", "-W", f"depend={depend}", other]
                    run_command(argv, timeout_s=TIMEOUT_S)
    except SchedulerError as error:
        print(f"hpcdist: jobs that wait for this one see its end: {error.message}", flush=True)
    return kinds


def _show(job_id: str) -> QstatJob | None:
    return parse_whole(run_command(["qstat", "-f", job_id], timeout_s=TIMEOUT_S).stdout)


def with_successor(depend: str, own: str, new: str) -> str:
    """Return what a job waits for, afterok:12.login@login, with the new job in this one's place; of
    an array, beside it."""
    terms = []
    for term in depend.split(","):
        kind, *ids = term.split(":")
        numbers = [one.partition(".")[0] for one in ids]
        if own in numbers:
            numbers = [*([own] if own.endswith("[]") else []), *numbers, new]
            numbers = [one for one in dict.fromkeys(numbers) if one != own or own.endswith("[]")]
        terms.append(":".join([kind, *numbers]))
    return ",".join(terms)
