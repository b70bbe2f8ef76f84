"""`hpcdist dev`: hold nodes, and run one job after the other in them without a queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, UserError
from hpcdist.base.progress import poll
from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import number_of
from hpcdist.base.version import is_served
from hpcdist.cli.follow import Interrupted, Interrupts
from hpcdist.cli.host import JobCommand
from hpcdist.cli.options import DEV_OPTIONS, JobOptions, job_options, json_option
from hpcdist.cli.printing import note, print_json, say
from hpcdist.cli.submit import plan
from hpcdist.runs.run import HOLDER, Run, name_to_type

if TYPE_CHECKING:
    from hpcdist.runs.verdict import Verdict
    from hpcdist.schedulers.dev import DevState

_KEYS = ("name=dev", "launch.requeue=false", "launch.hang_notice_s=0", "record.enabled=false")
"""Keys of the job that holds the nodes."""
_POLL_S = 0.1
_JUPYTER_LIMIT_S = 60.0
_START = f"{HOLDER}; main()"


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
    from hpcdist.machine.command import python_command
    from hpcdist.submission.submit import submit as hand_over

    if jupyter and is_served():
        raise UserError(
            "--jupyter has its page where it is typed, and this is the login node",
            hint="leave it out; start jupyter-lab by hpcdist attach dev there, and have its page "
            "here by hpcdist forward dev PORT",
        )
    _, profile = options.choose_cluster()
    python = profile.profile.python or sys.executable
    arguments = python_command(_START, str(60 * _minutes(idle)))[1:]
    planned = plan(
        msgspec.structs.replace(
            options,
            job_name=python,
            is_program=True,
            script_args=tuple(arguments),
            overrides=(*options.overrides, *_KEYS),
            snapshot=False,
        )
    )
    if not planned.scheduler.shares_files:
        raise UserError(
            f"jobs of {planned.scheduler.title} find none of your files, and take no runs in them",
            hint="submit the job itself",
        )
    if jupyter and not planned.scheduler.can_enter:
        raise UserError(
            f"--jupyter: {planned.scheduler.title} has no command that enters a running job",
            hint="leave it out; start jupyter-lab by ssh on the node, where the site allows it",
        )
    interrupts = Interrupts()
    with interrupts.handled():
        interrupts.defer()
        submission = hand_over(planned, runs=options.runs)
        note(*submission.messages)
        (run,) = submission.runs
        if not as_json:
            print(run.id, flush=True)
        try:
            found = _wait(run, interrupts)
        except Interrupted:
            say(f"{run.id} continues; end it with: hpcdist cancel {name_to_type(run.path)}")
            return EXIT_INTERRUPTED
        code = _report(run, found, as_json=as_json)
    if jupyter and code == EXIT_DONE:
        _show_jupyter(run)
    return code


def _minutes(text: str) -> float:
    from hpcdist.job.check import parse_minutes

    if re.fullmatch(r"0|0:00", text):
        return 0.0
    return parse_minutes(f"{text}:00" if re.fullmatch(r"\d+:\d\d", text) else text, origin="--idle")


def _wait(run: Run, interrupts: Interrupts) -> Verdict | DevState:
    """Wait until a dev run takes runs, or has ended; say meanwhile why it waits."""
    from hpcdist.monitor.follow import News
    from hpcdist.monitor.states import EndWatch
    from hpcdist.schedulers.dev import state_of

    end, news = EndWatch([run]), News(run)

    def look() -> Verdict | DevState | None:
        interrupts.check()
        ended = end.look()
        for sentence in news.new(end.conditions[run.id]):
            say(sentence)
        if ended:
            return ended[run.id]
        return state_of(run)

    while (found := look()) is None:
        time.sleep(_POLL_S)
    return found


def _report(run: Run, found: Verdict | DevState, *, as_json: bool) -> int:
    from hpcdist.monitor.follow import end_sentence
    from hpcdist.runs.verdict import Verdict
    from hpcdist.schedulers import load_scheduler

    is_ready = not isinstance(found, Verdict)
    if as_json:
        values = {
            "run": run.id,
            "path": run.path,
            "job_id": run.read_job_id(),
            "is_ready": is_ready,
        }
        print_json(values | msgspec.to_builtins(found))
    elif isinstance(found, Verdict):
        say(end_sentence(run, found))
    else:
        resources, where = run.spec.outline.resources, load_scheduler(str(run.read_scheduler()))
        nodes = f"{number_of(resources.nodes, 'node')} of {where.title}"
        until = time.strftime(" until %H:%M", time.localtime(found.ends_s)) if found.ends_s else ""
        after = f"; it ends after {found.idle_s / 60:g} minutes without a run or a shell"
        say(f"{run.id} holds {nodes}{until}{after if found.idle_s else ''}")
        for command in ("submit train.py --in dev", "attach dev", "cancel dev"):
            say(f"  hpcdist {command}")
    return EXIT_DONE if is_ready else EXIT_FAILED


def _show_jupyter(run: Run) -> NoReturn:
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
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            beside(run, 0, command)[0], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        found = poll(
            lambda: next(map(files.read_json, folder.glob("jpserver-*.json")), process.poll()),
            interval_s=0.2,
            limit_s=_JUPYTER_LIMIT_S,
        )
        if not isinstance(found, dict):
            said = last_lines(folder / "log", 1)
            raise UserError(
                f"jupyter-lab did not start: {''.join(said) or 'it says nothing'}",
                hint="install it in the environment of the job: pip install jupyterlab",
            )

        def ready(port: int) -> None:
            say(f"http://{LOCALHOST}:{port}/lab?token={found['token']}")
            say("  Ctrl-C ends jupyter-lab, and not the dev run")

        listen(way_to(run, 0, found["port"]), 0, ready)
    finally:
        process.terminate()
