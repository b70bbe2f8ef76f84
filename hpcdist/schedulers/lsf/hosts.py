"""One agent on every host of an LSF job: LSF runs a job's script on the first host only, and sends
its signals there. This program runs in the script's place."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from hpcdist.schedulers.adoption import end_unless_adopted
from hpcdist.schedulers.hosts import (
    LIFE_VARIABLE,
    Job,
    count_start,
    parse_options,
    read_hosts,
    run_on_hosts,
)

_OF_FIRST_TASK = re.compile(
    r"LSB_(?!(?:JOBID|JOBINDEX|JOBNAME|QUEUE|MCPU_HOSTS|HOSTS|SUB_HOST|DJOB_\w+)$)\w+"
)
"""Variables of what LSF has started on the first host."""


def main() -> None:
    """Start the command on all hosts, and wait: the last line of the job's script."""
    options = parse_options(sys.argv[1:], "lsf_hosts")
    index = own_index()
    end_unless_adopted(Path(options.logs), int(index or 0), own_id())
    os.environ[LIFE_VARIABLE] = str(count_start(options.logs, options.job, index))
    # Source: IBM Spectrum LSF 10.1 documentation, Environment variables set for job execution.
    hosts = read_hosts(os.environ["LSB_MCPU_HOSTS"])
    code = run_on_hosts(options, Job("LSF", hosts, _OF_FIRST_TASK))
    sys.exit(exit_code_for_lsf(code, os.environ.get("LSB_EXIT_REQUEUE", "")))


def own_index() -> str:
    """Return the number of the array's element that this process is part of, from 1 on; empty:
    there is no array."""
    index = os.environ.get("LSB_JOBINDEX", "")
    return "" if index == "0" else index


def own_id() -> str:
    """Return the id of the job that this process is part of."""
    job_id, index = os.environ["LSB_JOBID"], own_index()
    return f"{job_id}[{index}]" if index else job_id


def exit_code_for_lsf(code: int, requeued: str) -> int:
    """Return the exit code that LSF is told: never one for which it would start the job again.

    `requeued` is LSB_EXIT_REQUEUE: codes, or `all` but some (`all ~1`), and EXCLUDE(codes). A job
    that was killed, or stopped for good, must not come back; what is to come back is requeued by
    name.
    """
    words = requeued.replace("EXCLUDE(", " ").replace(")", " ").split()

    def requeues(code: int) -> bool:
        return f"~{code}" not in words and (str(code) in words or "all" in words)

    candidates = (code, *range(1, 256)) if code else ()
    return next((one for one in candidates if not requeues(one)), code)
