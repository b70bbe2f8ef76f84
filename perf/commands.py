"""Starting the commands that are measured, as on a user's machine, and ending them for sure."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcdist.machine.process import descendants, send_signal

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).parent / "scripts"
HPCDIST = str(BIN / "hpcdist")
TORCHRUN = str(BIN / "torchrun")

LIMIT_S = 180.0
"""Longer than anything here takes: a command that needs more hangs."""

_POLL_S = 0.01
_OWN_VARIABLES = (
    "PYTHONDONTWRITEBYTECODE",  # would compile an editable install anew at each start
    "PYTHONUNBUFFERED",
    "OMP_NUM_THREADS",
    "HPCDIST_RUNS",
)


class BenchmarkError(Exception):
    """A command did not do what was to be measured."""


class Commands:
    """Commands that were started at one instant."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
        self.begin_s = 0.0
        """Just before the first was started, in the machine's monotonic clock."""
        self._processes = processes
        self._log = log

    def wait_for(self, paths: Sequence[Path]) -> None:
        """Wait until all of these files are there."""
        deadline_s = time.monotonic() + LIMIT_S
        while not all(path.exists() for path in paths):
            if any(process.poll() not in {None, 0} for process in self._processes):
                raise self._error("a command failed")
            if time.monotonic() > deadline_s:
                raise self._error(f"no {paths[0].name} and its like after {LIMIT_S:g} s")
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Wait until all have ended, with success."""
        for process in self._processes:
            if process.wait(LIMIT_S):
                raise self._error(f"exit code {process.returncode}")

    def all_pids(self) -> list[int]:
        """The commands' processes, and all below them."""
        pids = [process.pid for process in self._processes]
        return pids + [below for pid in pids for below in descendants(pid)]

    def _error(self, what: str) -> BenchmarkError:
        tail = self._log.read_text(errors="replace")[-3000:]
        return BenchmarkError(f"{what}; the end of {self._log}:\n{tail}")


@contextlib.contextmanager
def started(
    commands: Sequence[Sequence[str]], folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[Commands]:
    """Start commands in `folder`; what is left of them at the end is killed."""
    log = folder / "output.log"
    environment = user_environment() | dict(variables or {})
    processes: list[subprocess.Popen[bytes]] = []
    running = Commands(processes, log)
    try:
        with log.open("wb") as output:
            running.begin_s = time.monotonic()
            processes.extend(
                subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for command in commands
            )
        yield running
    finally:
        for pid in running.all_pids() if any(p.poll() is None for p in processes) else []:
            send_signal(pid, 9)
        for process in processes:
            process.wait()


def run_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command that must succeed, to its end; what it wrote on stdout."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=user_environment() if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")
        raise BenchmarkError(f"{' '.join(command)}: exit code {done.returncode}: {said}")
    return done.stdout.decode(errors="replace")


def user_environment() -> dict[str, str]:
    """The environment without what would tilt the comparison."""
    return {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
