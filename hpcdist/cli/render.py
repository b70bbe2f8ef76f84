"""`hpcdist render`: what would be executed, without executing it."""

from __future__ import annotations

import sys

import click

from hpcdist.cli.options import (
    JobOptions,
    cluster_from_options,
    job_options,
    load_from_options,
    snapshot_from_options,
)
from hpcdist.cli.printing import note


@click.command
@job_options
def render(*, options: JobOptions) -> None:
    """Print the script that `hpcdist submit` with these options would give to the scheduler.

    The script is all that is printed on stdout; RUN stands in it for the id that the run would get.
    Nothing is executed or written.

    \b
    hpcdist render ddp --nodes 2 --gpus 2 --local
    """
    from hpcdist.submission import placeholder_run, plan_submission

    loaded = load_from_options(options)
    scheduler, cluster = cluster_from_options(options)
    planned = plan_submission(
        loaded, scheduler=scheduler, cluster=cluster, snapshot=snapshot_from_options(options)
    )
    for text in planned.notes:
        note(text)
    sys.stdout.flush()
    script = planned.script(planned.target(placeholder_run(options.runs)))
    sys.stdout.buffer.write(script.encode(errors="surrogateescape"))
