"""`hpcdist render`: what would be executed, without executing it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hpcdist.cli.options import choose_scheduler, job_options, load_from_options
from hpcdist.cli.printing import note


@click.command
@job_options
def render(
    *,
    job_name: str,
    script_args: tuple[str, ...],
    nodes: str | None,
    gpus: str | None,
    local: bool,
    scheduler: str | None,
    overrides: tuple[str, ...],
    max_restarts: str | None,
    no_requeue: str | None,
    runs: Path,
) -> None:
    """Print the script that `hpcdist submit` with these options would give to the scheduler.

    The script is all that is printed on stdout; RUN stands in it for the id that the run would get.
    Nothing is executed or written.

    \b
    hpcdist render ddp --nodes 2 --gpus 2 --local
    """
    from hpcdist.submission import placeholder_run, plan_submission

    loaded = load_from_options(
        job_name,
        overrides,
        script_args,
        nodes=nodes,
        gpus=gpus,
        max_restarts=max_restarts,
        no_requeue=no_requeue,
    )
    planned = plan_submission(loaded, scheduler=choose_scheduler(scheduler, local=local))
    for text in planned.plan.notes:
        note(text)
    sys.stdout.flush()
    sys.stdout.buffer.write(planned.script(placeholder_run(runs)).encode(errors="surrogateescape"))
