"""Going on with a run after its job: users may not have PBS start a job again (qrerun), so the run
is submitted anew from within, and what waits for the job is told to wait for the new one.

PBS warns nobody of a time limit: the agents' own clock does. SIGTERM comes from a qdel, from an
operator's qrerun and from a preemption alike: what could be saved is saved, and PBS alone knows
whether the job comes back.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcdist.base.errors import EXIT_STOPPED, SchedulerError
from hpcdist.base.polling import poll
from hpcdist.machine.command import run_command
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.batch import Batch, submit_anew
from hpcdist.schedulers.pbs.hosts import own_id, successor_file
from hpcdist.schedulers.pbs.site import parse_blocks
from hpcdist.schedulers.requeue import Decision
from hpcdist.schedulers.tasks import PLACE_VARIABLE

_TIMEOUT_S = 30.0
_END_IS_KNOWN_S = 6.0
"""Time in which PBS notices that a job is at its end."""
_POLL_S = 1.0


def decide(scheduler: Batch, verdict: Verdict) -> Decision:
    """Answer the time limit, and the loss of a host, by a new job; never a kill. Raises
    SchedulerError."""
    if verdict.try_elsewhere:  # PBS would give the new job the same hosts
        return Decision(sequel="final", cause="nothing")

    def look() -> bool | None:
        jobs = scheduler.list_jobs([own_id()])
        return None if any(job.id == own_id() and job.word == "R" for job in jobs) else True

    # A kill may end the first host's agent first; and a job whose first host is gone is PBS's to
    # start again, though it takes its time. What it starts then leaves the run to the new job.
    lost_first = verdict.kind == "agent_lost" and verdict.node == 0
    is_ending = lost_first and poll(look, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S)
    if verdict.kind == "preempted" or is_ending:
        return Decision(sequel="open", cause="kill or requeue")
    is_limit = verdict.kind == "time_limit"
    return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")


def go_on(scheduler: Batch, run: Run) -> None:
    """Submit the same run as another job, by the same script. Raises SchedulerError."""
    place = os.environ.get(PLACE_VARIABLE, "")
    submission = run.read_submission() or Submission()
    # Others of the array go on, too.
    is_named = not place or str(submission.job_name).endswith(f"-{place}")
    job_id = submit_anew(scheduler, run, suffix="" if is_named else f"-{place}")
    # PBS removes what waited for this job to end well, if it does not, whatever it waits for now.
    code = 0 if "beforeok" in _tell_waiting(job_id) else EXIT_STOPPED
    own = own_id().rstrip("]").replace("[", "_")
    successor_file(Path(str(submission.folder), "submitit"), own).write_text(f"{code}\n")


def _tell_waiting(job_id: str) -> set[str]:
    """Have the jobs that wait for this one wait for the new one; return how they wait, such as
    beforeok. An array's end is waited for besides."""
    own = own_id().partition("[")
    own_job = f"{own[0]}[]" if own[1] else own[0]
    kinds: set[str] = set()
    try:
        for term in _ask_depend(own_job).split(","):
            kind, *others = term.split(":")
            for other in (one.partition("@")[0] for one in others if kind.startswith("before")):
                kinds.add(kind)
                if depend := with_successor(_ask_depend(other), own_job, job_id):
                    argv = ["qalter", "-W", f"depend={depend}", other]
                    run_command(argv, timeout_s=_TIMEOUT_S)
    except SchedulerError as error:
        print(f"hpcdist: jobs that wait for this one see its end: {error.message}", flush=True)
    return kinds


def _ask_depend(job_id: str) -> str:
    """Return the jobs that wait for a job, or that it waits for: beforeok:12.server@server,..."""
    said = run_command(["qstat", "-f", job_id], timeout_s=_TIMEOUT_S).stdout
    return next((values["depend"] for values in parse_blocks(said, "Job Id: ").values()), "")


def with_successor(depend: str, own: str, new: str) -> str:
    """Return what a job waits for, afterok:12.login@login, with the new job in this one's place; of
    an array, beside it."""
    terms = []
    for term in depend.split(",") if depend else ():
        kind, *ids = term.split(":")
        numbers = [one.partition(".")[0] for one in ids]
        if own in numbers:
            numbers.append(new)
            if not own.endswith("[]"):
                numbers.remove(own)
        terms.append(":".join([kind, *dict.fromkeys(numbers)]))
    return ",".join(terms)
