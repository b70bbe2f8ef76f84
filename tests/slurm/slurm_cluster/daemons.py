"""The daemons of a cluster: how each is started, and when it is ready."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from made_once import made_once

from slurm_cluster import config, processes

_POLL_S = 0.02
_LIMIT_S = 60.0
_PASSED_ON = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")


class BootError(RuntimeError):
    """A daemon did not come up."""


class Daemons:
    """Starts and ends the daemons of one cluster, as children of this process."""

    def __init__(self, spec):
        self.spec = spec
        self._running = {}

    @property
    def environment(self):
        """Little of our own: what daemons have, jobs that ask for no environment get too."""
        kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        path = f"{os.environ.get('PATH', os.defpath)}:{config.ADMINISTRATORS}"
        return kept | {"PATH": path, "SLURM_CONF": str(self.spec.slurm_conf)}

    @property
    def popens(self):
        return self._running.values()

    def start(self, name, *command, stdin=subprocess.DEVNULL):
        """In a session of its own; dies with the supervisor."""
        with (self.spec.path / "log" / f"{name}.out").open("ab") as output:
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
                env=self.environment,
                cwd=self.spec.path,
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._running[name]

    def stop(self, name):
        """Ask it to end, and wait."""
        popen = self._running.pop(name)
        popen.terminate()
        popen.wait(_LIMIT_S)

    def run(self, *command, check=True, text=None):
        """A command of the cluster, to its end; returns what it printed."""
        done = subprocess.run(
            list(map(str, command)),
            env=self.environment,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if check and done.returncode:
            raise BootError(f"{command} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def wait_until(self, what, condition):
        deadline = time.monotonic() + _LIMIT_S
        while not condition():
            for name, popen in self._running.items():
                if popen.poll() is not None:
                    raise BootError(f"{name} ended with {popen.returncode} before {what}")
            if time.monotonic() > deadline:
                raise BootError(f"not within {_LIMIT_S} s: {what}")
            time.sleep(_POLL_S)

    def boot(self):
        """Start all daemons."""
        for folder in ("state", "log", "run", "spool", "db", "hosts"):
            (self.spec.path / folder).mkdir()
        for name, text in config.files(self.spec).items():
            (self.spec.path / name).write_text(text)
        (self.spec.path / "slurmdbd.conf").chmod(0o600)  # slurmdbd insists
        key = self.spec.path / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self.make_network()
        self.start_munge()
        kept = made_once(Path(self.spec.databases), "slurm-database", self.make_database)
        shutil.copytree(kept / "db", self.spec.path / "db", dirs_exist_ok=True)
        self.start_mariadb()
        self.start_slurmdbd()
        self.start_controller()
        self.start("requeued", "bash", "-c", _RELEASE_REQUEUED)
        for node in self.spec.nodes:
            self.start_node(node)
        idle = ["idle"] * self.spec.num_nodes
        ask = ("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
        self.wait_until("all nodes are idle", lambda: self.run(*ask, check=False).split() == idle)

    def make_network(self):
        """All nodes have that of this machine."""

    def start_munge(self):
        folder = self.spec.path
        self.start(
            "munged",
            "munged",
            "--foreground",
            "--force",  # or it refuses folders that not everybody may enter
            f"--socket={self.spec.munge_socket}",
            f"--key-file={folder}/munge.key",
            f"--log-file={folder}/log/munged.log",
            f"--pid-file={folder}/run/munged.pid",
            f"--seed-file={folder}/munge.seed",
            "--num-threads=4",
            "--group-update-time=-1",
        )
        self.wait_until("munged listens", self.spec.munge_socket.exists)

    def make_database(self, folder):
        """With the accounts, which the controller then knows from its first moment on. Stop it, and
        copy it to where all clusters take it from: to make it takes ten times as long."""
        root = "--auth-root-authentication-method=normal"
        self.run("mariadb-install-db", self._database_defaults, root, "--skip-test-db")
        self.start_mariadb()
        self.run(*self._database_client, text=_DATABASE_USER)
        self.start_slurmdbd()
        lines = [
            "add cluster hpcdist",
            f"add account {config.ACCOUNT}",
            f"add user {self.spec.user} account={config.ACCOUNT}",
        ]
        self.run("sacctmgr", "--immediate", text="\n".join(lines) + "\n")
        self.stop("slurmdbd")
        self.stop("mariadbd")
        shutil.copytree(self.spec.path / "db", folder / "db")

    @property
    def _database_defaults(self):
        return f"--defaults-file={self.spec.path}/my.cnf"

    @property
    def _database_client(self):
        socket_option = f"--socket={self.spec.database_socket}"
        return ("mariadb", "--no-defaults", socket_option, "--user=root")

    def start_mariadb(self):
        self.start("mariadbd", "mariadbd", self._database_defaults)
        ask = (*self._database_client, "-e", "select 1")
        self.wait_until(
            "the database answers",
            lambda: (
                self.spec.database_socket.exists() and "1" in self.run(*ask, check=False).split()
            ),
        )

    def start_slurmdbd(self):
        self.start("slurmdbd", "slurmdbd", "-D")
        address = (self.spec.controller[1], self.spec.accounting_port)
        self.wait_until("slurmdbd listens", lambda: _listens(address))

    def start_controller(self):
        self.start("slurmctld", "slurmctld", "-D", "-i")
        self.wait_until(
            "slurmctld answers", lambda: "is UP" in self.run("scontrol", "ping", check=False)
        )

    def stop_controller(self):
        self.stop("slurmctld")

    def start_node(self, node):
        self.start(f"slurmd.{node}", "slurmd", "-D", "-N", node)

    def start_ended_nodes(self):
        """Those whose slurmd has ended, whoever ended it."""
        for node in self.spec.nodes:
            popen = self._running.get(f"slurmd.{node}")
            if popen is None or popen.poll() is not None:
                self.start_node(node)

    def node_processes(self, node):
        """Pids of a node's slurmd, of its steps, and of the tasks in them."""
        below = processes.descendants(os.getpid())
        log = self.spec.slurmd_log(node)
        found = {
            pid
            for pid in below
            if processes.variable(pid, "SLURMD_NODENAME") == node or processes.has_open(pid, log)
        }
        return found.union(*map(processes.descendants, found))

    def kill_daemon(self, node):
        """Its slurmd dies, and what that has started goes on."""
        popen = self._running.pop(f"slurmd.{node}")
        popen.kill()
        popen.wait(_LIMIT_S)

    def kill_node(self, node):
        """As by a power cut: its slurmd, its steps and their tasks get SIGKILL."""
        processes.stop_all(lambda: self.node_processes(node))
        processes.kill_all(lambda: self.node_processes(node), self.popens)
        if popen := self._running.pop(f"slurmd.{node}", None):
            popen.wait(_LIMIT_S)

    def pause_controller(self):
        self._running["slurmctld"].send_signal(signal.SIGSTOP)

    def resume_controller(self):
        self._running["slurmctld"].send_signal(signal.SIGCONT)


_RELEASE_REQUEUED = """\
tail --pid=$$ --lines=0 --follow=name --retry log/slurmctld.log |
    grep --line-buffered --only-matching --perl-regexp 'Requeuing \\KJobId=[0-9_]+' |
    while read -r job; do scontrol update "$job" StartTime=now+2; done
"""
"""Slurm holds a requeued job back for two minutes. Not less than this: a node refuses a job within
the second in which it ended the same job's last attempt."""
_DATABASE_USER = """
create user slurm@'127.0.0.1' identified by 'slurm';
grant all on slurm.* to slurm@'127.0.0.1';
"""


def _listens(address):
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False
