"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpcdist.run import Run, all_runs, find_run, runs_folder

if TYPE_CHECKING:
    from hpcdist.job import LoadedJob

Function = TypeVar("Function", bound=Callable[..., Any])

_JOB_FLAGS = {
    "nodes": "resources.nodes",
    "gpus": "resources.gpus",
    "max_restarts": "launch.max_restarts",
    "no_requeue": "launch.requeue",
}
"""Option -> the key of the job file that it is short for."""


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


def job_options(function: Function) -> Function:
    """What names a job, changes it, and says where it goes: for submit and render."""
    options = (
        click.argument("job_name", metavar="JOB"),
        click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED),
        click.option("--nodes", metavar="N", help="Number of nodes."),
        click.option("--gpus", metavar="G", help="GPUs per node; without GPUs, ranks per node."),
        click.option("--local", is_flag=True, help="Run on this machine, and follow it."),
        click.option(
            "--scheduler",
            type=click.Choice(["auto", "slurm", "lsf", "local"]),
            help="Where to run. [default: auto, what this machine has]",
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
            "--no-requeue",
            is_flag=True,
            flag_value="false",
            default=None,
            help="End with code 75 at the time limit or a preemption; do not start again.",
        ),
        runs_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


def load_from_options(
    job_name: str, overrides: Sequence[str], script_args: Sequence[str], **flags: str | None
) -> LoadedJob:
    """The job that the options of `job_options` describe."""
    from hpcdist.job import load_job, parse_flag

    return load_job(
        job_name,
        flags={
            _JOB_FLAGS[name]: parse_flag(f"--{name.replace('_', '-')}", text)
            for name, text in flags.items()
            if text is not None
        },
        overrides=overrides,
        script_args=script_args,
    )


def choose_scheduler(scheduler: str | None, *, local: bool, flag: str = "--local") -> str:
    """The scheduler by name, or `auto`; `local` says that `flag` wants this machine."""
    if not local:
        return scheduler or "auto"
    if scheduler not in {None, "local"}:
        raise click.UsageError(f"{flag} and --scheduler {scheduler} contradict each other")
    return "local"


def named_runs(runs: Path, names: Sequence[str]) -> list[Run]:
    """The runs of these names, each once; all runs if there are no names."""
    if not names:
        return all_runs(runs)
    return list({run.path: run for run in (find_run(runs, name) for name in names)}.values())
