"""A Slurm cluster as a test sees it."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import Machine

from slurm_cluster import namespaces, processes
from slurm_cluster.config import ADMINISTRATORS, LOOPBACK, ClusterSpec

_LIMIT_S = 90.0  # all is well long before, also on a slow machine that is busy
_END_LIMIT_S = 90.0
_NOT_PASSED_ON = re.compile("(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SINFO|SALLOC)_|HPCDIST_RUNS$")
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
_ENDED |= {"OUT_OF_MEMORY", "DEADLINE", "REVOKED", "SPECIAL_EXIT"}


class ClusterError(RuntimeError):
    """The cluster did not do what it was told."""


class Cluster(Machine):
    """Boots on `start`, and is gone, with all its processes and files, after `stop`."""

    def __init__(self, network=LOOPBACK, command_server=None, **settings):
        """`command_server` is what hpcdist is forked from; never in namespaces."""
        super().__init__(command_server)
        # /tmp and not TMPDIR: the path of a socket may have 107 characters.
        folder = tempfile.mkdtemp(prefix="hpcdist-slurm-", dir="/tmp")
        self.spec = ClusterSpec(folder=folder, network=network, **settings)
        self.nodes = self.spec.nodes
        own_programs = str(Path(sys.executable).parent)
        self._path = os.pathsep.join([own_programs, os.environ.get("PATH", os.defpath)])
        self._supervisor = None

    def start(self):
        command = [sys.executable, "-m", "slurm_cluster.supervisor"]
        command.append(json.dumps(self.spec.as_dict()))
        if self.spec.in_namespaces:
            command = [*namespaces.enter_new(), *command]
        package = Path(__file__).parent.parent
        self._supervisor = subprocess.Popen(
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
        self._supervisor.stdin.close()
        self._supervisor.wait(_END_LIMIT_S)
        self._supervisor.stdout.close()
        shutil.rmtree(self.spec.path, ignore_errors=True)  # in case it never got as far

    def order(self, *order):
        """Have the supervisor do something, which is a method of Daemons, with its arguments."""
        self._supervisor.stdin.write(json.dumps(order) + "\n")
        self._supervisor.stdin.flush()
        self._hear(" ".join(order))

    def _hear(self, order):
        """The supervisor keeps time limits of its own, and ends with an answer."""
        line = self._supervisor.stdout.readline()
        if error := json.loads(line)["error"] if line else "the supervisor ended":
            raise ClusterError(f"{order}: {error}")

    # Commands as a user types them.

    @property
    def environment(self):
        """Of a user's shell on the login node."""
        kept = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)}
        return kept | {"SLURM_CONF": str(self.spec.slurm_conf), "PATH": self._path}

    def command(self, *arguments, node=None):
        """What to start from here for a command on the login node, or on a node in namespaces."""
        words = list(map(str, arguments))
        if not self.spec.in_namespaces:
            return words
        # unshare's child is the first process in the namespaces.
        pid = self._supervisor.pid
        first = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        if node:
            inner = (self.spec.path / "run" / f"slurmd.{node}.pid").read_text().strip()
            first = processes.outer_pid(first, inner)
        return [*namespaces.enter(first), "--wd=.", *words]

    @contextlib.contextmanager
    def replacing(self, name, script):
        """While open, a program such as sacct is this script, in which {} is the real one."""
        with tempfile.TemporaryDirectory(prefix="hpcdist-path-") as folder:
            program, real = Path(folder, name), shutil.which(name, path=self._path)
            program.write_text(f"#!/bin/bash\n{script.replace('{}', real)}\n")
            program.chmod(0o755)
            before, self._path = self._path, f"{folder}{os.pathsep}{self._path}"
            try:
                yield
            finally:
                self._path = before

    @contextlib.contextmanager
    def impatient_commands(self):
        """While open, Slurm's commands wait seconds for a controller that does not answer."""
        before = self.spec.slurm_conf.read_text()
        self._configure(re.sub("MessageTimeout=.*", "MessageTimeout=3", before))
        try:
            yield
        finally:
            self._configure(before)

    def _configure(self, text):
        # Daemons may be reading it after the change before; one that finds a part of it ends.
        new = self.spec.slurm_conf.with_suffix(".new")
        new.write_text(text)
        new.replace(self.spec.slurm_conf)
        self.run("scontrol", "reconfigure")

    # What is in it.

    def queue(self):
        """The ids of the jobs that are pending, running or completing."""
        return self.run("squeue", "--noheader", "--format=%i").stdout.split()

    def job_state(self, job_id):
        """Such as RUNNING, of a job that Slurm still remembers; else None."""
        done = self.run("scontrol", "--oneliner", "show", "job", job_id, check=False)
        found = re.search(r"\bJobState=(\w+)", done.stdout)
        return found[1] if found else None

    def node_states(self):
        """By node, such as idle, mixed, allocated or down*."""
        output = self.run("sinfo", "--noheader", "--Node", "-p", "main", "--format=%N %T").stdout
        return dict(line.split() for line in output.splitlines())

    def submit(self, script, *options):
        """Of a batch script's text, with sbatch; returns the job's id."""
        text = f"#!/bin/bash\n{script}\n"
        words = ("sbatch", "--parsable", "--output=/dev/null", *options)
        return self.run(*words, input=text).stdout.strip()

    def wait_for_state(self, job_id, *states, limit_s=_LIMIT_S):
        """The state of the job, once it is one of these."""
        return self.wait_for(lambda: (state := self.job_state(job_id)) in states and state, limit_s)

    def wait_for_end(self, job_id, limit_s=_LIMIT_S):
        """The state in which the job ended."""
        return self.wait_for_state(job_id, *_ENDED, limit_s=limit_s)

    def wait_until_idle(self, limit_s=_LIMIT_S):
        """All nodes are up, and none has a job."""
        self.wait_for(lambda: not self.queue() and self._are_nodes_idle(), limit_s)

    def _are_nodes_idle(self):
        states = self.node_states()
        for node, state in states.items():
            if state in ("drained", "down"):  # down* is a node that has not come back yet
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        return set(states.values()) == {"idle"}

    def describe(self):
        """For the message of a failed test."""
        shown = (("squeue", "--all"), ("sinfo", "--Node", "--long"))
        return "\n".join(self.run(*words, check=False).stdout for words in shown)

    # Its faults.

    def give_up_node(self, node):
        """As an administrator who knows of its loss before Slurm finds out: it is down at once, and
        its jobs have lost it."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    @contextlib.contextmanager
    def silent_controller(self):
        """While open, the controller takes connections and never answers."""
        self.order("pause_controller")
        try:
            yield
        finally:
            self.order("resume_controller")
