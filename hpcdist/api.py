"""hpcdist from Python: submit a job, wait for it, look at what it did.

import hpcdist

run = hpcdist.submit("ddp", nodes=2, gpus=2, scheduler="local")
run.wait()
print(run.summary())
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcdist.errors import RunDirectoryError, UserError
from hpcdist.run import Run, find_run, runs_folder
from hpcdist.states import EndWatch, run_states, wait_until_gone
from hpcdist.submitted import scheduler_of
from hpcdist.verdict import State, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdist.summary import RunSummary

_POLL_S = 0.1


class SubmittedRun:
    """A run, from any process and on any day: all it knows stands in the run directory."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"SubmittedRun({self.id!r}, {self.state!r})"

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.id

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    @property
    def state(self) -> State:
        """pending, running, done, failed, cancelled, preempted or lost."""
        return run_states([self._run])[self.id]

    @property
    def verdict(self) -> Verdict | None:
        """Why the run ended; None while it goes on, or where it was lost."""
        return self._run.read_verdict()

    def wait(self, timeout_s: float | None = None) -> Verdict:
        """Wait for the end, whatever it is; raises TimeoutError after `timeout_s` seconds.

        A run that failed raises nothing: see the verdict's `state` and `message`.
        """
        end = EndWatch(self._run)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (verdict := end.poll()) is None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"run {self.id} has not ended after {timeout_s} s")
            time.sleep(_POLL_S)
        wait_until_gone(self._run)
        return verdict

    def cancel(self) -> None:
        """End the run; returns when nothing of it is left, at once if it has ended."""
        from hpcdist.schedulers import load_scheduler

        scheduler = scheduler_of(self._run)
        if self.verdict is None and scheduler is not None:
            load_scheduler(scheduler).cancel([self._run])

    def summary(self) -> RunSummary:
        """Throughput, step times, phases and results; of a run that goes on, up to now."""
        from hpcdist.summary import summarize

        summary = summarize([self._run], run_states([self._run]))
        if not summary.runs:
            raise RunDirectoryError(
                f"run {self.id} cannot be read: {'; '.join(summary.skipped)}",
                hint=f"look into {self.path}",
            )
        return summary.runs[0]

    def logs(self, rank: int = 0) -> str:
        """What one rank printed, over all attempts."""
        from hpcdist.follow.tail import TailedFile

        files = [path for found, _, path in self._run.log_files() if found == rank]
        lines = [line for path in files for line in TailedFile(path).lines(finish=True)]
        return "".join(line.decode(errors="replace") + "\n" for line in lines)


def submit(
    job: str | os.PathLike[str],
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    scheduler: str = "auto",
    cluster: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    max_restarts: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option --set
    args: Sequence[str] = (),
    runs: str | os.PathLike[str] | None = None,
    snapshot: bool | None = None,
) -> SubmittedRun:
    """Submit a job, as `hpcdist submit` does, and return at once.

    Args:
        job: name of a job, path of a job file, or path of a Python script.
        nodes: number of nodes; as the job says if None.
        gpus: GPUs, or ranks, per node; as the job says if None.
        scheduler: slurm, lsf, local, or auto: as the cluster's profile says, else what answers.
        cluster: a profile of hpcdist.yaml; HPCDIST_CLUSTER or the file's default if None.
        partition: partition or queue; as the profile says if None.
        account: account or project that is charged; as the profile says if None.
        qos: quality of service; as the profile says if None.
        max_restarts: how often the ranks are started again after a failure.
        set: values of keys of the job, such as {"train.lr": 0.01}.
        args: arguments of a script.
        runs: folder of the runs; HPCDIST_RUNS or ./runs if None.
        snapshot: run from a copy of the git work tree; on clusters, not locally, if None.

    Raises:
        JobError: the job, or a value given here, is wrong.
        ProfileError: the cluster's profile, or a value given for it here, is wrong.
        SchedulerError: the scheduler refused, or cannot be reached.
        RunDirectoryError: the run directory cannot be written.

    """
    from hpcdist import submission
    from hpcdist.cluster.choose import choose_cluster
    from hpcdist.job import Flag, load_job
    from hpcdist.workspace import SnapshotRequest

    short = {"resources.nodes": nodes, "resources.gpus": gpus, "launch.max_restarts": max_restarts}
    flags = {
        key: Flag(name=key.rpartition(".")[2], value=value)
        for key, value in short.items()
        if value is not None
    }
    for key, value in (set or {}).items():
        if key in flags:
            raise UserError(f"{key} is given twice", hint="give it by its name, or in set")
        flags[key] = Flag(name=f"set[{key!r}]", value=value)
    loaded = load_job(job, flags=flags, script_args=args)
    named = {"partition": partition, "account": account, "qos": qos}
    chosen, profile = choose_cluster(
        scheduler,
        cluster,
        {key: Flag(name=key, value=value) for key, value in named.items() if value is not None},
    )
    planned = submission.plan_submission(
        loaded,
        scheduler=chosen,
        cluster=profile,
        snapshot=SnapshotRequest(wanted=snapshot, runs=_folder(runs)),
    )
    submission.prepare(planned)
    command = ["hpcdist.submit", os.fspath(job)]
    submitted = submission.submit(planned, runs=_folder(runs), command=command)
    return SubmittedRun(submitted.run)


def load(run: str, *, runs: str | os.PathLike[str] | None = None) -> SubmittedRun:
    """A run that was submitted before: by its id, the beginning of one, its path, or `last`."""
    return SubmittedRun(find_run(_folder(runs), os.fspath(run)))


def _folder(runs: str | os.PathLike[str] | None) -> Path:
    return runs_folder(None if runs is None else os.fspath(runs))
