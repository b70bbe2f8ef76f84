"""LSF's commands: bsub, bkill and brequeue, and the ids of jobs.

Exit codes of the commands differ between sites, so it is the text that counts. LSF writes an
element of an array as 123[4], submitit's files as 123_4.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, call_command, failure_of
from hpcdist.schedulers.jobs import NoJobNamedError

TIMEOUT_S = 30.0
_BSUB_TIMEOUT_S = 90.0  # bsub itself tries for ever where the master does not answer
LONGEST_ARGUMENTS = 100_000  # Linux takes 2 MB in all; the environment is part of it
_SHOWN_WORDS = 6  # there may be thousands of ids
_SHOWN_LINES = 5

DOWN = re.compile(
    r"LSF is down|(?:daemon|LIM|mbatchd) (?:is )?(?:down|not responding)|cannot connect to LSF|"
    r"failed in an LSF library call|communication time ?out",
    re.IGNORECASE,
)
"""Complaints of commands where LSF is there and its daemons do not answer."""
_FORMATS = re.compile(r"LSB_B[A-Z]+_FORMAT")
_OF_A_JOB = re.compile(r"LSB_\w+|LS_JOBPID|LS_SUBCWD|LS_EXEC_T|HPCDIST_JOB_\w+|SUBMITIT_\w+")
"""Variables of a job that the caller may be part of: they would be taken for the new job's."""
_KEPT = re.compile(r"LSB_SUB_\w+|LSB_BJOBS_\w+|LSB_BSUB_\w+|LSB_DEFAULT\w*|LSB_NTRIES")
_SUBMITTED = re.compile(r"Job <(\d+)> is submitted")
JOB_ID = re.compile(r"[1-9]\d*(?:\[[1-9]\d*\])?")
_KILLED = re.compile(
    r"is being (?:terminated|signal|removed)|(?:has been|will be) (?:terminated|removed|killed)|"
    r"already finished|no matching job|not found|operation is in progress",
    re.IGNORECASE,
)


def call_lsf(
    argv: Sequence[str], *, timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of LSF, whatever its exit code.

    Raises SchedulerError where LSF is down, does not answer in time, or has no such command.
    """
    # Without the formats that are set for people to read.
    environment = {key: value for key, value in os.environ.items() if not _FORMATS.fullmatch(key)}
    done = call_command(argv, timeout_s=timeout_s, environment=environment)
    complaints = [line for line in lsf_lines(done.stderr, done.stdout) if DOWN.search(line)]
    # A command that has waited for LSF to come back complains too, and then answers.
    if complaints and all(line in complaints for line in lsf_lines(done.stdout)):
        raise SchedulerError(
            f"LSF does not answer: {argv[0]} says {complaints[0]!r}",
            hint="see `lsid`; if it lasts, tell the site",
        )
    return done


def lsf_lines(*texts: str) -> list[str]:
    """Return what LSF says, without empty lines."""
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]


def failure(
    done: subprocess.CompletedProcess[str], lines: Sequence[str] = ()
) -> CommandFailedError:
    """Return the error for what a command said; `lines` are those that tell, if not all do."""
    argv = [*done.args[:_SHOWN_WORDS], *(["..."] if len(done.args) > _SHOWN_WORDS else [])]
    said = lines or lsf_lines(done.stderr, done.stdout)
    text = "\n".join(said[:_SHOWN_LINES])
    return failure_of(subprocess.CompletedProcess(argv, done.returncode, text, ""))


# Submitting.


def submission_environment() -> dict[str, str]:
    """Return the caller's environment, which LSF gives to the job, without another job's."""
    return {
        name: value
        for name, value in os.environ.items()
        if _KEPT.fullmatch(name) or not _OF_A_JOB.fullmatch(name)
    }


def bsub(
    script: str, *, options: Sequence[str] = (), environment: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Give a script to bsub on its standard input; return the job's id, and what bsub said besides.

    `options` win over the script's own. Raises SchedulerError.
    """
    done = call_command(
        ["bsub", *options], timeout_s=_BSUB_TIMEOUT_S, environment=environment, text=script
    )
    if done.returncode < 0:  # ended from outside: whether it was heard, it cannot say
        raise NoJobNamedError(
            f"bsub was ended by signal {-done.returncode}",
            hint="bjobs tells whether LSF has the job",
        )
    if done.returncode != 0:
        raise failure_of(done)
    # Job <123> is submitted to queue <normal>.
    found = _SUBMITTED.search(done.stdout) or _SUBMITTED.search(done.stderr)
    if found is None:
        raise NoJobNamedError(
            f"bsub said {done.stdout.strip()!r}, which holds no job id",
            hint="is bsub a wrapper of the site's? ask its administrators",
        )
    lines = lsf_lines(done.stdout, done.stderr)
    return found[1], [line for line in lines if not _SUBMITTED.search(line)]


# Ending.


def bkill(job_ids: Collection[str]) -> None:
    """Have LSF end jobs; those that have ended are none of its business.

    Raises SchedulerError.
    """
    wrong = [one for one in job_ids if not JOB_ID.fullmatch(one)]
    if wrong:  # bkill takes 0 for all jobs of the user
        raise SchedulerError(f"{wrong[0]!r} is no id of an LSF job", hint="see `hpcdist status`")
    ids = sorted(set(job_ids))
    size = max(1, LONGEST_ARGUMENTS // (max(map(len, ids), default=0) + 1))
    for start in range(0, len(ids), size):
        done = call_lsf(["bkill", *ids[start : start + size]])
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


# Ids.


def lsf_id(submitit_id: str) -> str:
    """Return 123[4] for 123_4."""
    job_id, _, index = submitit_id.partition("_")
    return f"{job_id}[{index}]" if index else job_id


def array_id(job_id: str) -> str:
    """Return 123 for 123[4]."""
    return job_id.partition("[")[0]
