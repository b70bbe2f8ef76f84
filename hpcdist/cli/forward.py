"""`hpcdist forward`: a port of a rank's node, such as TensorBoard's, on this machine."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hpcdist.base.errors import SchedulerError
from hpcdist.cli.options import run_argument, runs_option
from hpcdist.cli.printing import say
from hpcdist.runs.remote import read_remote
from hpcdist.runs.run import check_own, find_run

if TYPE_CHECKING:
    from hpcdist.runs.run import Run

_PORT = click.IntRange(1, 65535)


@click.command()
@run_argument
@click.argument("node_port", metavar="PORT", type=_PORT)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port here. [default: the same; 0: any free one]"
)
@click.option(
    "--rank", metavar="R", type=click.IntRange(min=0), default=0, help="Rank on the node."
)
@click.option("--stdio", is_flag=True, hidden=True, help="Be the end at the node.")
@runs_option
def forward(
    *, run_name: str, node_port: int, port: int | None, rank: int, stdio: bool, runs: Path
) -> NoReturn:
    """Have what listens on PORT of a rank's node at 127.0.0.1 of this machine, until Ctrl-C.

    \b
    hpcdist forward last 6006   TensorBoard on the node of the last run's rank 0
    hpcdist forward dev 8888    Jupyter in the nodes that hpcdist dev holds

    It listens on 127.0.0.1 alone. On a login node that is open to all who are logged in there: what
    it leads to should ask for a password or a token. Connections go through the scheduler's command
    that enters a job (srun), or by ssh where it has none; of a run at a host through ssh to that.
    """
    from hpcdist.remote.relay import LOCALHOST, listen

    run, wanted = find_run(runs, run_name), node_port if port is None else port
    check_own(run.path, "forward")

    def ready(number: int) -> None:
        say(f"http://{LOCALHOST}:{number} leads to port {node_port} of rank {rank}'s node; Ctrl-C")

    if (remote := read_remote(run)) is not None:
        from hpcdist.remote.command import Verb
        from hpcdist.remote.ssh import Connection, Where

        words = ["forward", run.id, str(node_port), "--rank", str(rank), "--stdio"]
        verb = Verb(where=Where.of(run, remote), argv=words)
        with Connection(verb.where.host) as connection:
            listen(connection.command(verb.script(connection)), wanted, ready)
    argv = way_to(run, rank, node_port)
    if stdio:
        os.execvp(argv[0], argv)  # noqa: S606 - it takes this one's place
    listen(argv, wanted, ready)


def way_to(run: Run, rank: int, port: int) -> list[str]:
    """Return the command whose standard input and output lead to a port of a rank's node."""
    from hpcdist.machine.command import python_command
    from hpcdist.monitor.living import find_living_rank
    from hpcdist.schedulers import load_scheduler

    start = find_living_rank(run, rank)
    command = python_command("from hpcdist.remote.relay import answer; answer()", str(port))
    try:
        scheduler = load_scheduler(run.read_scheduler() or "")
        return scheduler.enter(run, start.host, command, is_terminal=False)
    except SchedulerError:  # it has no such command
        return ["ssh", "-T", "--", start.host, shlex.join(command)]
