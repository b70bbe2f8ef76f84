"""Submitting by submitit: an executor with our script and command in the place of those that it
would write.

Jobs read what they are to do in tasks.json: submitit's pickles could be found only by who knows the
job's id, and would be loaded with numpy before a program has set its threads. What is used beyond
submitit's documented interface: `Executor._internal_process_submissions` (tried with 1.5.4;
setup.cfg wants no other minor version).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from submitit.core import core
from submitit.local.local import LocalJob

from hpcdist.base import files
from hpcdist.base.ownership import NotOwnError, check_own_folder, read_own
from hpcdist.machine.command import (
    CommandFailedError,
    CommandTimeoutError,
    call_command,
    failure_of,
)
from hpcdist.machine.process import ProcessId
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Target, unclear_submission
from hpcdist.schedulers.requeue import RequeueRefusedError
from hpcdist.schedulers.tasks import (
    AgentTask,
    leave_to_another,
    start_in_background,
    write_tasks,
)

if TYPE_CHECKING:
    from hpcdist.schedulers.batch import Batch

_SUBMIT_TIMEOUT_S = 90.0
"""Commands that submit try by themselves for a while where the scheduler is busy."""


class Handover(core.Executor):
    """Gives the script to the scheduler's command, or starts it at once in an allocation."""

    job_class = LocalJob

    def __init__(self, scheduler: Batch, target: Target, script: str) -> None:
        super().__init__(target.submitit_folder)
        self.scheduler, self.target, self.script = scheduler, target, script
        self.said: list[str] = []
        """Lines that the scheduler printed besides the job's id."""
        self.process: ProcessId | None = None
        """The process that was started here."""

    def submit_all(self, tasks: Sequence[AgentTask]) -> list[str]:
        """Submit one task, or those of an array; return the ids of the jobs.

        Raises SchedulerError.
        """
        files.write_whole(self.target.script_file, self.script)
        with self.batch():
            jobs = [self.submit(cast("Any", task)) for task in tasks]
        return [str(job.job_id) for job in jobs]

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        is_array = self.target.array_size is not None
        first = self.scheduler.first_place if is_array else 0
        tasks = dict(enumerate((one.function for one in delayed_submissions), first))
        write_tasks(self.folder, tasks)
        job_id = self.send()
        element = self.scheduler.element if is_array else "{}"
        ids = [element.format(job_id, place) for place in tasks]
        return [self.job_class(folder=self.folder, job_id=one) for one in ids]

    def take_back(self, job_ids: Sequence[str]) -> None:
        """End what was submitted: nobody would know of it. An allocation stays."""
        if self.target.allocation is None:
            self.scheduler.kill(job_ids)
        elif self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def send(self) -> str:
        """Return the id of the job that the script has become, of an array its own. Raises
        SubmissionUnclearError where nobody says whether there is one."""
        scheduler, target = self.scheduler, self.target
        environment = scheduler.environment(os.environ, target, self.script)
        if target.allocation is not None:
            argv = ["/bin/bash", "-c", self.script]
            log = self.folder / f"{target.allocation}_0_log.out"
            self.process = start_in_background(argv, log, environment)
            return target.allocation
        # Not by its path, where others of a project's group could exchange it at this moment.
        argv = scheduler.submit_command(target, self.script)
        try:
            done = call_command(
                argv, timeout_s=_SUBMIT_TIMEOUT_S, environment=environment, text=self.script
            )
            done.args = argv[:1]
            lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines()]
            ids = [one for line in lines if (one := scheduler.parse_submitted(line))]
            if done.returncode > 0:
                raise failure_of(done)
            if done.returncode == 0 and ids:
                self.said = [line for line in lines if line and not scheduler.parse_submitted(line)]
                return ids[0]
            signalled = f"{argv[0]} was ended by signal {-done.returncode}"
            why = signalled if done.returncode else f"{argv[0]} named no job: {done.stdout.strip()}"
        except (CommandFailedError, CommandTimeoutError) as error:
            why = error.message
            if isinstance(error, CommandFailedError) and not scheduler.unclear.search(error.said):
                error.hint = scheduler.refused_hint(error.said, self.script)
                raise
        raise unclear_submission(target.name, why)


def submit_anew(scheduler: Batch, run: Run) -> str:
    """Submit a run within its job as another job, by the same script; return that one's id.

    Raises RequeueRefusedError where the script may be somebody else's by now.
    """
    try:
        check_own_folder(run.path)
        submission = run.read_submission() or Submission()
        folder = Path(str(submission.folder))
        check_own_folder(folder)
        script = read_own(folder / "script.sh").decode(errors="surrogateescape")
    except NotOwnError as error:
        raise RequeueRefusedError(error.message) from None
    target = Target(name=str(submission.job_name), folder=folder, cwd="", continues=True)
    leave_to_another(target.submitit_folder, 0, str(scheduler.own_job_id()))
    job_id = Handover(scheduler, target, script).send()
    run.write_submission(msgspec.structs.replace(submission, job_id=job_id))
    return job_id
