"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.run import Run, all_runs, find_run, runs_folder

if TYPE_CHECKING:
    from hpcdist.cluster.load import LoadedProfile
    from hpcdist.job import Flag, LoadedJob
    from hpcdist.workspace import SnapshotRequest

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_JOB_FLAGS = {
    "nodes": "resources.nodes",
    "gpus": "resources.gpus",
    "max_restarts": "launch.max_restarts",
}
"""Field of JobOptions -> the key of the job file that the option is short for."""


_PROFILE_FLAGS = ("partition", "account", "qos")
"""Fields of JobOptions that are keys of a cluster profile."""


def _runs_path(_context: click.Context, _option: click.Parameter, value: str | None) -> Path:
    return runs_folder(value)


runs_option = click.option(
    "--runs",
    metavar="DIR",
    callback=_runs_path,
    help="Folder of the runs. [default: HPCDIST_RUNS, else ./runs]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
run_argument = click.argument("run_name", metavar="RUN")
run_arguments = click.argument("run_names", metavar="[RUN]...", nargs=-1)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What names a job, changes it, and says where it goes: the options that submit and render
    share, as they were typed. A field is an option of `_JOB_OPTIONS`, by its name there."""

    job_name: str
    script_args: tuple[str, ...]
    nodes: str | None
    gpus: str | None
    local: bool
    scheduler: str | None
    cluster: str | None
    partition: str | None
    account: str | None
    qos: str | None
    time_limit: str | None
    overrides: tuple[str, ...]
    max_restarts: str | None
    snapshot: bool | None
    snapshot_limit: float | None
    runs: Path


_JOB_ARGUMENTS: tuple[_Decorator, ...] = (
    click.argument("job_name", metavar="JOB"),
    click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED),
)
_JOB_OPTIONS: tuple[_Decorator, ...] = (
    click.option("--nodes", metavar="N", help="Number of nodes."),
    click.option("--gpus", metavar="G", help="GPUs per node; without GPUs, ranks per node."),
    click.option("--local", is_flag=True, help="Run on this machine, and follow it."),
    click.option(
        "--scheduler",
        type=click.Choice(["auto", "slurm", "lsf", "local"]),
        help="Where to run. [default: as the cluster's profile says, else what this machine has]",
    ),
    click.option(
        "--cluster",
        metavar="NAME",
        help="Profile from hpcdist.yaml. [default: HPCDIST_CLUSTER, else the file's default]",
    ),
    click.option("--partition", metavar="P", help="Partition (Slurm) or queue (LSF)."),
    click.option("--account", metavar="A", help="Account, or project, that is charged."),
    click.option("--qos", metavar="Q", help="Quality of service (Slurm)."),
    click.option(
        "--time",
        "time_limit",
        metavar="T",
        help="Time limit: minutes, H:MM:SS or D-HH:MM:SS.",
    ),
    click.option(
        "--set",
        "overrides",
        metavar="KEY.PATH=VALUE",
        multiple=True,
        help="Set any key of the job file; may be given several times.",
    ),
    click.option("--max-restarts", metavar="R", help="Restarts after a failure."),
    click.option(
        "--snapshot/--no-snapshot",
        default=None,
        help="Run from a copy of the git work tree as it is now. "
        "[default: for scripts on clusters, not with --local]",
    ),
    click.option(
        "--snapshot-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="MB",
        help="Largest work tree to copy. [default: HPCDIST_SNAPSHOT_LIMIT_MB, else 100]",
    ),
    runs_option,
)


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options of JobOptions; it gets them together, as its argument `options`."""
    return _with_options(function, (*_JOB_ARGUMENTS, *_JOB_OPTIONS), {})


def options_of_job(job_name: str) -> _Decorator:
    """The same for a verb that always submits one and the same job."""
    fixed = {"job_name": job_name, "script_args": ()}
    return lambda function: _with_options(function, _JOB_OPTIONS, fixed)


def _with_options(
    function: Callable[..., Any], options: Sequence[_Decorator], fixed: Mapping[str, Any]
) -> Callable[..., Any]:
    names = [field.name for field in fields(JobOptions) if field.name not in fixed]

    @wraps(function)
    def with_options(**values: Any) -> Any:
        given = JobOptions(**fixed, **{name: values.pop(name) for name in names})
        return function(options=given, **values)

    wrapped: Callable[..., Any] = with_options
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def load_from_options(
    options: JobOptions, *, defaults: Mapping[str, Any] | None = None
) -> LoadedJob:
    """The job that the options describe; `defaults` as for `load_job`."""
    from hpcdist.job import load_job, parse_flag

    return load_job(
        options.job_name,
        flags={
            _JOB_FLAGS[option]: parse_flag(f"--{option.replace('_', '-')}", text)
            for option, text in _typed(options, _JOB_FLAGS).items()
        }
        | _time_flag(options.time_limit),
        overrides=options.overrides,
        script_args=options.script_args,
        defaults=defaults,
    )


def cluster_from_options(options: JobOptions, *, debug: bool = False) -> tuple[str, LoadedProfile]:
    """The scheduler by name, or `auto`, and the profile; debug mode is local, as --local is."""
    from hpcdist.cluster.choose import choose_cluster
    from hpcdist.job import Flag

    scheduler = "local" if options.local or debug else options.scheduler
    if options.scheduler not in {None, scheduler}:
        flag = "--debug" if debug else "--local"
        raise click.UsageError(f"{flag} and --scheduler {options.scheduler} contradict each other")
    flags = {
        option: Flag(name=f"--{option}", value=text, text=text)
        for option, text in _typed(options, _PROFILE_FLAGS).items()
    }
    return choose_cluster(scheduler, options.cluster, flags)


def cluster_here(options: JobOptions) -> LoadedProfile:
    """The profile for a step in this shell's allocation, whose partition and like are given.

    Raises UsageError for an option that the allocation has decided already.
    """
    from hpcdist.cluster.load import load_profile

    given = ["--local"] if options.local else []
    given += [f"--{name}" for name in _typed(options, _PROFILE_FLAGS)]
    if options.scheduler not in {None, "auto", "slurm"}:
        given.append(f"--scheduler {options.scheduler}")
    if given:
        raise click.UsageError(f"--here and {given[0]} contradict each other")
    return load_profile(options.cluster)


def _typed(options: JobOptions, names: Iterable[str]) -> dict[str, str]:
    texts = {name: getattr(options, name) for name in names}
    return {name: text for name, text in texts.items() if text is not None}


def _time_flag(text: str | None) -> dict[str, Flag]:
    from hpcdist.job import Flag
    from hpcdist.job.duration import parse_minutes

    if text is None:
        return {}
    minutes = parse_minutes(text, origin="--time")
    return {"resources.time_limit_min": Flag(name="--time", value=minutes)}


def snapshot_from_options(options: JobOptions) -> SnapshotRequest:
    """What the user wants of the snapshot."""
    from hpcdist.workspace import SnapshotRequest

    return SnapshotRequest(
        wanted=options.snapshot, limit_mb=options.snapshot_limit, runs=options.runs
    )


def named_runs(runs: Path, names: Sequence[str]) -> list[Run]:
    """The runs of these names, each once; all runs if there are no names."""
    if not names:
        return all_runs(runs)
    return list({run.path: run for run in (find_run(runs, name) for name in names)}.values())
