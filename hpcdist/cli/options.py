"""Options that several verbs share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.base.text import nearest
from hpcdist.cluster.schedulers import LOCAL, scheduler_choices
from hpcdist.runs.run import Run, all_runs, runs_folder

if TYPE_CHECKING:
    from hpcdist.cluster.load import LoadedProfile
    from hpcdist.job.comparison import Comparison
    from hpcdist.job.files import NameKind
    from hpcdist.job.load import Flag, LoadedJob
    from hpcdist.submission.points import Point

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
HOST = "hpcdist.host"
"""The option's place in click's context: verbs do not see where they run."""
_JOB_FLAGS = {
    "nodes": "resources.nodes",
    "gpus": "resources.gpus",
    "max_restarts": "launch.max_restarts",
}
"""Field of JobOptions -> the key of the job file that the option is short for."""
_STARTERS = re.compile(r"python[\d.]*|torchrun|accelerate")
_PROFILE_FLAGS = ("partition", "account", "qos")
"""Fields of JobOptions that are keys of a cluster profile."""


class Choice(click.Choice[str]):
    """Names the choice that a wrong value is most like."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        near = nearest(str(value), self.choices)
        message = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return f"{message}; did you mean {near}?" if near else message


def with_options(*options: _Decorator) -> _Decorator:
    """Give a verb these options, in their order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _keep_host(ctx: click.Context, _option: click.Parameter, value: str | None) -> None:
    ctx.meta[HOST] = value


host_option = click.option(
    "--host",
    metavar="HOST[:DIR]",
    expose_value=False,
    callback=_keep_host,
    help="Run the command on this login node, by ssh. [default: the profile's host, or where the "
    "run is]",
)
runs_option = click.option(
    "--runs",
    metavar="DIR",
    callback=lambda _context, _option, value: runs_folder(value),
    help="Folder of the runs. [default: HPCDIST_RUNS, else ./runs]",
)
how_to_follow = with_options(
    click.option("--wait", is_flag=True, help="Follow the run, and end with its exit code."),
    click.option(
        "--detach", is_flag=True, help="Return at once; a run on this machine goes on by itself."
    ),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
about_runs = with_options(host_option, runs_option, json_option)
"""The options of a verb that is about runs, wherever they are."""
run_argument = click.argument("run_name", metavar="RUN")
rank_option = click.option(
    "--rank", metavar="R", type=click.IntRange(min=0), default=0, help="The rank; 0 by default."
)
run_arguments = click.argument("run_names", metavar="[RUN]...", nargs=-1)


def parse_ranks(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> list[int] | None:
    """Return the ranks that an option names, such as `0,3,8-11`; None where it is not given."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise click.BadParameter(f"{text!r} names no ranks: they are such as 0,3,8-11")
        found.update(range(first, last + 1))
    return sorted(found)


ranks_option = click.option(
    "--rank",
    "--ranks",
    "ranks",
    metavar="R[,R...]",
    callback=parse_ranks,
    help="Only these ranks, such as 3 or 0,8-11.",
)


class JobOptions(Struct, frozen=True, kw_only=True, dict=True):
    """The options that submit and render share, as they were typed: they name a job, change it and
    say where it goes. A field is an option of `_OPTIONS`, by its name there."""

    job_name: str
    is_module: bool = False
    is_program: bool = False
    script_args: tuple[str, ...] = ()
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
    max_restarts: str | None = None
    requeue: bool | None = None
    sweeps: tuple[str, ...] = ()
    repeat: int | None = None
    same_seed: bool = False
    max_parallel: int | None = None
    after: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    snapshot: bool | None = None
    runs: Path

    @property
    def is_sweep(self) -> bool:
        """The options may describe more than one run."""
        return bool(self.sweeps) or (self.repeat or 1) > 1 or self.comparison is not None

    @cached_property
    def comparison(self) -> Comparison | None:
        """The comparison that the job's name means, if it means one.

        Raises JobError, and UserError for what people type in the place of a script.
        """
        from hpcdist.job.comparison import find_comparison

        name = self.job_name
        if self.kind == "job" and _STARTERS.fullmatch(os.path.basename(name)):
            scripts = [word for word in self.script_args if word.endswith(".py")]
            raise UserError(
                f"{name} is no job: hpcdist starts the ranks itself",
                hint=f"name the script alone: hpcdist submit {(*scripts, 'train.py')[0]}",
            )
        return find_comparison(name) if self.kind == "job" else None

    @property
    def kind(self) -> NameKind:
        if self.is_module and self.is_program:
            raise click.UsageError("-m and --no-python contradict each other")
        if self.is_module:
            return "module"
        return "program" if self.is_program else "job"

    @property
    def job_flags(self) -> dict[str, Flag]:
        """The keys of the job that options are short for."""
        from hpcdist.job.load import Flag, parse_flag

        flags = {
            _JOB_FLAGS[option]: parse_flag(f"--{option.replace('_', '-')}", text)
            for option, text in self._typed(*_JOB_FLAGS).items()
        }
        if self.requeue is not None:
            name = "--requeue" if self.requeue else "--no-requeue"
            flags["launch.requeue"] = Flag(name=name, value=self.requeue)
        return flags | flags_of(self.time_limit, ())

    def _typed(self, *names: str) -> dict[str, str]:
        texts = {name: getattr(self, name) for name in names}
        return {name: text for name, text in texts.items() if text is not None}

    def load(self, point: Point | None = None, *, nodes: int | None = None) -> LoadedJob:
        """Load the job, at one point of its sweep; on so many `nodes`, if nothing else says how
        many."""
        from hpcdist.job.load import load_job

        if point is not None and point.job is not None:  # its flags are all there is to say
            return load_job(point.job, flags=point.flags, script_args=self.script_args)
        return load_job(
            self.job_name,
            flags=self.job_flags | (point.flags if point else {}),
            overrides=self.overrides,
            script_args=self.script_args,
            kind=self.kind,
            nodes=nodes,
        )

    def points(self) -> list[Point]:
        """Return the points of the sweep, or one, checked against the other options."""
        from hpcdist.submission import points

        if not self.is_sweep:
            return [points.Point()]
        given = flags_of(None, self.overrides) | self.job_flags
        comparison, axes = self.comparison, points.parse_sweeps(self.sweeps)
        if comparison is None:
            return points.make_points(axes, num_repeats=self.repeat or 1)
        if axes:
            raise click.UsageError(
                f"{comparison.name} compares jobs already: submit it without --sweep, or "
                "sweep one of them"
            )
        repeats = self.repeat or comparison.keys.repeat
        return points.variant_points(comparison, given, num_repeats=repeats)

    def choose_cluster(self) -> tuple[str, LoadedProfile]:
        """Return the scheduler, or `auto`, and the profile."""
        from hpcdist.cluster.load import choose_cluster, with_channels
        from hpcdist.job.load import Flag

        scheduler = LOCAL if self.local else self.scheduler
        if self.scheduler not in {None, scheduler}:
            raise click.UsageError(
                f"--local and --scheduler {self.scheduler} contradict each other"
            )
        flags = {
            option: Flag(name=f"--{option}", value=text, text=text)
            for option, text in self._typed(*_PROFILE_FLAGS).items()
        }
        chosen, loaded = choose_cluster(scheduler, self.cluster, flags)
        return chosen, with_channels(loaded, self.notify)

    def cluster_here(self, option: str) -> LoadedProfile:
        """Return the profile for one run in the allocation of --here or --in; UsageError for an
        option that the allocation has decided already, or that is for several runs."""
        from hpcdist.cluster.load import load_profile, with_channels

        names = ("local", *_PROFILE_FLAGS, "repeat", "max_parallel", "after")
        given = [name.replace("_", "-") for name in names if getattr(self, name)]
        if given := ["sweep"] * self.is_sweep + given:
            raise click.UsageError(f"{option} and --{given[0]} contradict each other")
        return with_channels(load_profile(self.cluster), self.notify)


def _flag(name: str, metavar: str, text: str, *names: str, **more: Any) -> _Decorator:
    return click.option(name, *names, metavar=metavar, help=text, **more)


def _switch(name: str, text: str, *names: str) -> _Decorator:
    return click.option(
        name, *names, is_flag=True, default=None if "/" in name else False, help=text
    )


_ONE_OR_MORE = click.IntRange(min=1)
_OPTIONS: dict[str, tuple[_Decorator, ...]] = {
    "What to run": (
        _flag("--set", "KEY=VALUE", "Set any key of the job file.", "overrides", multiple=True),
        _switch("-m", "JOB is a module, as for python -m.", "is_module"),
        _switch("--no-python", "JOB is a program: a name on PATH, or a path.", "is_program"),
        _flag(
            "--sweep",
            "'KEY=V,V ...'",
            "One run for each combination of these values: 'nodes=1,2 train.lr=0.1,0.01'.",
            "sweeps",
            multiple=True,
        ),
        _flag("--repeat", "N", "Run the job, or each point, N times.", type=_ONE_OR_MORE),
        _switch("--same-seed", "Repeats keep train.seed, instead of adding 1 each time."),
        _switch(
            "--snapshot/--no-snapshot",
            "Run from a copy of the git work tree. [default: for scripts on clusters]",
        ),
    ),
    "Size": (
        _flag("--nodes", "N", "Number of nodes."),
        _flag("--gpus", "G", "GPUs per node; without GPUs, ranks per node."),
        _flag("--time", "T", "Time limit: minutes, H:MM:SS or D-HH:MM:SS.", "time_limit"),
        _flag(
            "--max-parallel",
            "K",
            "Run at most K runs of the sweep at a time. [default: 1 on this machine, else all]",
            type=_ONE_OR_MORE,
        ),
    ),
    "Where": (
        _switch("--local", "Run on this machine, and follow it."),
        _flag(
            "--cluster",
            "NAME",
            "Profile from hpcdist.yaml. [default: HPCDIST_CLUSTER, else the file's default]",
        ),
        _flag("--partition", "P", "Partition (Slurm) or queue (LSF, PBS)."),
        _flag("--account", "A", "Account, or project, that is charged."),
        _flag("--qos", "Q", "Quality of service (Slurm)."),
        click.option(
            "--scheduler",
            type=Choice(scheduler_choices()),
            help="[default: as the profile says, else what this machine has]",
        ),
        host_option,
        runs_option,
    ),
    "Begin and end": (
        _flag(
            "--after",
            "[KIND:]RUN",
            "Start only after RUN, or a sweep, has ended: ok (with success, the default) or any.",
            multiple=True,
        ),
        _flag("--max-restarts", "R", "Restarts after a failure."),
        _switch(
            "--requeue/--no-requeue",
            "Continue in a new job after the time limit, a preemption or the loss of a node; "
            "with --no-requeue, end with exit code 75. [default: --requeue]",
        ),
        _flag(
            "--notify",
            "CHANNEL",
            "Tell of the end by mail:ADDRESS, or of the end and a hang by command:PROGRAM or "
            "apprise:env:VARIABLE; none: nobody.",
            multiple=True,
        ),
    ),
}
"""Group in the help -> its options, the common ones first."""
JOB_OPTIONS = tuple(chain.from_iterable(_OPTIONS.values()))
PLACE_OPTIONS = (_OPTIONS["What to run"][0], *_OPTIONS["Size"][:3], *_OPTIONS["Where"])
"""Options of a verb that submits a job once: a key of it, its size and its place."""
DEV_OPTIONS = (*PLACE_OPTIONS, _OPTIONS["Begin and end"][3])
"""Options of a verb that holds nodes: their number and place, and who is told of the end."""
RESUME_OPTIONS = (PLACE_OPTIONS[0], _OPTIONS["Size"][2])
"""--set and --time."""
ONE_RUN_OPTIONS = tuple(
    option
    for option in (*_OPTIONS["What to run"][:3], *PLACE_OPTIONS[1:])
    if option is not host_option
)
"""Options of a verb that runs any one job, here or on a cluster."""


def write_in_groups(
    ctx: click.Context, command: click.Command, formatter: click.HelpFormatter
) -> None:
    """Write the options of a verb in the groups of `_OPTIONS`."""
    params = (param for param in command.get_params(ctx) if isinstance(param, click.Option))
    records = {param.name: record for param in params if (record := param.get_help_record(ctx))}
    for group, options in _OPTIONS.items():
        of_group = reversed(vars(with_options(*options)(lambda: None))["__click_params__"])
        with formatter.section(group):
            names = [param.name for param in of_group if param.name in records]
            formatter.write_dl([records.pop(name) for name in names])
    with formatter.section("Other options"):
        formatter.write_dl(list(records.values()))


def job_options(
    *options: _Decorator, metavar: str = "JOB", job_name: str | None = None
) -> _Decorator:
    """Give a verb a job and these options; it gets them together, as its argument `options`.
    `job_name` is a job that the user does not choose."""
    names = JobOptions.__struct_fields__
    fixed: dict[str, Any] = {"job_name": job_name}
    if job_name is None:
        fixed = {}
        rest = click.argument(
            "script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED
        )
        options = (click.argument("job_name", metavar=metavar), rest, *options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def taking_options(**values: Any) -> Any:
            given = {name: values.pop(name) for name in names if name in values}
            return function(options=JobOptions(**fixed, **given), **values)

        return with_options(*options)(taking_options)

    return decorate


def flags_of(time_limit: str | None, overrides: Sequence[str]) -> dict[str, Flag]:
    """Return the keys that --time and --set give."""
    from hpcdist.job.check import parse_minutes
    from hpcdist.job.load import Flag, parse_override

    flags = dict(map(parse_override, overrides))
    if time_limit is None:
        return flags
    if match := re.fullmatch(r"\s*(\d+):(\d+)\s*", time_limit):  # bsub's hours are sbatch's minutes
        raise click.UsageError(
            f"--time {time_limit} may mean hours and minutes, or minutes and seconds: "
            f"write {match[1]}:{match[2]}:00, or 0:{match[1]}:{match[2]}"
        )
    minutes = parse_minutes(time_limit, origin="--time")
    return flags | {"resources.time_limit_min": Flag(name="--time", value=minutes)}


def named_runs(runs: Path, names: Sequence[str]) -> list[Run]:
    """Return the runs of these names, each once; the name of a sweep stands for all of its runs.
    Without names, return all runs."""
    from hpcdist.runs.run import find_runs

    if not names:
        return all_runs(runs)
    return list({run.path: run for name in names for run in find_runs(runs, name)}.values())
