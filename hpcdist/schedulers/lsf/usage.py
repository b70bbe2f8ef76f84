"""What bjobs has on the time and memory of jobs, as long as LSF remembers them (CLEAN_PERIOD).

Engines that do not know the newer fields are asked for the older ones; those without -o for none.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator

from hpcdist.schedulers.base import Accounting
from hpcdist.schedulers.lsf.bjobs import chosen_numbers
from hpcdist.schedulers.lsf.calling import call_lsf
from hpcdist.schedulers.lsf.jobs import LsfJob, make_job, parse_time

_OLD_FIELDS = (
    *("jobid", "job_name", "stat", "exec_host", "submit_time", "start_time", "finish_time"),
    "run_time",
)
_NEW_FIELDS = ("exit_code", "max_mem", "pend_time")
_FORMS = ((*_OLD_FIELDS, *_NEW_FIELDS), (*_OLD_FIELDS, *_NEW_FIELDS[:2]), _OLD_FIELDS)
_REFUSED_FIELD = re.compile(r"\bfield\b", re.IGNORECASE)
_DELIMITER = "|"
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(?: second.*)?")
_CLOCK = re.compile(r"(\d+):(\d{2}):(\d{2})")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTP])(?:B|bytes)?", re.IGNORECASE)
_POWERS = "KMGTP"


def ask_usage(job_ids: Collection[str]) -> dict[tuple[str, str], Accounting]:
    """What LSF has on jobs, by their ids and names; nothing where it knows none of them.

    Raises SchedulerError where it does not answer.
    """
    numbers = chosen_numbers(job_ids)
    if numbers is None:
        return {}
    for fields in _FORMS:
        wanted = f"{' '.join(fields)} delimiter='{_DELIMITER}'"
        done = call_lsf(["bjobs", "-a", "-o", wanted, *numbers])
        rows = list(_rows(done.stdout, fields))
        if rows or not _REFUSED_FIELD.search(done.stderr + done.stdout):
            found = [_accounting(row) for row in rows]
            return {(job.job_id, job.name): books for job, books in filter(None, found)}
    return {}


def _rows(text: str, fields: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        cells = line.split(_DELIMITER)
        if len(cells) == len(fields) and cells[0].strip() != "JOBID":
            yield dict(zip(fields, (cell.strip() for cell in cells), strict=True))


def _accounting(row: dict[str, str]) -> tuple[LsfJob, Accounting] | None:
    job = make_job(row)
    if job is None:
        return None
    now_s = time.time()
    has_ended = job.stat in {"DONE", "EXIT"}
    started = job.start_s is not None and job.stat != "PEND"
    return job, Accounting(
        job_id=job.job_id,
        state=job.stat,
        submit_s=parse_time(row["submit_time"], now_s=now_s),
        start_s=job.start_s if started else None,
        end_s=parse_time(row["finish_time"], now_s=now_s) if has_ended else None,
        queue_wait_s=parse_seconds(row.get("pend_time", "")) if started else None,
        elapsed_s=parse_seconds(row["run_time"]) if started else None,
        exit_code=0 if job.stat == "DONE" else job.exit_code,
        nodes=job.hosts,
        max_rss_bytes=parse_size(row.get("max_mem", "")),
    )


def parse_seconds(text: str) -> float | None:
    """Seconds of `12 second(s)`, `12` or, where a site wants it so, `00:00:12`."""
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = map(int, clock.groups())
        return float((hours * 60 + minutes) * 60 + seconds)
    found = _SECONDS.fullmatch(text)
    return float(found[1]) if found else None


def parse_size(text: str) -> int | None:
    """Bytes of `1.5 Gbytes`, `512 MB` or `3K`."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    return int(float(found[1]) * 1024 ** (_POWERS.index(found[2].upper()) + 1))
