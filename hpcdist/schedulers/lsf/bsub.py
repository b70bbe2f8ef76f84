"""Calling bsub: the script on its standard input, the answer read, and what it says besides."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import (
    CommandFailedError,
    CommandTimeoutError,
    call_command,
    failure_of,
)
from hpcdist.schedulers.jobs import find_by_name
from hpcdist.schedulers.lsf.bjobs import ask_jobs
from hpcdist.schedulers.lsf.ids import array_id, submitted_id

_TIMEOUT_S = 90.0  # bsub itself tries for ever where the master does not answer
_OF_A_JOB = re.compile(r"LSB_\w+|LS_JOBPID|LS_SUBCWD|LS_EXEC_T|HPCDIST_LSF_\w+|SUBMITIT_\w+")
"""Variables of a job that the caller may be part of: they would be taken for the new job's."""
_KEPT = re.compile(r"LSB_SUB_\w+|LSB_BJOBS_\w+|LSB_BSUB_\w+|LSB_DEFAULT\w*|LSB_NTRIES")

_REFUSED_HINT = (
    "nothing was submitted; what was asked for: hpcdist render --explain, what the profile says: "
    "hpcdist cluster show, what the cluster has: bqueues"
)


class NoJobNamedError(SchedulerError):
    """bsub succeeded, and did not say which job it made."""


def bsub(script: str, name: str, *, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Submit a script whose job is called `name`; the job's id, and what bsub said besides.

    Where bsub got no answer in time, the job is looked for by
    its name. Raises SchedulerError.
    """
    try:
        return send(script, environment=environment)
    except (CommandTimeoutError, NoJobNamedError) as error:
        found = find_by_name(name, error, ask_jobs)
        if found is None:
            raise
        job_id = array_id(found.job_id)
        return job_id, [f"bsub gave up, but its job {job_id} is there: {error.message}"]
    except CommandFailedError as error:
        error.hint = _REFUSED_HINT
        raise


def submission_environment(before: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The caller's environment, which LSF gives to the job, without what is another job's."""
    return {
        name: value
        for name, value in before.items()
        if _KEPT.fullmatch(name) or not _OF_A_JOB.fullmatch(name)
    }


def send(
    script: str, *, options: Sequence[str] = (), environment: Mapping[str, str]
) -> tuple[str, list[str]]:
    """The same, but nobody looks for a job of which bsub did not tell; `options` win over the
    script's own."""
    done = call_command(
        ["bsub", *options], timeout_s=_TIMEOUT_S, environment=environment, text=script
    )
    if done.returncode < 0:  # ended from outside: whether it was heard, it cannot say
        raise NoJobNamedError(
            f"bsub was ended by signal {-done.returncode}",
            hint="bjobs tells whether LSF has the job",
        )
    if done.returncode != 0:
        raise failure_of(done)
    job_id = submitted_id(done.stdout) or submitted_id(done.stderr)
    if job_id is None:
        raise NoJobNamedError(
            f"bsub said {done.stdout.strip()!r}, which names no job",
            hint="is bsub a wrapper of the site's? ask its administrators",
        )
    lines = f"{done.stdout}\n{done.stderr}".splitlines()
    return job_id, [line.strip() for line in lines if line.strip() and not submitted_id(line)]
