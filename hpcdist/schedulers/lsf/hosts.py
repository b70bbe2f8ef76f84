"""One agent on every host of an LSF job: LSF runs a job's script on the first host only, and sends
its signals there. This program runs in the script's place."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from hpcdist.schedulers.hosts import (
    LIFE_VARIABLE,
    Job,
    count_start,
    parse_options,
    read_hosts,
    run_on_hosts,
)
from hpcdist.schedulers.tasks import end_unless_adopted

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
    hosts = hosts[: options.nodes] if options.first else hosts
    code = run_on_hosts(options, Job("LSF", hosts, _OF_FIRST_TASK))
    sys.exit(exit_code_for_lsf(code, os.environ.get("LSB_EXIT_REQUEUE", "")))


def own_index() -> str:
    """Return this process's place in its array, from 1 on; empty: there is no array."""
    index = os.environ.get("LSB_JOBINDEX", "")
    return "" if index == "0" else index


def own_id() -> str:
    """Return the id of the job that this process is part of."""
    job_id, index = os.environ["LSB_JOBID"], own_index()
    return f"{job_id}[{index}]" if index else job_id


def exit_code_for_lsf(code: int, requeued: str) -> int:
    """Return the exit code that LSF is told: never one for which it would start a job again that
    was killed, or stopped for good. `requeued` is LSB_EXIT_REQUEUE: codes, or `all` but some
    (`all ~1`), and EXCLUDE(codes)."""
    words = {*requeued.replace("EXCLUDE(", " ").replace(")", " ").split()}
    codes = (code, *range(1, 256)) if code else ()
    usable = (one for one in codes if f"~{one}" in words or not words & {str(one), "all"})
    return next(usable, code)
