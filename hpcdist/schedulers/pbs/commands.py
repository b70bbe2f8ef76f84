"""PBS's commands, qsub, qdel and qalter, and the ids of jobs.

Exit codes are PBS's error numbers, cut to a byte (170 is no error of qsub's own: pbs_error.h). A
server that hangs is waited for without end, so every call has a time-out. PBS writes a job of an
array as 30[2].server, and the array 30[].server; here the server is left out, and for submitit the
job is 30_2.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import (
    CommandFailedError,
    CommandTimeoutError,
    call_command,
    failure_of,
)
from hpcdist.schedulers.hosts import means_first_host
from hpcdist.schedulers.jobs import ListedJob, NoJobNamedError, find_by_name

TIMEOUT_S = 30.0
_QSUB_TIMEOUT_S = 90.0
LONGEST_ARGUMENTS = 100_000
"""Linux takes 2 MB in all; the environment is part of it."""
JOB_ID = re.compile(r"[1-9]?\d+(?:\[\d*\])?")
_SUBMITTED = re.compile(r"^(\d+(?:\[\])?)(?:\.\S+)?\s*$", re.MULTILINE)
_IS_OVER = re.compile(r"Unknown Job Id|Job has finished|Request invalid for (?:finished|state)")
_OF_A_JOB = re.compile(
    r"PBS_\w+|NCPUS|HPCDIST_JOB_\w+|SUBMITIT_\w+|BASH_FUNC_.*|BASHOPTS|SHELLOPTS"
)
"""Variables of a job, or a shell, that the caller may be part of."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_REFUSED_HINT = (
    "nothing was submitted; what was asked for: hpcdist explain JOB, what the profile says: "
    "hpcdist cluster show, what the cluster has: qstat -Q"
)
_DIRECTIVE = re.compile(r"^#PBS (.*)$", re.MULTILINE)
_CHECKED = (
    'cd -P -- "$1" && [ -O . ] && [ -O script.sh ] && [ ! -L script.sh ] && '
    '[ -z "$(find . script.sh -maxdepth 0 -perm /022)" ] && exec 9<script.sh && cd "$OLDPWD" || '
    '{ echo "error: $1/script.sh is missing, belongs to another user, or can be written by others: '
    'nothing of it was run" >&2; exit 1; }; exec /bin/bash -l /dev/fd/9 "${@:2}"'
)
"""The command that PBS keeps in the script's place; the script's folder follows it. PBS would keep
a script too, but ends the shell that runs one at any signal, and all of the job with it."""


def number_of_job(job_id: str) -> str:
    """Return 12, or 30[2], for 12.server or 30[2].server."""
    return job_id.partition(".")[0]


def submitit_id(job_id: str) -> str:
    """Return 30_2 for 30[2]."""
    return job_id.rstrip("]").replace("[", "_")


def pbs_id(submitit_id: str) -> str:
    """Return 30[2] for 30_2."""
    job_id, _, index = submitit_id.partition("_")
    return f"{job_id}[{index}]" if index else job_id


def array_id(job_id: str) -> str:
    """Return 30[] for 30[2], and 12 for 12."""
    return re.sub(r"\[\d+\]", "[]", job_id)


# Submitting.


def write_environment(folder: Path) -> None:
    """Write the caller's environment into a file for this user's eyes alone, which the script
    reads: PBS would show everybody (qstat -f) what it is given.

    Other jobs' and the host's own variables are left out.
    """
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(os.environ.items())
        if _NAME.fullmatch(name) and not _OF_A_JOB.fullmatch(name) and not means_first_host(name)
    ]
    umask = os.umask(0o077)
    os.umask(umask)
    files.write_whole(folder / "environment.sh", "\n".join([f"umask {umask:04o}", *lines, ""]))


def qsub(
    folder: Path,
    script: str,
    name: str,
    *,
    arguments: Sequence[str] = (),
    change: Callable[[str], str] = str,
    ask: Callable[[], Sequence[ListedJob]],
) -> tuple[str, list[str]]:
    """Submit the script in a folder as a job of this name, with its directives as `change` returns
    them, which may be empty; return the job's id and what qsub said besides.

    Where qsub got no answer in time, the job is looked for by its name, among those that `ask`
    returns. Raises SchedulerError.
    """
    directives = [change(one) for one in _DIRECTIVE.findall(script) if one[:3] != "-N "]
    words = ["/bin/bash", "-c", _CHECKED, "hpcdist", str(folder), *arguments]
    options = [word for line in directives for word in shlex.split(line)]
    # Without -f it leaves a process for a minute, which sends what later calls submit.
    argv = ["qsub", "-f", "-N", name, *options, "--", *words]
    try:
        return _qsub(argv)
    except (CommandTimeoutError, NoJobNamedError) as error:
        job = find_by_name(name, error, ask)
        if job is None:
            raise
        job_id = array_id(job.job_id)
        return job_id, [f"qsub gave up, but its job {job_id} is there: {error.message}"]
    except CommandFailedError as error:
        error.hint = _REFUSED_HINT
        raise


def _qsub(argv: Sequence[str]) -> tuple[str, list[str]]:
    done = call_command(argv, timeout_s=_QSUB_TIMEOUT_S)
    if (
        done.returncode < 0
    ):  # PBS ends it with the job that calls it; whether it was heard, it cannot say
        raise NoJobNamedError(
            f"qsub was ended by signal {-done.returncode}",
            hint="qstat tells whether PBS has the job",
        )
    if done.returncode != 0:
        done.args = argv[: argv.index("--")]
        raise failure_of(done)
    found = _SUBMITTED.search(done.stdout)
    if found is None:
        raise NoJobNamedError(
            f"qsub said {done.stdout.strip()!r}, which holds no job id",
            hint="is qsub a wrapper of the site's? ask its administrators",
        )
    said = f"{done.stdout}\n{done.stderr}".splitlines()
    return found[1], [line.strip() for line in said if line.strip() and line != found[0].strip()]


# Ending.


def qdel(job_ids: Collection[str]) -> None:
    """Have PBS end jobs; those that have ended are none of its business. Raises SchedulerError."""
    wrong = [one for one in job_ids if not JOB_ID.fullmatch(one)]
    if wrong:
        raise SchedulerError(f"{wrong[0]!r} is no id of a PBS job", hint="see `hpcdist status`")
    ids = sorted(set(job_ids))
    size = LONGEST_ARGUMENTS // (max(map(len, ids), default=0) + 1)
    for start in range(0, len(ids), size):
        done = call_command(["qdel", *ids[start : start + size]], timeout_s=TIMEOUT_S)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if done.returncode != 0 and not (lines and all(map(_IS_OVER.search, lines))):
            raise failure_of(done)
