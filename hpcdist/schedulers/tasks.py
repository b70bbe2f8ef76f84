"""The tasks of a submission, what the nodes of its jobs are to do, in a file beside the scripts;
and the claim by which one job has a run.

A command that submits may ask again by itself while its scheduler is silent, and every request may
have been heard: then there are several jobs of one name and one script. The first that starts
adopts the run, and the others end at once, with exit code 0. The claim is a file beside the tasks;
it lasts over the lives of its job, until that leaves the run to another.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_FAILED
from hpcdist.base.ownership import NotOwnError, check_own_folder, read_own
from hpcdist.machine.process import ProcessId, identify

if TYPE_CHECKING:
    from hpcdist.runs.run import Run

PLACE_VARIABLE = "HPCDIST_JOB_PLACE"
"""Number of the run in its array, which the script sets; 0 or empty where there is no array."""
NODE_VARIABLE = "SUBMITIT_LOCAL_GLOBALID"
"""Number of the node that the process is on: as submitit's local controller calls it."""
_TASKS_FILE = "tasks.json"
_MOST_BYTES = 1000
_PLACE = re.compile(r"[\[_](\d*)\]?$")


class AgentTask(msgspec.Struct, frozen=True, kw_only=True):
    """The task of being the agent of a run, on every node of a job."""

    run_path: str
    scheduler: str


def start_in_background(
    argv: Sequence[str], log: Path, environment: Mapping[str, str]
) -> ProcessId | None:
    """Start a command in a session of its own, out of reach of the terminal's Ctrl-C: the agents
    end their ranks in order. Return its process; None: it has ended already."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    found = identify(process.pid)
    # A program that goes on after submitting must not keep the ended script as a zombie.
    threading.Thread(target=process.wait, daemon=True).start()
    return found


def agents_of(runs: Sequence[Run], scheduler: str) -> list[AgentTask]:
    """Return the tasks of runs, in their order."""
    return [AgentTask(run_path=str(run.path), scheduler=scheduler) for run in runs]


def write_tasks(folder: Path, tasks: Mapping[int, AgentTask]) -> None:
    """Write what the jobs of a submission are to do, by their places in its array; 0: no array."""
    values = {str(place): msgspec.to_builtins(task) for place, task in tasks.items()}
    files.write_json(folder / _TASKS_FILE, values)


def read_task(folder: Path) -> AgentTask:
    """Return what this job is to do. Ends with an error where the folder or its file is not the
    user's own: each node would ask about what all the others write there."""
    try:
        check_own_folder(folder.parent, with_content=False)
        check_own_folder(folder, with_content=False)
        content = read_own(folder / _TASKS_FILE)
    except NotOwnError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    tasks = msgspec.json.decode(content, type=dict[str, AgentTask])
    return tasks[str(own_place())]


def own_place() -> int:
    """Return the number of this job's run in its array; 0 where there is no array."""
    return int(os.environ.get(PLACE_VARIABLE) or 0)


def end_unless_adopted(folder: Path, place: int, job_id: str) -> None:
    """Adopt the run at this place of its submission; end this process where another job has it."""
    files.write_once(claim_file(folder, place), job_id)
    owner = owner_of(folder, place) or job_id
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
    return content.decode(errors="replace") or None


def leave_to_another(folder: Path, place: int, job_id: str) -> None:
    """Take the claim of this job back, before another one is submitted in its place."""
    if owner_of(folder, place) == job_id:
        claim_file(folder, place).unlink(missing_ok=True)


def claim_file(folder: Path, place: int) -> Path:
    """Return the file that names the job which has adopted a run."""
    return folder / f"task-{place}.job"


def array_of(job_id: str) -> str:
    """Return 123 for 123_4, 123[4] or 123."""
    return _PLACE.sub("", job_id)


def place_of(job_id: str) -> int:
    """Return the place in its array of a job 123_4 or 123[4]; 0 for one that is in none."""
    found = _PLACE.search(job_id)
    return int(found[1] or 0) if found else 0
