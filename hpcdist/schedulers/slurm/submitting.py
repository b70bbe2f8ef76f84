"""Handing a script to sbatch through submitit, which writes the pickles and knows the job after."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence

from submitit.core import utils
from submitit.slurm.slurm import SlurmExecutor

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, run_command
from hpcdist.machine.process import ProcessId, identify
from hpcdist.schedulers import Target
from hpcdist.schedulers.prepared import PreparedSubmission
from hpcdist.schedulers.slurm.environment import submission_environment
from hpcdist.schedulers.slurm.queue import scancel
from hpcdist.schedulers.slurm.unclear import NoJobNamedError, find_job, is_unclear

_SBATCH_TIMEOUT_S = 90.0  # sbatch itself tries for a while where the controller is busy

_REFUSED_HINT = (
    "nothing was submitted; what was asked for: hpcdist render, what the profile says: hpcdist "
    "cluster show, what the cluster has: sinfo"
)


class ScriptExecutor(PreparedSubmission, SlurmExecutor):
    """submitit's Slurm executor, with our script in the place of the one that it would write."""

    is_step = False
    process: ProcessId | None = None
    """What was started here."""

    def __init__(self, target: Target, script: str, num_nodes: int) -> None:
        if shutil.which("sbatch") is None:
            raise SchedulerError(
                "sbatch was not found: this is no login node of a Slurm cluster",
                hint="go to a login node, load the site's Slurm module, or run with --local",
            )
        super().__init__(target, script, num_nodes)

    def take_back(self, job_ids: Sequence[str]) -> None:
        """End what was submitted: nobody would know of it."""
        scancel(job_ids)

    def _submit_script(self) -> str:
        try:
            return self._sbatch()
        except SchedulerError as error:
            job_id = find_job(self._target.name, error) if is_unclear(error) else None
            if job_id is None:
                error.hint = _REFUSED_HINT if isinstance(error, CommandFailedError) else error.hint
                raise
            self.said = [f"sbatch gave up, but its job {job_id} is there: {error.message}"]
            return job_id

    def _sbatch(self) -> str:
        """The job's id."""
        done = run_command(
            ["sbatch", str(self._target.script_file)],
            timeout_s=_SBATCH_TIMEOUT_S,
            environment=submission_environment(os.environ, self._script),
        )
        self.said = [line for line in done.stderr.splitlines() if line.strip()]
        try:
            return str(self._get_job_id_from_submission_command(done.stdout))
        except utils.FailedSubmissionError:
            raise NoJobNamedError(
                f"sbatch said {done.stdout.strip()!r}, which names no job",
                hint="is sbatch a wrapper of the site's? ask its administrators",
            ) from None


class StepExecutor(ScriptExecutor):
    """Executes the script at once, in an allocation that is there, instead of submitting it.

    It has a session of its own, out of reach of the terminal's Ctrl-C: the agents end their ranks
    in order.
    """

    is_step = True

    def take_back(self, job_ids: Sequence[str]) -> None:  # noqa: ARG002 - the allocation stays
        """End the script and its srun, which ends the step."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _submit_script(self) -> str:
        job_id = self._target.allocation
        assert job_id is not None
        # srun finds the rest by the id; other variables would be taken for options.
        environment = submission_environment(os.environ, self._script) | {"SLURM_JOB_ID": job_id}
        with (self._target.submitit_folder / f"{job_id}_0_log.out").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/bash", str(self._target.script_file)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.process = identify(process.pid)
        # A program that goes on after submitting must not keep the ended script as a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        return job_id
