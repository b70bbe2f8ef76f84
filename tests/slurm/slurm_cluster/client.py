"""The tests' end of a supervisor: starts it, gives it orders, and ends it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from slurm_cluster import namespaces
from slurm_cluster.needs import ADMINISTRATORS

_END_LIMIT_S = 90.0


class ClusterError(RuntimeError):
    """The cluster did not do what it was told."""


class Client:
    """Of one cluster; the cluster lives until `stop`, or until this process ends."""

    def __init__(self, spec):
        self._spec = spec
        self._process = None

    def start(self):
        spec = self._spec
        command = [sys.executable, "-m", "slurm_cluster", spec.to_json()]
        if spec.in_namespaces:
            command = [*namespaces.enter_new(), *command]
        package = Path(__file__).parent.parent
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "HUP", *command],
            # Little else: the mark of the tests must not pass on to what outlives a test.
            env={
                "PATH": f"{os.environ.get('PATH', os.defpath)}:{ADMINISTRATORS}",
                "HOME": os.environ.get("HOME", "/"),
                "PYTHONPATH": f"{package}:{package.parent / 'support'}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._hear("boot")
        except ClusterError:
            self.stop()
            raise

    def stop(self):
        self._process.stdin.close()
        self._process.wait(_END_LIMIT_S)
        self._process.stdout.close()
        shutil.rmtree(self._spec.path, ignore_errors=True)  # in case it never got as far

    @property
    def pid(self):
        """Of the process above all daemons; in namespaces, the first in them."""
        pid = self._process.pid
        if not self._spec.in_namespaces:
            return pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def order(self, *order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._hear(" ".join(order))

    def _hear(self, order):
        """The supervisor keeps time limits of its own, and ends with an answer."""
        line = self._process.stdout.readline()
        if not line:
            raise ClusterError(f"{order}: the supervisor ended without an answer")
        if error := json.loads(line)["error"]:
            raise ClusterError(f"{order}: {error}")
