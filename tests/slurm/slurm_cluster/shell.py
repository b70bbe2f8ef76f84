"""Commands as a user of the cluster types them."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import run_user_command

from slurm_cluster import namespaces, processes, programs

_LIMIT_S = 60.0
_NOT_PASSED_ON = re.compile("(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SINFO|SALLOC)_|HPCDIST_RUNS$")


class Shell:
    """On the login node, or on another node where nodes are apart."""

    def __init__(self, spec, client):
        self._spec = spec
        self._client = client
        own_programs = str(Path(sys.executable).parent)
        self.command_server = None
        """What hpcdist is forked from, or None: it is started anew, as always in namespaces."""
        self._path = os.pathsep.join([own_programs, os.environ.get("PATH", os.defpath)])

    @property
    def environment(self):
        """Of a user's shell on the login node."""
        kept = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)}
        return kept | {"SLURM_CONF": str(self._spec.slurm_conf), "PATH": self._path}

    def command(self, *arguments, node=None):
        """What to start from here for a command on the login node, or on a node in namespaces."""
        words = list(map(str, arguments))
        if not self._spec.in_namespaces:
            return words
        pid = self._slurmd_pid(node) if node else self._client.pid
        return [*namespaces.enter(pid), "--wd=.", *words]

    def _slurmd_pid(self, node):
        inner = (self._spec.path / "run" / f"slurmd.{node}.pid").read_text().strip()
        return processes.outer_pid(self._client.pid, inner)

    def run(self, *arguments, timeout=_LIMIT_S, check=True, node=None, **options):
        """A command, to its end; fails the test where the command fails, unless told otherwise."""
        done = run_user_command(
            self.command_server,
            self.command(*arguments, node=node),
            timeout=timeout,
            **{"env": self.environment} | options,
        )
        if check and done.returncode:
            pytest.fail(f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def start_command(self, *arguments, **options):
        """A command that goes on."""
        defaults = {"env": self.environment, "stdin": subprocess.DEVNULL, "text": True}
        return subprocess.Popen(self.command(*arguments), **defaults | options)

    @contextlib.contextmanager
    def failing(self, name, message="it does not work here"):
        """While open, a program such as sacct says so and ends with 1."""
        with tempfile.TemporaryDirectory(prefix="hpcdist-path-") as folder:
            programs.write_failing(Path(folder), name, message)
            with self._on_path(os.pathsep.join([folder, self._path])):
                yield

    @contextlib.contextmanager
    def without(self, *names):
        """While open, programs such as sbatch are not there."""
        with tempfile.TemporaryDirectory(prefix="hpcdist-path-") as folder:
            programs.link_all_but(Path(folder), names, self._path)
            with self._on_path(folder):
                yield

    @contextlib.contextmanager
    def _on_path(self, path):
        before, self._path = self._path, path
        try:
            yield
        finally:
            self._path = before
