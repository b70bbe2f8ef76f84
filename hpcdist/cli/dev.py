"""`hpcdist dev`: hold nodes, and run one job after the other in them without a queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress

import click
from msgspec.structs import replace

from hpcdist.base import files
from hpcdist.base.errors import EXIT_DONE, UserError
from hpcdist.base.progress import poll
from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import number_of
from hpcdist.base.version import is_served
from hpcdist.cli.follow import Interrupts, describe_end, follow_run
from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import DEV_OPTIONS, JobOptions, job_options, json_option
from hpcdist.cli.printing import note, print_json, say
from hpcdist.cli.submit import plan
from hpcdist.runs.run import HOLDER, Run

_KEYS = (
    *("name=dev", "launch.requeue=false", "launch.max_restarts=0"),
    *("launch.hang_notice_s=0", "record.enabled=false"),
)
"""Keys of the job that holds the nodes."""
_JUPYTER_LIMIT_S = 60.0


class _IsReady(Exception):  # noqa: N818 - it is none
    """A dev run takes runs: it is not followed any more."""


@click.command(cls=JobCommand)
@job_options(*DEV_OPTIONS, job_name="dev")
@click.option(
    "--idle",
    metavar="T",
    default="30",
    show_default=True,
    help="End after so long without a run or a shell: minutes, or H:MM; 0: never.",
)
@click.option("--jupyter", is_flag=True, help="Start jupyter-lab in it, and have its page here.")
@json_option
def dev(*, options: JobOptions, idle: str, jupyter: bool, as_json: bool) -> int:
    """Hold nodes, in which one run after the other starts at once.

    \b
    hpcdist dev --gpus 1 --time 2:00:00  waits for a node, and says what to do
    hpcdist submit train.py --in dev     runs in it at once, files as they are
    hpcdist attach dev                   a shell in it
    hpcdist forward dev 6006             a port of its first node, here
    hpcdist cancel dev                   ends it, and what runs in it

    torch is imported there already. Runs in it have records, a verdict and a summary as all runs
    have. It goes on without this command, until --idle, its time limit, or cancel.
    """
    from hpcdist.job.check import parse_minutes
    from hpcdist.machine.command import python_command
    from hpcdist.submission.submit import submit as hand_over

    text = f"{idle}:00" if re.fullmatch(r"\d+:\d\d", idle) else idle
    idle_min = parse_minutes(text, origin="--idle")
    python = options.choose_cluster()[1].profile.python or sys.executable
    arguments = python_command(f"{HOLDER}; main()", str(60 * idle_min))[1:]
    holding = replace(
        options,
        job_name=python,
        is_program=True,
        script_args=tuple(arguments),
        overrides=(*options.overrides, *_KEYS),
        snapshot=False,
    )
    planned = plan(holding)
    place = planned.scheduler
    if not place.shares_files:
        raise UserError(
            f"jobs of {place.title} find none of your files, and take no runs in them",
            hint="submit the job itself",
        )
    if jupyter and (is_served() or not place.can_enter):
        raise UserError(
            f"--jupyter: no command here enters a job of {place.title}, or this is the login node",
            hint="leave it out; start jupyter-lab on the node, and use hpcdist forward dev PORT",
        )
    interrupts = Interrupts()
    with interrupts.handled(), suppress(_IsReady):
        interrupts.defer()
        submission = hand_over(planned, runs=options.runs)
        note(*submission.messages)
        (run,) = submission.runs
        if not as_json:
            print(run.id, flush=True)

        def check() -> None:
            interrupts.check()
            if files.is_there(run.orders_folder):
                raise _IsReady

        return follow_run(run, interrupts, as_json=as_json, owned=False, check=check)
    if as_json:
        print_json(describe_end(run))
    else:
        nodes = f"{number_of(run.spec.outline.resources.nodes, 'node')} of {place.title}"
        after = f"; it ends after {idle_min:g} minutes without a run or a shell" if idle_min else ""
        say(f"{run.id} holds {nodes}{after}")
        for command in ("submit train.py --in dev", "attach dev", "cancel dev"):
            say(f"  hpcdist {command}")
    if jupyter:
        with Interrupts().handled():
            _show_jupyter(run)
    return EXIT_DONE


def _show_jupyter(run: Run) -> None:
    """Start jupyter-lab beside the rank that serves, and have its page here until Ctrl-C. Port and
    token, which it chooses itself, stand in a file that only the user can read."""
    from hpcdist.cli.attach import beside
    from hpcdist.cli.forward import way_to
    from hpcdist.remote.relay import LOCALHOST, listen

    folder = run.launch_folder / f"jupyter-{time.time_ns()}"
    folder.mkdir(mode=files.PRIVATE_FOLDER)
    options = ["--no-browser", f"--ServerApp.ip={LOCALHOST}", "--ServerApp.port=0"]
    options += ["--allow-root"] if os.geteuid() == 0 else []
    command = ["env", f"JUPYTER_RUNTIME_DIR={folder}", "jupyter-lab", *options]
    argv, quiet = beside(run, 0, command)[0], subprocess.DEVNULL
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, stdin=quiet, stdout=log, stderr=log)
    try:
        found = poll(
            lambda: next(map(files.read_json, folder.glob("jpserver-*.json")), process.poll()),
            interval_s=0.2,
            limit_s=_JUPYTER_LIMIT_S,
        )
        if not isinstance(found, dict):
            said = "".join(last_lines(folder / "log", 1)) or "it says nothing"
            raise UserError(
                f"jupyter-lab did not start: {said}",
                hint="install it in the environment of the job: pip install jupyterlab",
            )
        way, page = way_to(run, 0, found["port"]), f"lab?token={found['token']}"
        say("Ctrl-C ends jupyter-lab, and not the dev run; its page is at")
        listen(way, 0, lambda url: say(f"{url}/{page}"), lambda: process.poll() is not None)
        say("jupyter-lab has ended")
    finally:
        process.terminate()
