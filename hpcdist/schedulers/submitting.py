"""The door to submitit: one executor for all schedulers, with our script and command in the place
of the ones that it would write, and the start of its local controller.

Jobs read what they are to do in tasks.json: submitit's pickles could be found only by who knows the
job's id, and would be loaded with numpy before a program has set its threads. What is used beyond
submitit's documented interface: `Executor._internal_process_submissions`, and the variables and the
module of its local controller (tried with 1.5.4; setup.cfg wants no other minor version).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from submitit.core import core
from submitit.local.local import LocalJob

from hpcdist.schedulers.tasks import Task, write_tasks

_NO_LIMIT_S = 60 * 60 * 24 * 365


class ScriptExecutor(core.Executor):
    """submitit's executor for scripts that are rendered."""

    job_class = LocalJob

    def __init__(
        self,
        folder: Path,
        send: Callable[[], str] | None = None,
        *,
        array_from: int | None = None,
        **_former: Any,
    ) -> None:
        """`send` gives the script to the scheduler and returns the job's id, of an array its own;
        `array_from` is the number of an array's first element, None where there is no array."""
        super().__init__(folder)
        self._send = send or _former["send"]
        self._array_from = array_from

    def submit_all(self, tasks: Sequence[Task]) -> list[str]:
        """Submit one task, or those of an array; return submitit's ids of the jobs: 123 or 123_4.

        Raises SchedulerError.
        """
        with self.batch():
            jobs = [self.submit(cast("Any", task)) for task in tasks]
        return [str(job.job_id) for job in jobs]

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        first = self._array_from
        places = range(first or 0, (first or 0) + len(delayed_submissions))
        tasks = [one.function for one in delayed_submissions]
        write_tasks(self.folder, dict(zip(places, tasks, strict=True)))
        job_id = self._send()
        ids = [job_id if first is None else f"{job_id}_{place}" for place in places]
        return [self.job_class(folder=self.folder, job_id=one) for one in ids]


def start_local_controller(
    command: str, folder: Path, *, num_tasks: int, log: Path
) -> subprocess.Popen[bytes]:
    """Start submitit's local controller, which runs `command` as so many tasks.

    As submitit's own start_controller does, but in a new session, and where no file of the user's
    can stand in for a module of the standard library.
    """
    argv = [sys.executable, "-m", "submitit.local._local", str(folder)]
    environment = os.environ | {
        "SUBMITIT_LOCAL_NTASKS": str(num_tasks),
        "SUBMITIT_LOCAL_COMMAND": command,
        "SUBMITIT_LOCAL_TIMEOUT_S": str(_NO_LIMIT_S),
        "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
        "SUBMITIT_STDERR_TO_STDOUT": "1",
        "SUBMITIT_LOCAL_WITH_SHELL": "",
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=folder,
            start_new_session=True,
        )
