"""The adoption of a run by one of the jobs that were submitted for it.

A command that submits may ask again by itself while its scheduler is silent, and every request may
have been heard: then there are several jobs of one name and one script. The first that starts
adopts the run, and the others end at once, with exit code 0. The claim is a file beside the tasks
of the submission; it lasts over the lives of its job, until that leaves the run to another.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hpcdist.base import files

_MOST_BYTES = 1000
_JOB_ID = re.compile(r"\d[\w.]*(?:\[\d*\])?")
_PLACE = re.compile(r"[\[_](\d+)\]?$")


def adopt(folder: Path, place: int, job_id: str) -> str:
    """Return the id of the job that has the run at this place of its submission: this job's, where
    no other one has adopted it."""
    files.write_once(claim_file(folder, place), job_id)
    return owner_of(folder, place) or job_id


def end_unless_adopted(folder: Path, place: int, job_id: str) -> None:
    """Adopt a run, or end this process, which is of a job that came too late."""
    owner = adopt(folder, place, job_id)
    if owner != job_id:
        print(
            f"hpcdist: this is job {job_id}, and job {owner} has the run, which was submitted more "
            "than once: nothing is left to do",
            flush=True,
        )
        sys.exit(0)


def owner_of(folder: Path, place: int) -> str | None:
    """Return the id of the job that has adopted a run; None where none has yet."""
    try:
        content = files.read_bytes(claim_file(folder, place), most_bytes=_MOST_BYTES)
    except OSError:
        return None
    job_id = content.decode(errors="replace")
    return job_id if _JOB_ID.fullmatch(job_id) else None


def leave_to_another(folder: Path, place: int, job_id: str) -> None:
    """Take the claim of this job back, before another one is submitted in its place."""
    if owner_of(folder, place) == job_id:
        files.remove_once_written(claim_file(folder, place))


def claim_file(folder: Path, place: int) -> Path:
    """Return the file that names the job which has adopted a run."""
    return folder / f"task-{place}.job"


def place_of(job_id: str) -> int:
    """Return the place in its array of a job 123_4 or 123[4]; 0 for one that is in none."""
    found = _PLACE.search(job_id)
    return int(found[1]) if found else 0
