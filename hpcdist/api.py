"""hpcdist from Python: submit a job, wait for it, look at what it did.

import hpcdist

run = hpcdist.submit("ddp", nodes=2, gpus=2, scheduler="local")
run.wait()
print(run.summary())

A function is called in every rank, as a script would run there:

run = hpcdist.submit(train, (0.1,), nodes=2, gpus=2)
print(run.result())  # what rank 0 returned
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from hpcdist.base.errors import (
    HpcdistError,
    JobError,
    ProfileError,
    RunDirectoryError,
    RunFailedError,
    UserError,
)
from hpcdist.monitor.states import EndWatch, run_states, wait_until_gone
from hpcdist.runs.run import Run, check_own, find_run, runs_folder
from hpcdist.runs.verdict import State, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdist.cluster.load import LoadedProfile
    from hpcdist.job.files import NameKind
    from hpcdist.job.load import Flag, LoadedJob
    from hpcdist.submission.plan import PlannedSubmission
    from hpcdist.summary import RunSummary

__all__ = ["RunFailedError", "SubmittedRun", "load", "submit", "sweep"]

_POLL_S = 0.1

_After: TypeAlias = "str | SubmittedRun | Sequence[str | SubmittedRun]"


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
        """The reason why the run ended; None while it goes on, or where it was lost."""
        return self._run.read_verdict()

    def wait(self, timeout_s: float | None = None) -> Verdict:
        """Wait for the end, whatever it is; raises TimeoutError after `timeout_s` seconds.

        A run that failed raises nothing: see the verdict's `state` and `message`.
        """
        ended = EndWatch([self._run]).wait(interval_s=_POLL_S, limit_s=timeout_s)
        if self.id not in ended:
            raise TimeoutError(f"run {self.id} has not ended after {timeout_s} s")
        wait_until_gone(self._run)
        return ended[self.id]

    def result(self, rank: int = 0, *, timeout_s: float | None = None) -> Any:
        """Return what a submitted function returned in one rank, once the run has ended.

        Raises RunFailedError where it failed: its `rank`, `host` and `remote_traceback` say where,
        and its cause is what was raised there. TimeoutError as `wait`.
        """
        num_ranks = self._num_function_ranks()
        if not 0 <= rank < num_ranks:
            raise UserError(
                f"rank is {rank}, must be from 0 to {num_ranks - 1}: run {self.id} has no other",
                hint="ask for another rank, or for results()",
            )
        return self._returned([rank], timeout_s)[0]

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """Return what a submitted function returned in each rank, in their order; raises as
        `result`."""
        return self._returned(range(self._num_function_ranks()), timeout_s)

    def _returned(self, ranks: Sequence[int], timeout_s: float | None) -> list[Any]:
        from hpcdist.runs.run import returned_by

        verdict = self.wait(timeout_s)
        return [returned_by(self._run, rank, verdict) for rank in ranks]

    def _num_function_ranks(self) -> int:
        from hpcdist.job.spec import FunctionJob, job_from_dict

        spec, job = self._run.read_spec(), None
        with suppress(msgspec.ValidationError):  # damaged, or of another version
            job = None if spec is None else job_from_dict(spec.job)
        if not isinstance(job, FunctionJob):
            raise UserError(
                f"run {self.id} is not of a function, and returns nothing",
                hint="see its verdict, summary() and logs()",
            )
        return job.resources.nodes * job.resources.gpus

    def cancel(self) -> None:
        """End the run; returns when nothing of it is left, at once if it has ended."""
        from hpcdist.schedulers import load_scheduler

        check_own(self.path, "cancel")
        scheduler = self._run.read_scheduler()
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
        """Return what one rank printed, over all attempts, as a terminal shows it."""
        from hpcdist.monitor.logs import whole_log

        logs = [self._run.log_file(rank, attempt) for attempt in sorted({0, *self._run.attempts()})]
        return "".join(f"{line}\n" for path in logs if path.exists() for line in whole_log(path))


def submit(
    job: str | os.PathLike[str] | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    scheduler: str = "auto",
    cluster: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    notify: Sequence[str] = (),
    max_restarts: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option --set
    after: _After = (),
    runs: str | os.PathLike[str] | None = None,
    snapshot: bool | None = None,
    is_module: bool = False,
    is_program: bool = False,
) -> SubmittedRun:
    """Submit a job, as `hpcdist submit` does, and return at once.

    Args:
        job: name of a job, path of a job file, path of a Python script, or a function,
            which is called in every rank: see `SubmittedRun.result`.
        args: arguments of a script, which are texts, or of a function, which are anything that can
            be pickled; they are kept in a private file of the run directory, and nowhere else.
        kwargs: arguments of a function, by name.
        nodes: number of nodes; as the job says if None.
        gpus: GPUs, or ranks, per node; as the job says if None.
        scheduler: slurm, lsf, pbs, local, or auto: as the profile says, else what answers.
        cluster: a profile of hpcdist.yaml; HPCDIST_CLUSTER or the file's default if None.
        partition: partition or queue; as the profile says if None.
        account: account or project that is charged; as the profile says if None.
        qos: quality of service; as the profile says if None.
        notify: channels by which you are told of the end, such as "apprise:env:SLACK_URL"; as the
            profile says if there are none.
        max_restarts: how often the ranks are started again after a failure.
        set: values of keys of the job, such as {"train.lr": 0.01}.
        after: runs that must have ended well before; by name any:RUN for any end.
            Locally they are waited for here.
        runs: folder of the runs; HPCDIST_RUNS or ./runs if None.
        snapshot: run from a copy of the git work tree; on clusters, not locally, if None.
        is_module: `job` is the name of a module, which is run as by `python -m`.
        is_program: `job` is a program in any language, a name in PATH or a path with a slash: as
            the option --no-python.

    Raises:
        JobError: the job, or a value given here, is wrong.
        ProfileError: the cluster's profile, or a value given for it here, is wrong.
        SchedulerError: the scheduler refused, or cannot be reached.
        RunDirectoryError: the run directory cannot be written.

    """
    from hpcdist.submission.plan import PlannedSubmission, plan_run

    short = {"resources.nodes": nodes, "resources.gpus": gpus, "launch.max_restarts": max_restarts}
    kind = _kind(is_module=is_module, is_program=is_program)
    loaded, call = _load(job, args, kwargs, _flags(short, set or {}), kind=kind)
    of_profile = {"partition": partition, "account": account, "qos": qos}
    chosen, profile = _cluster(scheduler, cluster, of_profile, notify)
    folder = runs_folder(runs)
    run = plan_run(loaded, scheduler=chosen, cluster=profile, snapshot=snapshot, runs=folder)
    planned = PlannedSubmission.of_run(replace(run, call=call))
    return _submit(planned, folder, after)[0]


def sweep(
    job: str | os.PathLike[str],
    over: Mapping[str, Sequence[Any]],
    *,
    repeat: int = 1,
    same_seed: bool = False,
    max_parallel: int | None = None,
    scheduler: str = "auto",
    cluster: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    notify: Sequence[str] = (),
    set: Mapping[str, Any] | None = None,  # noqa: A002 - as the option --set
    args: Sequence[str] = (),
    after: _After = (),
    runs: str | os.PathLike[str] | None = None,
    snapshot: bool | None = None,
    is_module: bool = False,
    is_program: bool = False,
) -> list[SubmittedRun]:
    """Submit a job at every combination of values, as `hpcdist submit --sweep` does.

    On a cluster it returns at once; on this machine, with scheduler="local", when all runs have
    ended. The runs are in the order of the points: the first key of `over` varies slowest.

    `over` has the values by key, such as {"nodes": [1, 2], "train.lr": [0.1, 0.01]}; nodes, gpus,
    time and max_restarts stand for their keys. Each point is run `repeat` times, with a train.seed
    of its own each time unless `same_seed`, and so many runs at one time as `max_parallel` says:
    locally 1, else no limit if None. `set` has the values of keys that are the same at all points.
    The other arguments are those of `submit`, but `job` is no function.

    Raises:
        UserError: a value given here is wrong, at any point; nothing was submitted.
        SchedulerError: the scheduler refused, or cannot be reached; the message says what was
            submitted before.
        RunDirectoryError: the run directories cannot be written.

    """
    from hpcdist.job.load import load_job
    from hpcdist.submission.plan import plan_points
    from hpcdist.submission.points import axes_from_values, check_given_once, make_points

    if callable(job):
        raise JobError(
            "a function cannot be swept",
            hint="submit it once for each value: [hpcdist.submit(function, (v,)) for v in values]",
        )
    folder = runs_folder(runs)
    kind = _kind(is_module=is_module, is_program=is_program)
    axes = axes_from_values(over)
    flags = _flags({}, set or {})
    check_given_once(axes, {key: flag.name for key, flag in flags.items()})
    of_profile = {"partition": partition, "account": account, "qos": qos}
    chosen, profile = _cluster(scheduler, cluster, of_profile, notify)
    planned = plan_points(
        make_points(axes, num_repeats=repeat),
        load=lambda point: load_job(job, flags=flags | point.flags, script_args=args, kind=kind),
        scheduler=chosen,
        cluster=profile,
        snapshot=snapshot,
        runs=folder,
        max_parallel=max_parallel,
        same_seed=same_seed,
    )
    return _submit(planned, folder, after)


def load(run: str, *, runs: str | os.PathLike[str] | None = None) -> SubmittedRun:
    """Return a run that was submitted: by its id, the beginning of one, its path, or `last`."""
    return SubmittedRun(find_run(runs_folder(runs), os.fspath(run)))


def _load(
    job: str | os.PathLike[str] | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    flags: Mapping[str, Flag],
    *,
    kind: NameKind,
) -> tuple[LoadedJob, bytes | None]:
    """Return the job, and its call where it is a function."""
    if callable(job):
        if kind != "job":
            raise JobError(
                f"is_{kind} is given for a function", hint=f"give the name of the {kind} as text"
            )
        from hpcdist.job.function import load_function, pickle_call

        call = pickle_call(job, args, kwargs or {})
        return load_function(job, flags=flags), call
    from hpcdist.job.load import load_job

    if kwargs:
        raise JobError(
            f"kwargs are given for {os.fspath(job)}: only a function takes arguments by name",
            hint="give a script its arguments in args, and a job its values in set",
        )
    return load_job(job, flags=flags, script_args=args, kind=kind), None


def _kind(*, is_module: bool, is_program: bool) -> NameKind:
    if is_module and is_program:
        raise UserError("is_module and is_program contradict each other", hint="give one of them")
    if is_module:
        return "module"
    return "program" if is_program else "job"


def _flags(short: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Flag]:
    from hpcdist.job.load import Flag

    flags = {
        key: Flag(name=key.rpartition(".")[2], value=value)
        for key, value in short.items()
        if value is not None
    }
    for key, value in given.items():
        if key in flags:
            raise UserError(f"{key} is given twice", hint="give it by its name, or in set")
        flags[key] = Flag(name=f"set[{key!r}]", value=value)
    return flags


def _cluster(
    scheduler: str, cluster: str | None, named: Mapping[str, str | None], notify: Sequence[str]
) -> tuple[str, LoadedProfile]:
    from hpcdist.cluster.load import choose_cluster, with_channels
    from hpcdist.job.load import Flag
    from hpcdist.schedulers import host_of

    flags = {key: Flag(name=key, value=value) for key, value in named.items() if value is not None}
    chosen, loaded = choose_cluster(scheduler, cluster, flags)
    if (host := host_of(loaded.profile)) is not None:
        raise ProfileError(
            f"{loaded.origins['host']}: clusters.{loaded.name}.host is {host}, where Python "
            "submits no jobs from here",
            hint="use the command hpcdist submit, or call this at the host",
        )
    return chosen, with_channels(loaded, notify)


def _submit(planned: PlannedSubmission, folder: Path, after: _After) -> list[SubmittedRun]:
    """Hand the runs over to their scheduler; run the points of a sweep that are for this machine,
    one after the other."""
    from hpcdist.submission.dependencies import find_after, settle
    from hpcdist.submission.submit import begin, start_points, submit

    listed = [after] if isinstance(after, str | SubmittedRun) else list(after)
    names = [str(item.path) if isinstance(item, SubmittedRun) else item for item in listed]
    dependencies = settle([find_after(folder, name) for name in names], planned.scheduler)
    planned.prepare()
    if not planned.points_here():
        planned = submit(planned, runs=folder, dependencies=dependencies)
        return [SubmittedRun(run) for run in planned.runs]
    planned = begin(planned, folder)
    errors = []
    for index, run in start_points(planned):
        if isinstance(run, Run):
            try:
                SubmittedRun(run).wait()
            except BaseException:
                planned.scheduler.cancel([run])
                raise
        else:
            label = planned.points[index].label
            errors.append(f"the run for {label} could not be started: {run.message}")
    if errors:
        raise HpcdistError(errors[0])
    return [SubmittedRun(run) for run in planned.runs if run.path.exists()]
