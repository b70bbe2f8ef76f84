"""`hpcdist doctor`: what of a cluster works, and what to do about what does not."""

from __future__ import annotations

import sys

import click
from msgspec.structs import replace

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED
from hpcdist.base.files import shipped_folder
from hpcdist.cli.follow import Interrupts
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import PLACE_OPTIONS, JobOptions, job_options, json_option
from hpcdist.cli.printing import note, print_fact, print_json
from hpcdist.cluster.channels import NONE


@click.command(cls=HostCommand)
@job_options(*PLACE_OPTIONS, job_name=str(shipped_folder("jobs") / "check.yaml"))
@click.option("--no-job", is_flag=True, help="Submit nothing: check what can be seen from here.")
@click.option(
    "--timeout",
    "timeout_min",
    metavar="MIN",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Minutes that the job may take, including its wait in the queue.",
)
@json_option
def doctor(*, options: JobOptions, no_job: bool, timeout_min: float, as_json: bool) -> int:
    """Check a cluster step by step, and say how to fix what fails.

    The command submits a job of a few seconds, on 2 nodes unless --nodes says otherwise, and waits
    for it. The run is removed if all is well. The exit code is 0 if nothing fails, else 1.

    \b
    hpcdist doctor                    the cluster, as the default profile says
    hpcdist doctor --cluster NAME     the same for another profile
    hpcdist doctor --local            this machine as a cluster
    """
    from hpcdist.doctor.examine import examine
    from hpcdist.doctor.trial import Request
    from hpcdist.schedulers import detect_scheduler
    from hpcdist.schedulers.base import Finding

    loaded = options.load(nodes=2)
    # Who checks waits for it, and need not be told.
    scheduler, cluster = replace(options, notify=(NONE,)).choose_cluster()
    interrupts = Interrupts()
    request = Request(
        loaded=loaded,
        scheduler=detect_scheduler() if scheduler == "auto" else scheduler,
        cluster=cluster,
        runs=options.runs,
        with_job=not no_job,
        timeout_s=timeout_min * 60,
        say=note,
        check=interrupts.check,
    )
    findings: list[Finding] = []
    with interrupts.handled():
        interrupts.defer()  # a signal must not come between submitting the job and knowing it
        for finding in examine(request):
            interrupts.check()
            findings.append(finding)
            if not as_json:
                before = f"{finding.state}  {finding.name:<13}  "
                print_fact(before, finding.detail)
                if finding.advice:
                    print_fact(" " * len(before) + "-> ", finding.advice)
                sys.stdout.flush()
    if as_json:
        print_json(findings)
    return EXIT_FAILED if any(finding.state == "FAIL" for finding in findings) else EXIT_DONE
