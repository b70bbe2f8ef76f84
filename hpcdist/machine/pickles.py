"""How a job finds what submitit wrote for it, also where its submitter never learned its id.

submitit names the pickle after the job once the scheduler has told the id. sbatch may give up
before that, and its caller may be killed, while the controller has the job: then the job goes by
its place in the submission, which it knows by itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def unnamed_pickle(folder: Path, index: int) -> Path:
    """What a submission's task number `index` is to do, until the job's id is known."""
    return folder / f"task-{index}.pkl"


def adopt_pickle(folder: Path) -> None:
    """Within a job: give its pickle the name that submitit looks for, where nobody has yet.

    The submitter may do the same just now: its rename replaces the link.
    """
    import submitit
    from submitit.core.utils import JobPaths

    job = submitit.JobEnvironment()
    unnamed = unnamed_pickle(folder, int(job.array_task_id or 0))
    if unnamed.exists():
        with suppress(FileExistsError):  # the submitter, or the agent of another node
            os.symlink(unnamed.name, JobPaths(folder, job_id=job.job_id).submitted_pickle)
