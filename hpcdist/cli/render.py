"""`hpcdist render`: what would be executed, without executing it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.text import one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import JobOptions, job_options
from hpcdist.cli.printing import say
from hpcdist.cli.submit import plan, settle_afters

if TYPE_CHECKING:
    from hpcdist.submission.plan import PlannedSubmission


@click.command(cls=HostCommand)
@job_options
@click.option(
    "--explain", is_flag=True, help="Say on stderr how the numbers in the script come about."
)
def render(*, options: JobOptions, explain: bool) -> None:
    """Print the script that `hpcdist submit` with these options would give to the scheduler.

    The script is all that is printed on stdout; RUN stands in it for the id that the run would get,
    and SEAL-OF-THIS-JOB for the digest by which the job knows what was submitted.
    Nothing is executed or written. Of several, as for a sweep, each follows a line that counts
    them; JOBID-of-NAME stands for the id of the job of that name.

    \b
    hpcdist render ddp --nodes 2 --gpus 2 --local
    """
    from hpcdist.submission.layout import planned_scripts

    planned = plan(options)
    if explain:
        _explain(planned, options.runs)
    # Without a queue the command itself would wait.
    dependencies = settle_afters(options, planned) if planned.has_queue else []
    scripts = planned_scripts(
        planned, options.runs, dependencies, summary_after=options.summary_after
    )
    sys.stdout.flush()
    for number, script in enumerate(scripts, start=1):
        if len(scripts) > 1:
            sys.stdout.buffer.write(f"# ---- script {number} of {len(scripts)} ----\n".encode())
        sys.stdout.buffer.write(script.encode(errors="surrogateescape"))


def _explain(planned: PlannedSubmission, runs: Path) -> None:
    """Explain the numbers, once for runs that ask for the same."""
    from hpcdist.submission.plan import shape_of

    points: dict[str, list[int]] = {}
    for index, run in enumerate(planned.runs):
        job = run.loaded.job
        points.setdefault(f"{shape_of(job)} {job.container}", []).append(index)
    for same in points.values():
        if len(points) > 1:
            labels = ", ".join(dict.fromkeys(planned.points[index].label for index in same))
            say(one_line(f"{len(same)} of {len(planned.runs)} runs: {labels}"))
        for line in planned.runs[same[0]].explain(runs):
            say(one_line(line))
