"""`hpcdist drill`: disturb a job for two minutes before it runs for a day."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from hpcdist.base.text import number_of, one_line
from hpcdist.cli.follow import Interrupted, Interrupts
from hpcdist.cli.options import ONE_RUN_OPTIONS, Choice, JobOptions, job_options, json_option
from hpcdist.cli.printing import print_columns, print_json, print_wrapped, say
from hpcdist.cluster.channels import NONE
from hpcdist.drill.drill import NAMES, Cost, Request, conduct

if TYPE_CHECKING:
    from hpcdist.submission.plan import PlannedRun

_FOLDER = ".drills"
"""In the folder of the runs: hidden, so that nothing takes a drill's runs for real ones."""


@click.command()
@job_options(*ONE_RUN_OPTIONS)
@click.option(
    "--only", "names", type=Choice(NAMES), multiple=True, help="Try this; may be repeated."
)
@click.option(
    "--for",
    "budget_s",
    metavar="SECONDS",
    type=click.FloatRange(min=30),
    default=120,
    show_default=True,
    help="About how long the drill takes, without the time in queues.",
)
@json_option
def drill(*, options: JobOptions, names: tuple[str, ...], budget_s: float, as_json: bool) -> int:
    """Run a job for two minutes while things go wrong, and say what it would have lost.

    \b
    hpcdist drill train.py --nodes 2 --gpus 2 --local -- --lr 0.1
    hpcdist drill ddp --nodes 2 --gpus 2                            on the cluster
    hpcdist drill train.py --gpus 2 --local --only time-limit

    kill-rank, time-limit, kill-agent, full-disk and damage (of the newest checkpoint) happen one
    after the other. A script runs in a copy of the working directory. Ends with 1 if the job would
    have lost work; the runs of the drill are then kept.
    """
    from hpcdist.job.spec import OwnCodeJob
    from hpcdist.runs.run import make_runs_folder, make_unique_folder, slug
    from hpcdist.schedulers import host_of
    from hpcdist.submission.plan import plan_run

    loaded = options.load()
    scheduler, profile = replace(options, notify=(NONE,)).choose_cluster()
    if (host := host_of(profile.profile)) is not None:
        raise UserError(
            f"the profile {profile.name} submits at {host}, and a drill watches its runs here",
            hint=f"run hpcdist drill at {host}, or here with --local",
        )
    make_runs_folder(options.runs)
    folder = make_unique_folder(options.runs / _FOLDER, slug(loaded.job.name))
    here, is_own_code = os.getcwd(), isinstance(loaded.job, OwnCodeJob)

    def plan(keys: Sequence[str]) -> PlannedRun:
        # What the drill runs in is a copy already.
        return plan_run(
            _changed(options, keys, here=here).load(),
            scheduler=scheduler,
            cluster=profile,
            snapshot=False if is_own_code else None,
            runs=options.runs,
        )

    interrupts = Interrupts()
    request = Request(
        job=loaded.job,
        plan=plan,
        names=[name for name in NAMES if name in names or not names],
        budget_s=budget_s,
        folder=folder,
        say=say,
        check=interrupts.check,
    )
    costs: list[Cost] = []
    try:
        with interrupts.handled():
            interrupts.defer()
            costs = conduct(request)
    except Interrupted:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        is_well = costs and not any(cost.advice for cost in costs)
        if is_well:
            shutil.rmtree(folder, ignore_errors=True)
        for each in (folder, folder.parent):
            with suppress(OSError):  # it is gone, or not empty
                each.rmdir()
    code = EXIT_FAILED if any(cost.is_work_lost for cost in costs) else EXIT_DONE
    if as_json:
        print_json({"exit_code": code, "disturbances": costs})
    else:
        _print(costs)
    if not is_well:
        say(f"its runs are in {folder}")
    return code


def _changed(options: JobOptions, keys: Sequence[str], *, here: str) -> JobOptions:
    """Return the options of a drill's run: with other keys, and its program in the copy of the
    working directory, in which this process is by now."""
    name = options.job_name
    if os.path.normpath(name).startswith(os.pardir + os.sep):
        name = os.path.normpath(os.path.join(here, name))
    if os.path.isabs(name) and Path(name).is_relative_to(here):
        name = os.path.relpath(name, here)
        name = name if os.sep in name else f".{os.sep}{name}"
    overrides = (*options.overrides, *keys)
    return replace(options, job_name=name, time_limit=None, overrides=overrides)


def _print(costs: Sequence[Cost]) -> None:
    rows = []
    for cost in costs:
        lost = "-" if cost.lost_steps is None else number_of(cost.lost_steps, "step")
        down = "-" if cost.down_s is None else f"{cost.down_s:.1f} s"
        rows.append((cost.name, cost.verdict or "-", cost.went_on, lost, down))
    print_columns(("DISTURBANCE", "VERDICT", "WENT ON FROM", "LOST", "DOWN"), rows)
    for cost in costs:
        if cost.advice:
            lost = "WORK LOST: " if cost.is_work_lost else ""
            print_wrapped(f"{lost}{one_line(cost.advice)}", first=f"\n{cost.name}: ", indent=2)
