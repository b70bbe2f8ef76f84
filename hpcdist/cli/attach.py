"""`hpcdist attach`: a shell or another command beside a rank of a living run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.errors import EXIT_DONE, HpcdistError, UserError
from hpcdist.cli.options import run_argument, runs_option
from hpcdist.cli.printing import note, say
from hpcdist.machine.command import announce_waits
from hpcdist.runs.remote import host_of_run
from hpcdist.runs.run import Run, check_own, find_run

if TYPE_CHECKING:
    from hpcdist.agent.requests import RankDebugger

_LIMIT_S = 45.0
_WAIT_S = 1800.0
_LOCAL_PORT = 5678


@click.command()
@run_argument
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--rank", metavar="R", type=click.IntRange(min=0), default=0, help="The rank; 0 by default."
)
@click.option("--debugpy", is_flag=True, help="Have the rank wait for VS Code's debugger instead.")
@runs_option
def attach(*, run_name: str, command: tuple[str, ...], rank: int, debugpy: bool, runs: Path) -> int:
    """Open a shell beside a rank of a running run: on its node, within its job.

    It has the rank's folder, its image where the job has one, and the environment that the job's
    script made, with RANK, LOCAL_RANK and WORLD_SIZE of the rank. With -- COMMAND that is started
    in place of a shell, and its exit code is that of this command.

    With --debugpy the rank waits up to half an hour for a debugger, whose port is open on 127.0.0.1
    of its node; how to reach it, and a launch.json for VS Code, are printed.
    """
    from hpcdist.agent.beside import command_of
    from hpcdist.monitor.requests import check_living, find_rank
    from hpcdist.schedulers import load_scheduler

    announce_waits(note)
    run = find_run(runs, run_name)
    if (host := host_of_run(run)) is not None:
        raise UserError(
            f"run {run.id} is at {host}, and attach opens its terminal there",
            hint=f"log in with ssh {host}, and run hpcdist attach there",
        )
    check_own(run.path, "attach")
    if debugpy:
        if command:
            raise UserError("--debugpy and a command cannot be given together")
        _wait_for_debugger(run, rank)
        return EXIT_DONE
    check_living(run)
    beside = find_rank(run, rank)
    scheduler = load_scheduler(run.read_scheduler() or "")
    inner = command_of(sys.executable, run.path.resolve(), beside.pid, beside.environment, command)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = scheduler.enter(run, beside.host, inner, is_terminal=is_terminal)
    say(f"rank {rank} is process {beside.pid} on {beside.host}, its log {beside.log}")
    say(f"its stacks: hpcdist stacks {run.id} --rank {rank}, or py-spy dump --pid {beside.pid}")
    try:
        code = subprocess.call(argv)
    except OSError as error:
        raise UserError(f"{argv[0]} cannot be run: {error.strerror}") from None
    return code if code >= 0 else 128 - code


def _wait_for_debugger(run: Run, rank: int) -> None:
    """Have a rank wait, and print how to reach it."""
    from hpcdist.agent.requests import NodeDebuggers, WantDebugger
    from hpcdist.monitor.requests import ask
    from hpcdist.schedulers import runs_here

    request = WantDebugger(limit_s=_LIMIT_S, ranks=[rank], wait_s=_WAIT_S)
    answer = ask(run, request)
    told = [one for one in answer.reports.values() if isinstance(one, NodeDebuggers)]
    found = next((one for node in told for one in node.ranks if one.rank == rank), None)
    if found is None:
        why = "; ".join(answer.troubles().values()) or "it has no process"
        raise HpcdistError(f"rank {rank} cannot be debugged: {why}")
    if found.debugger.port is None:
        raise HpcdistError(f"rank {rank} cannot be debugged: {found.debugger.error}")
    note("debugpy asks for no password: anyone who is logged in on that node can connect")
    port, local_port = found.debugger.port, _LOCAL_PORT
    say(f"rank {rank} waits {_WAIT_S / 60:.0f} minutes for a debugger at 127.0.0.1:{port}")
    if runs_here(run.read_scheduler()):
        local_port = port
    else:
        login = socket.gethostname()
        say("on your laptop, where the site lets you reach the node by ssh:")
        say(f"    ssh -N -L {local_port}:127.0.0.1:{port} -J {login} {found.host}")
    say("then start this configuration in VS Code (.vscode/launch.json):")
    print(json.dumps(_launch_json(found, local_port), indent=4))


def _launch_json(found: RankDebugger, port: int) -> dict[str, Any]:
    """Return VS Code's configuration: code.visualstudio.com/docs/python/debugging."""
    attach = {
        "name": f"hpcdist rank {found.rank}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": "${workspaceFolder}", "remoteRoot": found.folder}],
        "justMyCode": False,
    }
    return {"version": "0.2.0", "configurations": [attach]}
