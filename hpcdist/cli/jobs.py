"""`hpcdist jobs`: what can be submitted by name."""

from __future__ import annotations

import click

from hpcdist.cli.options import json_option
from hpcdist.cli.printing import print_columns, print_json


@click.command
@json_option
def jobs(*, as_json: bool) -> None:
    """List the jobs that can be submitted by name.

    They are the files ./jobs/NAME.yaml and the jobs that come with hpcdist. A path to a job file or
    to a Python script can be submitted too, and a module by its name.
    """
    from hpcdist.job.comparison import list_jobs

    listed = list_jobs()
    if as_json:
        print_json(listed)
        return
    rows = [
        (job.name, job.workload or "-", f"broken: {job.error}" if job.error else job.description)
        for job in listed
    ]
    print_columns(("JOB", "WORKLOAD", "DESCRIPTION"), rows)
