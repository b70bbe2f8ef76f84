"""`hpcdist forward`: a port of a rank's node, such as TensorBoard's, on this machine."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from pathlib import Path

import click

from hpcdist.base.errors import EXIT_DONE, SchedulerError
from hpcdist.cli.options import rank_option, run_argument, runs_option
from hpcdist.cli.printing import say
from hpcdist.runs.remote import read_remote
from hpcdist.runs.run import Run, check_own, find_run


@click.command()
@run_argument
@click.argument("node_port", metavar="PORT", type=click.IntRange(1, 65535))
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port here. [default: the same; 0: any free one]"
)
@rank_option
@click.option("--stdio", is_flag=True, hidden=True, help="Be the end at the node.")
@runs_option
def forward(
    *, run_name: str, node_port: int, port: int | None, rank: int, stdio: bool, runs: Path
) -> int:
    """Have what listens on PORT of a rank's node at 127.0.0.1 of this machine, until Ctrl-C.

    \b
    hpcdist forward last 6006   TensorBoard on the node of the last run's rank 0
    hpcdist forward dev 8888    Jupyter in the nodes that hpcdist dev holds

    It listens on 127.0.0.1 alone. On a login node that is open to all who are logged in there: what
    it leads to should ask for a password or a token. Connections go through the scheduler's command
    that enters a job (srun), or by ssh where it has none; of a run at a host through ssh to that.
    """
    from hpcdist.remote.command import Verb
    from hpcdist.remote.relay import listen
    from hpcdist.remote.ssh import Connection, Where

    run = find_run(runs, run_name)
    check_own(run.path, "forward")
    with ExitStack() as stack:
        if (remote := read_remote(run)) is not None:
            words = ["forward", run.id, str(node_port), "--rank", str(rank), "--stdio"]
            verb = Verb(where=Where.of(run, remote), argv=words)
            connection = stack.enter_context(Connection(verb.where.host))
            argv = connection.command(verb.script(connection))
        else:
            argv = way_to(run, rank, node_port)
        if stdio:
            os.execvp(argv[0], argv)  # noqa: S606 - it takes this one's place
        here = node_port if port is None else port
        there = f"leads to port {node_port} of rank {rank}'s node; Ctrl-C"
        listen(argv, here, lambda url: say(f"{url} {there}"), run.verdict_file.exists)
    say(f"{run.id} has ended")
    return EXIT_DONE


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
