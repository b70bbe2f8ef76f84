"""Ids of jobs: LSF writes an element of an array as 123[4], submitit's files as 123_4."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted")


def lsf_id(submitit_id: str) -> str:
    """123_4 as 123[4]."""
    job_id, _, index = submitit_id.partition("_")
    return f"{job_id}[{index}]" if index else job_id


def array_id(job_id: str) -> str:
    """123[4] is a part of 123."""
    return job_id.partition("[")[0]


def own_id(environment: Mapping[str, str] = os.environ) -> str:
    """The job that this process is part of."""
    index = environment.get("LSB_JOBINDEX", "0")
    job_id = environment["LSB_JOBID"]
    return job_id if index in {"", "0"} else f"{job_id}[{index}]"


def submitted_id(said: str) -> str | None:
    """The id in bsub's answer, `Job <123> is submitted to queue <normal>.`; None where there is
    none."""
    found = _SUBMITTED.search(said)
    return found[1] if found else None
