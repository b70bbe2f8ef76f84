"""A Slurm cluster on this machine, booted for one benchmark, and commands of its user.

The cluster is that of the tests: real daemons, four nodes with 4 CPUs and 2 GPUs each by Slurm's
reckoning, accounting in a database. Its users' commands are the machine's own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from commands import LIMIT_S, BenchmarkError, run_command, user_environment

_TESTS = Path(__file__).parent.parent / "tests"
_POLL_S = 0.02
_MAX_ARRAY_SIZE = 1001
"""Slurm's own default; that of the tests is small. The controller keeps the value that it finds at
the first array, so no restart is needed before it."""

_RECORDER = """#!/bin/bash
printf '%s %s' "$EPOCHREALTIME" {name} >> {record}
printf ' %q' "$@" >> {record}
echo >> {record}
exec {program} "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of one of the scheduler's commands."""

    time_s: float
    """Unix time."""
    argv: list[str]


@dataclass(frozen=True, kw_only=True)
class Site:
    """The cluster, and a folder in which its user works."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        """A command that must succeed."""
        return run_command(command, self.folder, self.environment)

    def time(self, *command: str) -> float:
        """Seconds that a command took, which must succeed."""
        begin_s = time.perf_counter()
        self.run(*command)
        return time.perf_counter() - begin_s

    def hold_jobs(self) -> None:
        """Let jobs be submitted, and none start: their work would disturb what is measured."""
        self.run("scontrol", "update", "PartitionName=main", "State=DOWN")

    def queue(self) -> str:
        """The jobs in the queue, a line for each."""
        return self.run("squeue", "--noheader")

    def cancel_jobs(self) -> None:
        """Empty the queue."""
        self.run("scancel", f"--user={os.getuid()}")
        self.wait_until_empty()

    def wait_until_empty(self) -> None:
        """Until no job waits, runs or completes."""
        deadline_s = time.monotonic() + LIMIT_S
        while jobs := self.queue():
            if time.monotonic() > deadline_s:
                raise BenchmarkError(f"still in the queue after {LIMIT_S:g} s:\n{jobs}")
            time.sleep(_POLL_S)

    def recording(self, names: Sequence[str]) -> tuple[Site, Callable[[], list[Call]]]:
        """The same site where calls of these commands are written down, and what was written."""
        folder = Path(tempfile.mkdtemp(dir=self.folder.parent))
        record = folder / "calls"
        record.touch()
        for name in names:
            wrapper = folder / name
            program = shutil.which(name, path=self.environment["PATH"])
            wrapper.write_text(_RECORDER.format(name=name, record=record, program=program))
            wrapper.chmod(0o755)
        path = f"{folder}{os.pathsep}{self.environment['PATH']}"
        site = Site(folder=self.folder, environment=self.environment | {"PATH": path})
        return site, lambda: [_call(line) for line in record.read_text().splitlines()]


@contextlib.contextmanager
def booted(**settings: int) -> Iterator[Site]:
    """Boot a cluster, with settings of its specification, such as `num_nodes`; ends the program,
    with success and a reason, where the machine cannot."""
    sys.path[:0] = [str(_TESTS / "slurm"), str(_TESTS / "support")]
    try:
        from slurm_cluster.cluster import Cluster
        from slurm_cluster.config import missing_programs
    except ImportError as error:
        print(f"skipped: the cluster of the tests takes {error.name}: pip install '.[test]'")
        sys.exit(0)
    if lacking := missing_programs():
        print(f"skipped: {lacking}")
        sys.exit(0)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        cluster = Cluster(**settings)
        cluster.start()
        try:
            folder = Path(name) / "work"
            folder.mkdir()
            with cluster.settings(MaxArraySize=_MAX_ARRAY_SIZE):
                yield Site(folder=folder, environment=_environment(cluster.environment, Path(name)))
        finally:
            cluster.stop()


def as_work_tree(site: Site) -> None:
    """Put the site's folder under git, as it is: that is how people keep their scripts."""
    author = ("-c", "user.name=user", "-c", "user.email=user@example.org")
    for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "Start")):
        site.run("git", *words)


def _environment(of_cluster: dict[str, str], folder: Path) -> dict[str, str]:
    """Of a user without configuration of their own."""
    kept = {name: value for name, value in of_cluster.items() if name in user_environment()}
    added = {name: of_cluster[name] for name in ("SLURM_CONF", "PATH")}
    return kept | added | {"XDG_CONFIG_HOME": str(folder / "configuration")}


def _call(line: str) -> Call:
    time_s, *argv = shlex.split(line)
    return Call(time_s=float(time_s), argv=argv)
