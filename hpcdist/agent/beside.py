"""A shell or another command beside a living rank: on its node, in its folder, image and
environment. `hpcdist attach` has the scheduler start this on the node.

What the rank was started with is read from /proc; its own variables come with the command line. A
rank in an image has a file system of its own, which util-linux' nsenter enters without rights where
the image's runtime needed none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hpcdist.machine.command import python_command
from hpcdist.machine.process import works_in

_OF_STEP = (
    *("SLURM_STEP", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK", "SLURM_SRUN"),
    *("SLURM_GTIDS", "SLURM_LAUNCH_NODE", "SRUN_", "PMI", "SUBMITIT_"),
)
"""Beginnings of variables that say which task of which step a process is."""
_OF_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR")
_NO_SUCH_COMMAND = 127


def command_of(
    run: Path, pid: int, environment: Mapping[str, object], command: Sequence[str]
) -> list[str]:
    """Return what starts a command, or a shell where that is empty, beside the rank with this pid
    on its node."""
    variables = [f"--set={name}={value}" for name, value in environment.items()]
    start = "from hpcdist.agent.beside import main; main()"
    return python_command(start, f"--run={run}", f"--pid={pid}", *variables, "--", *command)


def main() -> NoReturn:
    """Become the command."""
    parser = argparse.ArgumentParser(prog="hpcdist.agent.beside")
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--pid", required=True, type=int)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if not works_in(options.pid, options.run):
        sys.exit(f"the rank has ended: process {options.pid} is gone from {os.uname().nodename}")
    environment = _environment(options.pid, os.environ)
    environment |= dict(one.split("=", 1) for one in options.set)
    command = options.command or [_shell(options.pid, environment)]
    try:
        os.chdir(f"/proc/{options.pid}/cwd")
        entering = _entering(options.pid)
        argv = [*entering, *command]
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - it is what the user asked for
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(_NO_SUCH_COMMAND)


def _environment(pid: int, own: Mapping[str, str]) -> dict[str, str]:
    """Return what the rank's agent was started with, without its place among the job's tasks."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    started = dict(os.fsdecode(line).split("=", 1) for line in lines if b"=" in line)
    kept = {name: text for name, text in started.items() if not name.startswith(_OF_STEP)}
    return kept | {name: own[name] for name in _OF_TERMINAL if name in own}


def _shell(pid: int, environment: Mapping[str, str]) -> str:
    """Return the user's shell, or one that is there in the rank's file system."""
    wanted = [environment.get("SHELL", ""), "/bin/bash", "/bin/sh"]
    return next((one for one in wanted if one and os.path.exists(f"/proc/{pid}/root{one}")), "sh")


def _entering(pid: int) -> list[str]:
    """Return what starts a command in the rank's file system, where that is not this one's."""
    if _namespace(pid, "mnt") == _namespace(os.getpid(), "mnt"):
        return []
    user = []
    if _namespace(pid, "user") != _namespace(os.getpid(), "user"):
        user = ["--user", "--preserve-credentials"]
    return ["nsenter", f"--target={pid}", *user, "--mount", "--wd", "--"]


def _namespace(pid: int, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")
