"""`hpcdist attach`: a shell or another command beside a rank of a living run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdist.base.errors import UserError
from hpcdist.cli.options import rank_option, run_argument, runs_option
from hpcdist.cli.printing import say
from hpcdist.runs.remote import host_of_run
from hpcdist.runs.run import Run, check_own, find_run

if TYPE_CHECKING:
    from hpcdist.monitor.living import RankStart


@click.command()
@run_argument
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@rank_option
@runs_option
def attach(*, run_name: str, command: tuple[str, ...], rank: int, runs: Path) -> int:
    """Open a shell beside a rank of a running run: on its node, within its job.

    It has the rank's folder, its image where the job has one, and the environment that the job's
    script made, with RANK, LOCAL_RANK and WORLD_SIZE of the rank, and its process in
    HPCDIST_RANK_PID. With -- COMMAND that is started in place of a shell, and its exit code is that
    of this command.
    """
    run = find_run(runs, run_name)
    if (host := host_of_run(run)) is not None:
        raise UserError(
            f"run {run.id} is at {host}, and attach opens its terminal there",
            hint=f"log in with ssh {host}, and run hpcdist attach there",
        )
    check_own(run.path, "attach")
    argv, start = beside(run, rank, command)
    log = run.log_file(rank, max(0, run.newest_attempt()))
    say(f"rank {rank} is process {start.pid} on {start.host}, its log {log}")
    try:
        code = subprocess.call(argv)
    except OSError as error:
        raise UserError(f"{argv[0]} cannot be run: {error.strerror}") from None
    return code if code >= 0 else 128 - code


def beside(run: Run, rank: int, command: Sequence[str]) -> tuple[list[str], RankStart]:
    """Return what starts a command, or a shell where that is empty, beside a rank, and the rank."""
    from hpcdist.machine.command import python_command
    from hpcdist.monitor.living import find_living_rank
    from hpcdist.schedulers import load_scheduler

    start = find_living_rank(run, rank)
    folder = run.path.resolve()
    variables = {
        "RANK": rank,
        "LOCAL_RANK": start.local_rank,
        "WORLD_SIZE": start.world_size,
        "LOCAL_WORLD_SIZE": start.local_world_size,
        **dict.fromkeys(("GROUP_RANK", "NODE_RANK"), rank // (start.local_world_size or 1)),
        "HPCDIST_RUN_DIR": folder,
        "HPCDIST_RANK_PID": start.pid,
    }
    words = [*(f"{name}={value}" for name, value in variables.items()), "--", *command]
    program = "from hpcdist.agent.beside import main; main()"
    inner = python_command(program, str(folder), str(start.pid), *words)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    scheduler = load_scheduler(run.read_scheduler() or "")
    return scheduler.enter(run, start.host, inner, is_terminal=is_terminal), start
