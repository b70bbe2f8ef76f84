"""A shell or another command beside a living rank: on its node, in its folder, image and
environment. `hpcdist attach` has the scheduler start this on the node.

What the rank was started with is read from /proc; its own variables come with the command line. A
rank in an image has a file system of its own, which util-linux' nsenter enters without rights where
the image's runtime needed none.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from hpcdist.machine.process import works_in
from hpcdist.runs.run import Run
from hpcdist.schedulers import load_scheduler

_OF_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR")
_NO_SUCH_COMMAND = 127


def main() -> NoReturn:
    """Become the command: sys.argv has the run's directory, the pid of a rank on this node,
    variables as NAME=value, and after -- the command; a shell where that is empty."""
    run, pid, *words = sys.argv[1:]
    variables, command = words[: words.index("--")], words[words.index("--") + 1 :]
    if not works_in(int(pid), Path(run)):
        sys.exit(f"the rank has ended: process {pid} is gone from {os.uname().nodename}")
    rank, own = Path("/proc", pid), Path("/proc/self")
    # What the rank's agent was started with, without its place among the job's tasks.
    lines = map(os.fsdecode, (rank / "environ").read_bytes().split(b"\0"))
    started = dict(line.split("=", 1) for line in lines if "=" in line)
    of_step = load_scheduler(str(Run(Path(run)).read_scheduler())).step_variables
    environment = {name: text for name, text in started.items() if not name.startswith(of_step)}
    environment |= {name: os.environ[name] for name in _OF_TERMINAL if name in os.environ}
    environment |= dict(one.split("=", 1) for one in variables)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm warns all steps of a job
    if not command:  # the user's shell, or one that is there in the rank's file system
        shells = [environment.get("SHELL", ""), "/bin/bash", "/bin/sh"]
        there = [one for one in shells if one and Path(f"{rank}/root{one}").exists()]
        command = [*there, "sh"][:1]
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])  # bash does not keep ignoring
    if os.readlink(rank / "ns/mnt") != os.readlink(own / "ns/mnt"):
        is_other = os.readlink(rank / "ns/user") != os.readlink(own / "ns/user")
        user = ["--user", "--preserve-credentials"] if is_other else []
        command = ["nsenter", f"--target={pid}", *user, "--mount", "--wd", "--", *command]
    try:
        os.chdir(rank / "cwd")
        os.execvpe(command[0], command, environment)  # noqa: S606 - it is what the user asked for
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(_NO_SUCH_COMMAND)
