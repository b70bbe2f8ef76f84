"""The door to submitit: an executor for scripts that are rendered, and what runs in the job.

submitit pickles what every node of a job executes, names the pickle after the job, and runs it
there. Rendering, calling the scheduler and watching jobs is hpcdist's. What is used here beyond
submitit's documented interface, and may change with it (tried with 1.5.4; setup.cfg wants no other
minor version):
`Executor._internal_process_submissions`, `DelayedSubmission.dump` and `load`, `JobPaths`, the
variables and the module of its local controller, and `core.submission.submitit_main`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from submitit.core import core, utils
from submitit.core.job_environment import JobEnvironment

from hpcdist.base import files
from hpcdist.base.errors import EXIT_FAILED
from hpcdist.base.ownership import NotOwnError, check_own_folder, is_own, read_own
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.adoption import end_unless_adopted
from hpcdist.schedulers.base import AgentTask, Task
from hpcdist.schedulers.hosts import PLACE_VARIABLE

_NO_LIMIT_S = 60 * 60 * 24 * 365


class ScriptExecutor(core.Executor):
    """submitit's executor, with a script of ours in the place of the one that it would write.

    submitit's own arrays would forget that they are ours, and its pickles could be found only by
    who knows the job's id.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job_class: type[core.Job[Any]],
        num_tasks: int,
        send: Callable[[], str],
        take_back: Callable[[Sequence[str]], object],
        array_from: int | None = None,
    ) -> None:
        """`send` gives the script to the scheduler and returns the job's id, of an array its own;
        `take_back` ends jobs by submitit's ids; `array_from` is the number of an array's first
        element, None where there is no array."""
        super().__init__(folder)
        self.job_class = job_class
        self._num_tasks = num_tasks
        self._send = send
        self._take_back = take_back
        self._array_from = array_from

    def submit_all(self, tasks: Sequence[Task]) -> list[str]:
        """Submit one task, or those of an array; return submitit's ids of the jobs.

        Raises SchedulerError.
        """
        delayed = [utils.DelayedSubmission(cast("Any", task)) for task in tasks]
        return [str(job.job_id) for job in self._internal_process_submissions(delayed)]

    def _internal_process_submissions(self, delayed_submissions: Sequence[Any]) -> list[Any]:
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        first = self._array_from
        places = range(first or 0, (first or 0) + len(delayed_submissions))
        pickles = [_unnamed_pickle(folder, place) for place in places]
        for delayed, path in zip(delayed_submissions, pickles, strict=True):
            delayed.dump(path)
            path.chmod(files.PRIVATE_FILE)  # jobs refuse what others can write
        job_id = self._send()
        ids = [job_id if first is None else f"{job_id}_{place}" for place in places]
        tasks = list(range(self._num_tasks))
        jobs = [self.job_class(folder=self.folder, job_id=one, tasks=tasks) for one in ids]
        try:
            for job, path in zip(jobs, pickles, strict=True):
                _name_pickle(path, job.paths.submitted_pickle)
        except OSError:  # a quota, say: the jobs would find nothing to do
            self._take_back(ids)
            raise
        return jobs


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
        "SUBMITIT_LOCAL_NODEID": "0",
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "SUBMITIT_STDERR_TO_STDOUT": "1",
        "SUBMITIT_EXECUTOR": "local",
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


# Within a job.


def _unnamed_pickle(folder: Path, place: int) -> Path:
    return folder / f"task-{place}.pkl"


def _adopt_pickle(folder: Path) -> None:
    """Within a job: give its pickle the name that submitit looks for, where nobody has yet.

    submitit names the pickle once the scheduler has told the job's id. sbatch may give up before
    that, and its caller may be killed, while the controller has the job, or several: then the job
    goes by its place in the submission, which it knows by itself.
    """
    unnamed = _unnamed_pickle(folder, _own_place())
    if unnamed.exists():
        job_id = JobEnvironment().job_id
        _name_pickle(unnamed, utils.JobPaths(folder, job_id=job_id).submitted_pickle)


def _name_pickle(unnamed: Path, named: Path) -> None:
    """Give a pickle a second name: by its own, other jobs of the same submission find it."""
    with suppress(FileExistsError):  # by the submitter, or by the agent of another node
        os.symlink(unnamed.name, named)


def _end_unless_adopted(folder: Path) -> None:
    """End a job of Slurm's whose run is another job's: the programs of other schedulers do that
    before they start anything on hosts, and what runs on this machine is started once."""
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        end_unless_adopted(folder, _own_place(), JobEnvironment().job_id)


def _own_place() -> int:
    return int(os.environ.get(PLACE_VARIABLE) or JobEnvironment().array_task_id or 0)


def load_task(folder: Path) -> AgentTask:
    """Return what the job's node is to do, for a process that has it done elsewhere. Ends with a
    verdict where the folder or its files are not the user's own."""
    try:
        _check_folders(folder)
        _end_unless_adopted(folder)
        task: object = _load_pickle(folder).function
    except NotOwnError as error:
        _refuse(folder, error)
    return cast("AgentTask", task)


def run_pickle(be_agent: Callable[[AgentTask], int], *, adopts: bool) -> None:
    """Run submitit's main on the folder that sys.argv names, if it is the user's own; with `adopts`
    where the job may have no id yet, as far as submitit knows."""
    folder = Path(sys.argv[1])
    try:
        _check_folders(folder)
        if adopts:
            _end_unless_adopted(folder)
            _adopt_pickle(folder)
        _run_main(be_agent)
    except NotOwnError as error:
        _refuse(folder, error)


def _check_folders(folder: Path) -> None:
    """Check submitit's folder and the run's. What is in them is checked as it is read: each node
    would ask about what all the others write there."""
    check_own_folder(folder.parent, with_content=False)
    check_own_folder(folder, with_content=False)


def _load_pickle(folder: Path) -> utils.DelayedSubmission:
    content = read_own(_unnamed_pickle(folder, _own_place()))
    delayed: utils.DelayedSubmission = pickle.loads(content)  # noqa: S301 - it is the user's own
    return delayed


def _refuse(folder: Path, error: NotOwnError) -> NoReturn:
    """Say why, and write the verdict on a run of the user's own; others' stay as they are."""
    print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
    run = Run(folder.parent)
    if is_own(run.path) and run.spec_file.exists():
        verdict = Verdict(
            kind="launch",
            state="failed",
            message=error.message,
            exit_code_of_run=EXIT_FAILED,
            time_s=time.time(),
        )
        with suppress(OSError):
            run.write_verdict(verdict)
    sys.exit(EXIT_FAILED)


def _run_main(be_agent: Callable[[AgentTask], int]) -> None:
    """Run submitit's main, in a process without numpy, on a pickle whose owner is checked as it is
    read.

    submitit imports numpy as a precaution before it loads a task. Here the task is an agent, which
    needs none, and whose ranks are forks of its forks: numpy would have read OMP_NUM_THREADS and
    OPENBLAS_NUM_THREADS in the agent, before a program could set them. An agent starts sooner, and
    is smaller, too.
    """
    is_there = "numpy" in sys.modules
    if not is_there:
        sys.modules["numpy"] = None  # type: ignore[assignment] # importing it fails, as if missing
    try:
        from submitit.core import submission
    finally:
        if not is_there:
            del sys.modules["numpy"]

    def load(path: Path) -> utils.DelayedSubmission:
        delayed = _load_pickle(path.parent)
        is_agent = isinstance(delayed.function, AgentTask)
        return utils.DelayedSubmission(be_agent, delayed.function) if is_agent else delayed

    utils.DelayedSubmission.load = load  # type: ignore[method-assign, assignment]
    submission.submitit_main()
