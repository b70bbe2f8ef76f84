"""A login node: a real sshd on a loopback port, with keys, a home and a host key of its own.
Nothing of the user's ~/.ssh is used or changed."""

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

_LIMIT_S = 30.0
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_PRIVILEGES = Path("/run/sshd")  # root's sshd wants it; services make it when they start
_SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
MaxStartups 100
SetEnv HOME={folder}/home
"""
_CLIENT = """\
Host login
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    HostKeyAlias login
    LogLevel ERROR
"""


def missing_programs():
    """What this machine lacks, in one sentence, or None."""
    names = ("sshd", "ssh", "ssh-keygen", "rsync")
    lacking = ", ".join(name for name in names if not shutil.which(name, path=_PATH))
    return f"a login node takes {lacking}; `make test` installs them" if lacking else None


class LoginNode:
    """sshd, and what a laptop needs to reach it."""

    def __init__(self, *, variables=None, profile=""):
        self.folder = Path(tempfile.mkdtemp(prefix="hpcdist-login-", dir="/tmp"))
        self.home = self.folder / "home"
        self.home.mkdir()
        self.config = self.folder / "ssh_config"
        self._process = None
        lines = [f"export {name}='{value}'" for name, value in (variables or {}).items()]
        self.exports = "\n".join(lines)
        """Lines of the profile by which the cluster's commands are found."""
        self.profile(f"{self.exports}\n{profile}")
        self._key("key")
        self.new_host_key()
        shutil.copy(self.folder / "key.pub", self.folder / "authorized_keys")
        self.port = free_port()
        values = {"folder": self.folder, "port": self.port}
        (self.folder / "sshd_config").write_text(_SSHD.format(**values))
        self.config.write_text(_CLIENT.format(**values, user=getpass.getuser()))

    @property
    def ssh(self):
        """The words of ssh on the laptop, for HPCDIST_SSH."""
        return f"ssh -F {self.config}"

    @property
    def connections(self):
        """How many there have been."""
        return (self.folder / "sshd.log").read_text().count("Accepted publickey")

    def profile(self, text):
        """What bash reads when the user logs in."""
        (self.home / ".bash_profile").write_text(f"{text}\n")

    def install(self):
        """hpcdist is there, by the script that starts it."""
        start = self.home / ".local/share/hpcdist/start"
        start.parent.mkdir(parents=True, exist_ok=True)
        start.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcdist "$@"\n')
        start.chmod(0o755)

    def _key(self, name):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(command, check=True, timeout=_LIMIT_S)

    def new_host_key(self, *, known=True):
        """Another key of the host, which the laptop knows, or not."""
        for path in self.folder.glob("host_key*"):
            path.unlink()
        self._key("host_key")
        if known:
            kind, key, *_ = (self.folder / "host_key.pub").read_text().split()
            (self.folder / "known_hosts").write_text(f"login {kind} {key}\n")

    def start(self):
        if os.getuid() == 0:
            _PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
        command = [shutil.which("sshd", path=_PATH), "-D", "-e", "-f", self.folder / "sshd_config"]
        with (self.folder / "sshd.log").open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._process = subprocess.Popen(command, **streams, env={"PATH": _PATH})
        deadline = time.monotonic() + _LIMIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)

    def stop(self):
        """No connection is taken any more, and those that are there end."""
        if self._process is not None:
            self.break_connections()
            self._process.terminate()
            self._process.wait(timeout=_LIMIT_S)
            self._process = None

    def close(self):
        self.stop()
        shutil.rmtree(self.folder)

    def break_connections(self):
        """End sshd's processes of connections, at once; the commands in them get no signal."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    process.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
