"""`hpcdist render`: what would be executed, without executing it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hpcdist.base.text import one_line
from hpcdist.cli.after import dependencies_now, summary_scripts
from hpcdist.cli.options import (
    JobOptions,
    cluster_from_options,
    job_options,
    load_from_options,
    snapshot_from_options,
)
from hpcdist.cli.printing import note, say

if TYPE_CHECKING:
    from hpcdist.submission.single import PlannedSubmission
    from hpcdist.submission.sweeps.plan import PlannedSweep


@click.command
@job_options
@click.option(
    "--explain", is_flag=True, help="Say on stderr how the numbers in the script come about."
)
def render(*, options: JobOptions, explain: bool) -> None:
    """Print the script that `hpcdist submit` with these options would give to the scheduler.

    The script is all that is printed on stdout; RUN stands in it for the id that the run would get.
    Nothing is executed or written. Of several, as for a sweep, each follows a line that counts
    them; JOBID-of-NAME stands for the id of the job of that name.

    \b
    hpcdist render ddp --nodes 2 --gpus 2 --local
    """
    of = _of_sweep if options.is_sweep else _of_run
    scripts = of(options, explain=explain)
    sys.stdout.flush()
    for number, script in enumerate(scripts, start=1):
        if len(scripts) > 1:
            sys.stdout.buffer.write(f"# ---- script {number} of {len(scripts)} ----\n".encode())
        sys.stdout.buffer.write(script.encode(errors="surrogateescape"))


def _of_run(options: JobOptions, *, explain: bool) -> list[str]:
    from hpcdist.submission.single import placeholder_run, plan_submission

    loaded = load_from_options(options)
    scheduler, cluster = cluster_from_options(options)
    planned = plan_submission(
        loaded, scheduler=scheduler, cluster=cluster, snapshot=snapshot_from_options(options)
    )
    for text in planned.notes:
        note(text)
    if explain:
        _explain(planned)
    run = placeholder_run(options.runs)
    dependencies = dependencies_now(options, planned.scheduler)
    script = planned.script(planned.target(run, dependencies))
    return [script, *summary_scripts(options, planned, run)]


def _of_sweep(options: JobOptions, *, explain: bool) -> list[str]:
    from hpcdist.cli.sweeping import plan
    from hpcdist.runs.sweep import Sweep
    from hpcdist.submission.single import placeholder_run
    from hpcdist.submission.sweeps.submit import planned_scripts

    planned = plan(options)
    if explain:
        _explain_sweep(planned)
    sweep = Sweep(placeholder_run(options.runs).path)
    scheduler = planned.scheduler
    if scheduler.has_queue:
        return planned_scripts(
            planned,
            scheduler,
            sweep,
            dependencies=dependencies_now(options, scheduler),
            summary_after=options.summary_after,
        )
    runs = [sweep.run(point.index, len(planned.points)) for point in planned.points]
    return [one.script(one.target(run)) for one, run in zip(planned.runs, runs, strict=True)]


def _explain(planned: PlannedSubmission) -> None:
    for line in planned.scheduler.explain(planned.loaded.job, planned.plan):
        say(one_line(line))


def _explain_sweep(planned: PlannedSweep) -> None:
    """Once for runs that ask for the same."""
    from hpcdist.submission.single import shape_of

    points: dict[str, list[int]] = {}
    for index, run in enumerate(planned.runs):
        points.setdefault(shape_of(run.loaded.job), []).append(index)
    for same in points.values():
        if len(points) > 1:
            labels = ", ".join(dict.fromkeys(planned.points[index].label for index in same))
            say(one_line(f"{len(same)} of {len(planned.runs)} runs: {labels}"))
        _explain(planned.runs[same[0]])
