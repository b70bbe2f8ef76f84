"""What bjobs says about jobs: one call for any number of runs; and bkill and brequeue."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Sequence

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.schedulers.lsf.calling import call_lsf, failure, lsf_lines
from hpcdist.schedulers.lsf.forms import FIRST_FORM, Form, next_form, read_ends, read_pending
from hpcdist.schedulers.lsf.jobs import LsfJob

__all__ = ["LsfJob", "ask_jobs", "bkill", "brequeue", "chosen_numbers"]

_LONGEST_ARGUMENTS = 100_000  # Linux takes 2 MB in all; the environment is part of it
_NONE_FOUND = re.compile(r"\bno (?:unfinished |matching |pending )?jobs? found", re.IGNORECASE)
_UNKNOWN_ID = re.compile(r"^job <\d+(?:\[\d+\])?>:? .*\bnot found", re.IGNORECASE)
_JOB_ID = re.compile(r"[1-9]\d*(?:\[[1-9]\d*\])?")
_KILLED = re.compile(
    r"is being (?:terminated|signal|removed)|(?:has been|will be) (?:terminated|removed|killed)|"
    r"already finished|no matching job|not found|operation is in progress",
    re.IGNORECASE,
)
_KNOWN_FORMS: dict[str | None, Form] = {}
"""Path of bjobs -> the form that it has answered in this process."""


def ask_jobs(job_ids: Collection[str] = ()) -> list[LsfJob]:
    """These jobs, arrays with all their elements, or without ids all jobs of this user; those that
    ended lately are among them, those that LSF does not know are not.

    Raises SchedulerError.
    """
    chosen = chosen_numbers(job_ids)
    if chosen is None:
        return []
    jobs = _ask(chosen)
    told = _fields_told()
    if "pend_reason" not in told:
        jobs = _with_reasons(jobs, are_all=not chosen)
    return jobs if "exit_reason" in told or not chosen else _with_ends(jobs)


def bkill(job_ids: Collection[str]) -> None:
    """Have LSF end jobs; those that have ended are none of its business.

    Raises SchedulerError.
    """
    wrong = [one for one in job_ids if not _JOB_ID.fullmatch(one)]
    if wrong:  # bkill takes 0 for all jobs of the user
        raise SchedulerError(f"{wrong[0]!r} is no id of an LSF job", hint="see `hpcdist status`")
    for part in _parts(sorted(set(job_ids))):
        done = call_lsf(["bkill", *part])
        said = lsf_lines(done.stdout, done.stderr)
        problems = [line for line in said if not _KILLED.search(line)]
        if done.returncode != 0 and (problems or not said):
            raise failure(done, problems)


def brequeue(job_id: str, *, timeout_s: float) -> None:
    """Have LSF end a job that runs, and queue it again.

    Raises CommandFailedError where it refuses, SchedulerError where it does not answer.
    """
    done = call_lsf(["brequeue", job_id], timeout_s=timeout_s)
    if done.returncode != 0:
        raise failure(done)


def chosen_numbers(job_ids: Collection[str]) -> list[str] | None:
    """What bjobs is given to answer about these jobs: none, where all are wanted or there are too
    many for a command line; None where not one is an id of LSF's."""
    chosen = _chosen(job_ids)
    if job_ids and not chosen:
        return None
    return [] if sum(len(number) + 1 for number in chosen) > _LONGEST_ARGUMENTS else chosen


def _chosen(job_ids: Iterable[str]) -> list[str]:
    numbers = {one.partition("[")[0] for one in job_ids if _JOB_ID.fullmatch(one)}
    return sorted(numbers, key=int)


def _ask(chosen: Sequence[str]) -> list[LsfJob]:
    """In the form that is known to work, or from the first to the last until one does."""
    program = shutil.which("bjobs")
    form: Form | None = _KNOWN_FORMS.get(program, FIRST_FORM)
    while form is not None:
        done = call_lsf(["bjobs", *form.options, *chosen])
        jobs = form.read(done.stdout)
        if jobs is not None:
            _KNOWN_FORMS[program] = form
            return jobs
        if _knows_none(done):  # and nothing is learnt about the form
            return []
        form = next_form(form, f"{done.stderr}\n{done.stdout}")
    _KNOWN_FORMS.pop(program, None)
    raise failure(done)


def _knows_none(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether all that is said is that there are no such jobs."""
    said = lsf_lines(done.stderr, done.stdout)
    if not said:
        return done.returncode == 0
    return all(_NONE_FOUND.search(line) or _UNKNOWN_ID.search(line) for line in said)


def _fields_told() -> tuple[str, ...]:
    form = _KNOWN_FORMS.get(shutil.which("bjobs"))
    return form.fields if form else ()


def _with_reasons(jobs: Sequence[LsfJob], *, are_all: bool) -> list[LsfJob]:
    """The same jobs, with what `bjobs -p` says of those that wait."""
    waiting = {job.job_id for job in jobs if job.stat == "PEND"}
    if not waiting:
        return list(jobs)
    numbers = [] if are_all else _chosen(waiting)
    reasons = read_pending(call_lsf(["bjobs", "-p", *numbers]).stdout)
    return [
        msgspec.structs.replace(job, pend_reason=reasons.get(job.job_id, ""))
        if job.job_id in waiting
        else job
        for job in jobs
    ]


def _with_ends(jobs: Sequence[LsfJob]) -> list[LsfJob]:
    """The same jobs, with what `bjobs -l` says of those that have ended badly."""
    ended = {job.job_id for job in jobs if job.stat == "EXIT"}
    if not ended:
        return list(jobs)
    ends = read_ends(call_lsf(["bjobs", "-l", *sorted(ended)]).stdout)
    return [_with_end(job, *ends.get(job.job_id, ("", None))) for job in jobs]


def _with_end(job: LsfJob, reason: str, code: int | None) -> LsfJob:
    if job.stat != "EXIT":
        return job
    known = job.exit_code if job.exit_code is not None else code
    return msgspec.structs.replace(job, exit_reason=job.exit_reason or reason, exit_code=known)


def _parts(job_ids: Sequence[str]) -> Iterable[Sequence[str]]:
    """All in one, as long as they are not too many for a command line."""
    step = max(1, _LONGEST_ARGUMENTS // (max(map(len, job_ids), default=0) + 1))
    return (job_ids[start : start + step] for start in range(0, len(job_ids), step))
