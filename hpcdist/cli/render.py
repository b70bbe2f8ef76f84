"""`hpcdist render`: what would be executed, without executing it."""

from __future__ import annotations

import sys

import click

from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import JOB_OPTIONS, JobOptions, job_options, json_option
from hpcdist.cli.printing import print_json
from hpcdist.cli.submit import plan, settle_afters


@click.command(cls=JobCommand)
@job_options(*JOB_OPTIONS)
@json_option
def render(*, options: JobOptions, as_json: bool) -> None:
    """Print the script that `hpcdist submit` with these options would give to the scheduler.

    Only the script is printed on stdout, byte for byte as it would be submitted. In it, RUN stands
    for the id that the run would get. Nothing is executed or written. If there are several scripts,
    as for a sweep, each follows a line with its number, and JOBID-of-NAME stands for the id of the
    job of that name. `hpcdist explain` with the same options says what each option does.

    \b
    hpcdist render ddp --nodes 2 --gpus 2 --local
    """
    from hpcdist.submission.plan import planned_scripts

    planned = plan(options)
    # Without a queue the command itself would wait.
    dependencies = settle_afters(options, planned) if planned.scheduler.has_queue else []
    jobs = planned_scripts(planned, options.runs, dependencies)
    scripts = [script for script, _ in jobs]
    if as_json:
        print_json([{"script": script} for script in scripts])
        return
    sys.stdout.flush()
    for number, script in enumerate(scripts, start=1):
        if len(scripts) > 1:
            sys.stdout.buffer.write(f"# ---- script {number} of {len(scripts)} ----\n".encode())
        sys.stdout.buffer.write(script.encode(errors="surrogateescape"))
