"""Submitting what is prepared: submitit's executors with our script in the place of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from submitit.core import utils

from hpcdist.machine.pickles import unnamed_pickle
from hpcdist.schedulers import Target

if TYPE_CHECKING:
    from pathlib import Path


class PreparedSubmission:
    """Goes before an executor of submitit's among a class's bases.

    As submitit does, but its arrays would forget that they are ours, and its pickles could be found
    only by who knows the job's id.
    """

    folder: Path
    first_task = 0
    """The number of an array's first element."""

    def __init__(self, target: Target, script: str, num_nodes: int) -> None:
        super().__init__(folder=target.submitit_folder)  # type: ignore[call-arg] # the executor's
        self.said: list[str] = []
        """What the scheduler had to say besides the job's id."""
        self._target = target
        self._script = script
        self._num_nodes = num_nodes

    def submit_all(self, callables: Sequence[Any]) -> list[str]:
        """Submit one callable, or those of the target's array; returns submitit's ids of the jobs.

        Raises SchedulerError.
        """
        delayed = [utils.DelayedSubmission(one) for one in callables]
        return [job.job_id for job in self._internal_process_submissions(delayed)]

    def take_back(self, job_ids: Sequence[str]) -> None:
        """End what was submitted: nobody would know of it."""
        raise NotImplementedError

    def _submit_script(self) -> str:
        """Give the script to the scheduler; the job's id, of an array its own."""
        raise NotImplementedError

    def _internal_process_submissions(self, delayed_submissions: list[Any]) -> list[Any]:
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        tasks = self._tasks(len(delayed_submissions))
        pickles = [self._pickle(folder, task or 0) for task in tasks]
        self._dump(delayed_submissions, pickles)
        job_id = self._submit_script()
        jobs = [self._job(job_id if task is None else f"{job_id}_{task}") for task in tasks]
        try:
            for job, path in zip(jobs, pickles, strict=True):
                job.paths.move_temporary_file(path, "submitted_pickle")
        except OSError:  # a quota, say: the jobs would find nothing to do
            self.take_back([job.job_id for job in jobs])
            raise
        return jobs

    def _pickle(self, folder: Path, task: int) -> Path:
        """Where it is until the job's id is known."""
        return unnamed_pickle(folder, task)

    def _dump(self, delayed_submissions: Sequence[Any], pickles: Sequence[Path]) -> None:
        for delayed, path in zip(delayed_submissions, pickles, strict=True):
            delayed.dump(path)

    def _tasks(self, number: int) -> list[int | None]:
        """The numbers of the array's elements; None for what is no array."""
        if self._target.array_size is None:
            return [None]
        return list(range(self.first_task, self.first_task + number))

    def _job(self, job_id: str) -> Any:
        """What submitit knows a job by."""
        nodes = list(range(self._num_nodes))
        return self.job_class(  # type: ignore[attr-defined] # the executor's
            folder=self.folder, job_id=job_id, tasks=nodes
        )
