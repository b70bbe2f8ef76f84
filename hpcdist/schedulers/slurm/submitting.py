"""Handing a script to sbatch, or starting it as a step of an allocation, through submitit."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Sequence

from submitit.slurm.slurm import SlurmJob

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, CommandTimeoutError, run_command
from hpcdist.machine.process import ProcessId
from hpcdist.schedulers.base import Target, Task
from hpcdist.schedulers.jobs import NoJobNamedError, find_by_name
from hpcdist.schedulers.slurm.directives import submission_environment
from hpcdist.schedulers.slurm.queue import ask_queue, scancel
from hpcdist.schedulers.steps import signal_script, start_script
from hpcdist.schedulers.submitting import ScriptExecutor

_SBATCH_TIMEOUT_S = 90.0  # sbatch itself tries for a while where the controller is busy

_REFUSED_HINT = (
    "nothing was submitted; see the request with hpcdist render, the profile with "
    "hpcdist cluster show, and the cluster with sinfo"
)
_JOB = re.compile(r"\bjob (\d+)")
_UNCLEAR = re.compile(r"timed out|zero bytes|receive failure|reset by peer", re.IGNORECASE)
"""Errors of slurm_errno.c after which Slurm may have the job: none answered a request."""


class Sbatch:
    """One script, given to sbatch."""

    is_step = False
    process: ProcessId | None = None
    """The process that was started here."""

    def __init__(self, target: Target, script: str) -> None:
        if shutil.which("sbatch") is None:
            raise SchedulerError(
                "sbatch was not found: this is not a login node of a Slurm cluster",
                hint="go to a login node, load the site's Slurm module, or run with --local",
            )
        self._target = target
        self._script = script
        self.said: list[str] = []
        """Lines that Slurm printed besides the job's id."""

    def submit(self, tasks: Sequence[Task], *, num_nodes: int) -> list[str]:
        """Submit the script, whose runs execute `tasks`; return the ids of their jobs.

        Raises SchedulerError.
        """
        executor = ScriptExecutor(
            self._target.submitit_folder,
            job_class=SlurmJob,
            num_tasks=num_nodes,
            send=self.send,
            take_back=self.take_back,
            array_from=None if self._target.array_size is None else 0,
        )
        return executor.submit_all(tasks)

    def take_back(self, job_ids: Sequence[str]) -> None:
        """End what was submitted: nobody would know of it."""
        scancel(job_ids)

    def send(self) -> str:
        """Call sbatch; return the job's id. Raises SubmissionUnclearError where nobody says whether
        there is one."""
        files.write_whole(self._target.script_file, self._script)
        try:
            return self._sbatch()
        except SchedulerError as error:
            # The job may have been submitted in spite of it.
            has_failed = isinstance(error, CommandFailedError)
            is_unclear = (
                _UNCLEAR.search(error.said)
                if isinstance(error, CommandFailedError)
                else isinstance(error, CommandTimeoutError | NoJobNamedError)
            )
            job = find_by_name(self._target.name, error, ask_queue) if is_unclear else None
            if job is None:
                error.hint = _REFUSED_HINT if has_failed else error.hint
                raise
            job_id = job.job_id.partition("_")[0]
            self.said = [f"sbatch gave up, but its job {job_id} is there: {error.message}"]
            return job_id

    def _sbatch(self) -> str:
        # Not by its path, where others of a project's group could exchange it at this moment.
        done = run_command(
            ["sbatch"],
            timeout_s=_SBATCH_TIMEOUT_S,
            environment=submission_environment(os.environ, self._script),
            text=self._script,
        )
        self.said = [line for line in done.stderr.splitlines() if line.strip()]
        job = _JOB.search(done.stdout)
        if job is None:
            raise NoJobNamedError(
                f"sbatch said {done.stdout.strip()!r}, which holds no job id",
                hint="is sbatch a wrapper of the site's? ask its administrators",
            )
        return job[1]


class Step(Sbatch):
    """One script, started at once in an allocation that is there."""

    is_step = True

    def take_back(self, job_ids: Sequence[str]) -> None:  # noqa: ARG002 - the allocation stays
        """End the script and its srun, which ends the step."""
        if self.process is not None:
            signal_script(self.process, signal.SIGKILL)

    def send(self) -> str:
        """Start the script in the background; return the allocation's id."""
        files.write_whole(self._target.script_file, self._script)
        job_id = self._target.allocation
        assert job_id is not None
        # srun finds the rest by the id; other variables would be taken for options.
        environment = submission_environment(os.environ, self._script) | {"SLURM_JOB_ID": job_id}
        log = self._target.submitit_folder / f"{job_id}_0_log.out"
        self.process = start_script(self._script, log=log, environment=environment)
        return job_id
