"""Submitting by submitit: an executor with our script and command in the place of those that it
would write, and the start of its local controller.

Jobs read what they are to do in tasks.json: submitit's pickles could be found only by who knows the
job's id, and would be loaded with numpy before a program has set its threads. What is used beyond
submitit's documented interface: `Executor._internal_process_submissions`, and the variables and the
module of its local controller (tried with 1.5.4; setup.cfg wants no other minor version).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from submitit.core import core
from submitit.local.local import LocalJob

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError, SubmissionUnclearError
from hpcdist.base.ownership import NotOwnError, check_own_folder, read_own
from hpcdist.base.polling import poll
from hpcdist.machine.command import (
    CommandFailedError,
    CommandTimeoutError,
    call_command,
    failure_of,
)
from hpcdist.machine.process import ProcessId, identify
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.requeue import RequeueRefusedError
from hpcdist.schedulers.tasks import (
    AgentTask,
    array_of,
    leave_to_another,
    own_place,
    write_tasks,
)

if TYPE_CHECKING:
    from hpcdist.schedulers.batch import Batch

_SUBMIT_TIMEOUT_S = 90.0
"""Commands that submit try by themselves for a while where the scheduler is busy."""
_SETTLE_S = 5.0
"""A scheduler that answers again may have the request before it still."""
_POLL_S = 0.5
_NO_LIMIT_S = 60 * 60 * 24 * 365


class ScriptExecutor(core.Executor):
    """submitit's executor for a script that is rendered; its subclasses send it."""

    job_class = LocalJob
    first_place = 0
    element = "{}_{}"

    def __init__(self, target: Target, script: str) -> None:
        super().__init__(target.submitit_folder)
        self.target = target
        self.script = script
        self.said: list[str] = []
        """Lines that the scheduler printed besides the job's id."""
        self.process: ProcessId | None = None
        """The process that was started here."""

    def send(self) -> str:
        """Give the script to the scheduler; return the job's id, of an array its own."""
        raise NotImplementedError

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
        first = self.first_place if is_array else 0
        tasks = dict(enumerate((one.function for one in delayed_submissions), first))
        write_tasks(self.folder, tasks)
        job_id = self.send()
        ids = [self.element.format(job_id, place) if is_array else job_id for place in tasks]
        return [self.job_class(folder=self.folder, job_id=one) for one in ids]

    def start(
        self, argv: Sequence[str], name: str, environment: Mapping[str, str], cwd: Path | None
    ) -> int:
        """Start a command in the background, in a session of its own, out of reach of the
        terminal's Ctrl-C: the agents end their ranks in order. `name` is its log's, beside
        tasks.json. Return its pid."""
        with (self.target.submitit_folder / name).open("ab") as output:
            process = subprocess.Popen(
                argv,
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.process = identify(process.pid)  # None: it has ended already
        # A program that goes on after submitting must not keep the ended script as a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        return process.pid


class LocalExecutor(ScriptExecutor):
    """Has submitit's local controller run the script as so many tasks.

    As submitit's own start_controller does, but in a new session, and where no file of the user's
    can stand in for a module of the standard library.
    """

    def __init__(self, target: Target, script: str, num_tasks: int) -> None:
        super().__init__(target, script)
        self.num_tasks = num_tasks

    def send(self) -> str:
        # Not by its path, where others of a project's group could exchange it at this moment.
        command = shlex.join(["/bin/bash", "-c", self.script])
        environment = os.environ | {
            "SUBMITIT_LOCAL_NTASKS": str(self.num_tasks),
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(_NO_LIMIT_S),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
        }
        folder = self.target.submitit_folder
        argv = [sys.executable, "-m", "submitit.local._local", str(folder)]
        return str(self.start(argv, "controller.log", environment, folder))


class Handover(ScriptExecutor):
    """Gives the script to the scheduler's command, or starts it at once in an allocation."""

    def __init__(self, scheduler: Batch, target: Target, script: str) -> None:
        super().__init__(target, script)
        self.scheduler = scheduler
        self.first_place, self.element = scheduler.first_place, scheduler.element

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
            self.start(argv, f"{target.allocation}_0_log.out", environment, None)
            return target.allocation
        # Not by its path, where others of a project's group could exchange it at this moment.
        argv = scheduler.submit_command(target, self.script)
        is_unclear = True  # the job may have been submitted in spite of an error
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
            signalled = f"was ended by signal {-done.returncode}"
            said = f"said {done.stdout.strip()!r}, which holds no job id"
            problem = SchedulerError(
                f"{argv[0]} {signalled if done.returncode else said}",
                hint=f"is {argv[0]} a wrapper of the site's? ask its administrators",
            )
        except CommandFailedError as error:
            problem, is_unclear = error, bool(scheduler.unclear.search(error.said))
            error.hint = scheduler.refused_hint(error.said, self.script)
        except CommandTimeoutError as error:
            problem = error
        if not is_unclear or (job_id := self._find_by_name(problem)) is None:
            raise problem
        self.said = [f"{argv[0]} gave up, but its job {job_id} is there: {problem.message}"]
        return job_id

    def _find_by_name(self, error: SchedulerError) -> str | None:
        """Return the id of a job of the target's name, after a submission whose error leaves it
        open whether there is one; None where there is none."""
        name, own = self.target.name, ""
        if self.target.continues is not None:  # that job has the name, too
            own = array_of(str(self.scheduler.own_job_id()))

        def look() -> str | None:
            try:
                jobs = self.scheduler.list_jobs(())
            except SchedulerError:
                raise SubmissionUnclearError(
                    f"it is not known whether {name} was submitted: {error.message}",
                    hint=f"hpcdist status {name} will tell, hpcdist cancel {name} ends it",
                ) from error
            named = [job for job in jobs if job.name == name and array_of(job.id) != own]
            return next((array_of(job.id) for job in named if job.is_active or not own), None)

        return poll(look, interval_s=_POLL_S, limit_s=_SETTLE_S)


def submit_anew(scheduler: Batch, run: Run, *, suffix: str) -> str:
    """Submit a run within its job as another job, with `suffix` behind its name, by the same
    script; return that one's id.

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
    name, place = f"{submission.job_name}{suffix}", own_place()
    target = Target(name=name, folder=folder, cwd="", continues=place)
    leave_to_another(target.submitit_folder, place, str(scheduler.own_job_id()))
    job_id = Handover(scheduler, target, script).send()
    former = [*submission.former_job_ids, str(submission.job_id)]
    run.write_submission(
        msgspec.structs.replace(submission, job_id=job_id, job_name=name, former_job_ids=former)
    )
    return job_id
