"""A Slurm cluster as a test sees it."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_cluster import namespaces, programs
from slurm_cluster.spec import LOOPBACK, ClusterSpec

LIMIT_S = 30.0
_BOOT_LIMIT_S = 90.0
_POLL_S = 0.05
_SHOULD_END_S = 5.0
_PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "sbatch", "srun", "squeue", "sacct", "sacctmgr"),
    *("scontrol", "sinfo", "scancel", "munged", "mariadbd", "mariadb-install-db", "mariadb"),
    *("setpriv", "unshare", "nsenter", "ip"),
)
_NOT_PASSED_ON = re.compile("(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SINFO|SALLOC)_|HPCDIST_RUNS$")
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
_ENDED |= {"OUT_OF_MEMORY", "DEADLINE", "REVOKED", "SPECIAL_EXIT"}
_QUEUE_FORMAT = "%i|%T|%P|%N|%j|%r"
_ADMINISTRATORS = "/usr/sbin:/sbin"


class ClusterError(RuntimeError):
    """The cluster did not do what it was told."""


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A line of squeue."""

    id: str
    state: str
    partition: str
    nodes: str
    name: str
    reason: str


def missing_programs():
    """What this machine lacks to boot a cluster, in one sentence, or None."""
    path = f"{os.environ.get('PATH', os.defpath)}:{_ADMINISTRATORS}"
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=path)]
    if missing:
        return f"a real Slurm takes {', '.join(missing)}; `make test` says how to install them"
    if not Path("/dev/tty1").is_char_device():
        return "a real Slurm takes /dev/tty0 and /dev/tty1, which stand for GPUs"
    return None


class Cluster:
    """Boots on `start`, and is gone, with all its processes and files, after `stop`."""

    def __init__(self, network=LOOPBACK, **settings):
        # /tmp and not TMPDIR: the path of a socket may have 107 characters.
        folder = tempfile.mkdtemp(prefix="hpcdist-slurm-", dir="/tmp")
        self.spec = ClusterSpec(folder=folder, network=network, **settings)
        self.nodes = self.spec.nodes
        self._path = self._usual_path = self._usual()
        self._dead_nodes = set()
        self._cut_nodes = set()
        self._controller = "running"
        self._has_database = True

    def _usual(self):
        bin_folder = Path(sys.executable).parent
        return os.pathsep.join([str(bin_folder), os.environ.get("PATH", os.defpath)])

    # Its life.

    def start(self):
        command = [sys.executable, "-m", "slurm_cluster", self.spec.to_json()]
        if self.spec.in_namespaces:
            command = [*namespaces.enter_new(), *command]
        package = str(Path(__file__).parent.parent)
        self._supervisor = subprocess.Popen(
            ["setpriv", "--pdeathsig", "HUP", *command],
            # Little else: the mark of the tests must not pass on to what outlives a test.
            env={
                "PATH": f"{os.environ.get('PATH', os.defpath)}:{_ADMINISTRATORS}",
                "HOME": os.environ.get("HOME", "/"),
                "PYTHONPATH": package,
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
        self._supervisor.wait(LIMIT_S)
        self._supervisor.stdout.close()

    @property
    def supervisor_pid(self):
        """Of the process above all daemons; in namespaces, the first in them."""
        if not self.spec.in_namespaces:
            return self._supervisor.pid
        pid = self._supervisor.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _order(self, *order):
        self._supervisor.stdin.write(json.dumps(order) + "\n")
        self._supervisor.stdin.flush()
        self._hear(" ".join(order))

    def _hear(self, order):
        """The supervisor keeps time limits of its own, and ends with an answer."""
        line = self._supervisor.stdout.readline()
        if not line:
            raise ClusterError(f"{order}: the supervisor ended without an answer")
        if error := json.loads(line)["error"]:
            raise ClusterError(f"{order}: {error}")

    # Commands in it.

    @property
    def environment(self):
        """Of a user's shell on the login node."""
        kept = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)}
        return kept | {"SLURM_CONF": str(self.spec.slurm_conf), "PATH": self._path}

    def command(self, *arguments, node=None):
        """What to start from here for a command that runs on the login node, or on a node of its own."""
        words = list(map(str, arguments))
        if not self.spec.in_namespaces:
            return words
        if node:
            slurmd = (self.spec.path / "run" / f"slurmd.{node}.pid").read_text().strip()
            words = ["nsenter", f"--target={slurmd}", "--mount", "--net", "--uts", "--wd=.", *words]
        return [*namespaces.enter(self.supervisor_pid), "--wd=.", *words]

    def run(self, *arguments, timeout=LIMIT_S, check=True, node=None, **options):
        """A command, to its end; fails the test where the command fails, unless told otherwise."""
        defaults = {"stdin": subprocess.DEVNULL, "env": self.environment}
        if "input" in options:
            del defaults["stdin"]
        done = subprocess.run(
            self.command(*arguments, node=node),
            **defaults | options,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
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

    @contextlib.contextmanager
    def settings(self, **values):
        """While open, the cluster has other settings in slurm.conf, such as PreemptMode."""
        before = self.spec.slurm_conf.read_text()
        kept = [line for line in before.splitlines() if line.partition("=")[0] not in values]
        self._configure("\n".join([*(f"{k}={v}" for k, v in values.items()), *kept]) + "\n")
        try:
            yield
        finally:
            self._configure(before)

    def _configure(self, text):
        self.spec.slurm_conf.write_text(text)
        self.run("scontrol", "reconfigure")

    # What is in it.

    def queue(self):
        """The jobs that are pending, running or completing, from squeue."""
        output = self.run("squeue", "--noheader", f"--format={_QUEUE_FORMAT}").stdout
        names = ("id", "state", "partition", "nodes", "name", "reason")
        lines = [line.split("|", len(names) - 1) for line in output.splitlines()]
        return [QueuedJob(**dict(zip(names, line, strict=True))) for line in lines]

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

    def wait_for(self, condition, limit_s=LIMIT_S):
        """What it returns, once that is true; fails the test after the limit."""
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"did not come true within {limit_s} s\n{self.describe()}")
            time.sleep(_POLL_S)
        return value

    def wait_for_state(self, job_id, *states, limit_s=LIMIT_S):
        """The state of the job, once it is one of these."""
        return self.wait_for(lambda: self._state_in(job_id, states), limit_s)

    def wait_for_end(self, job_id, limit_s=LIMIT_S):
        """The state in which the job ended."""
        return self.wait_for_state(job_id, *_ENDED, limit_s=limit_s)

    def _state_in(self, job_id, states):
        state = self.job_state(job_id)
        return state if state in states else None

    def wait_until_idle(self, limit_s=LIMIT_S):
        """All nodes are up, and none has a job."""
        self.wait_for(lambda: set(self.node_states().values()) == {"idle"}, limit_s)

    def describe(self):
        """For the message of a failed test."""
        shown = (("squeue", "--all"), ("sinfo", "--Node", "--long"))
        return "\n".join(self.run(*words, check=False).stdout for words in shown)

    # Its faults.

    def kill_node(self, node):
        """As by a power cut: its slurmd, its steps and their tasks get SIGKILL."""
        self._dead_nodes.add(node)
        self._order("kill_node", node)

    def revive_node(self, node):
        self._order("revive_node", node)
        self._dead_nodes.discard(node)

    def stop_controller(self):
        self._controller = "stopped"
        self._order("stop_controller")

    def start_controller(self):
        self._order("start_controller")
        self._controller = "running"

    @contextlib.contextmanager
    def silent_controller(self):
        """While open, the controller takes connections and never answers."""
        self._controller = "paused"
        self._order("pause_controller")
        try:
            yield
        finally:
            self._resume_controller()

    def _resume_controller(self):
        self._order("resume_controller")
        self._controller = "running"

    def stop_database(self):
        """slurmdbd: sacct fails, jobs go on, and what happens meanwhile is recorded later."""
        self._has_database = False
        self._order("stop_database")

    def start_database(self):
        self._order("start_database")
        self._has_database = True

    def cut_link(self, node):
        """In namespaces: the node goes on, and nobody reaches it."""
        self._cut_nodes.add(node)
        self._order("cut_link", node)

    def mend_link(self, node):
        self._order("mend_link", node)
        self._cut_nodes.discard(node)

    @contextlib.contextmanager
    def own_names_are_loopback(self):
        """In namespaces, while open: each node's own name is 127.0.1.1 to itself, as Debian has it."""
        before = {node: self.spec.hosts_file(node).read_text() for node in self.nodes}
        for node, text in before.items():
            own = re.sub(rf"^.* {node}$", f"127.0.1.1 {node}", text, flags=re.MULTILINE)
            self.spec.hosts_file(node).write_text(own)  # in place: the node sees this very file
        try:
            yield
        finally:
            for node, text in before.items():
                self.spec.hosts_file(node).write_text(text)

    # Between tests.

    def restore(self):
        """As it was after the boot; returns the jobs that somebody left in the queue."""
        self._path = self._usual_path
        if self._controller == "paused":
            self._resume_controller()
        if self._controller == "stopped":
            self.start_controller()
        if not self._has_database:
            self.start_database()
        for node in [*self._cut_nodes]:
            self.mend_link(node)
        for node in [*self._dead_nodes]:
            self.revive_node(node)
        left = self._jobs_that_stay()
        if left:
            self.run("scancel", *(job.id for job in left))
            self.wait_for(lambda: not self.queue())
        self.wait_until_idle()
        return left

    def _jobs_that_stay(self):
        """A job whose work is done needs a moment to leave."""
        deadline = time.monotonic() + _SHOULD_END_S
        while (jobs := self.queue()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return jobs
