"""The connection to a host: the user's own ssh, with their configuration, and one login for all
that a command does there.

`ssh` is the one on PATH, or the words of HPCDIST_SSH, such as `ssh -F FILE`.
"""

from __future__ import annotations

import base64
import gzip
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.text import one_line
from hpcdist.cluster.profile import Host, parse_host
from hpcdist.runs.remote import FILE, Remote, known_hosts
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    from typing_extensions import Self

SSH_VARIABLE = "HPCDIST_SSH"
NONE_THERE = 127
"""Exit code of a script where the host has no hpcdist."""
_LOST = 255
"""Exit code of ssh where it does not reach the host, or not any more."""
_PERSIST_S = 60
"""So long a login is kept where this process is killed."""
_MOST_BYTES = 64_000_000
_LOGIN = 'exec 3>&1 4>&2; exec bash -lc "$0" >/dev/null 2>&1'
"""Start a login shell whose profile's output is no part of the answer; for bash."""
_START = 'exec >&3 2>&4 3>&- 4>&-; eval "$(printf %s SCRIPT | base64 -d | gzip -d)"'
"""Both stand in single quotes, which all shells read alike if there is none of ' ! \\ in them."""
_DEFAULTS = {
    "connecttimeout": ("none", "ConnectTimeout=20"),
    "serveraliveinterval": ("0", "ServerAliveInterval=15"),
}
"""Setting of ssh -> its value where the user has set none, and what is used in its place."""
_HINTS = {
    "IDENTIFICATION HAS CHANGED": "ask the site whether its login node has a new key; if so, "
    "ssh-keygen -R HOST removes the old one",
    "Host key verification failed": "log in once by hand, and compare the key with the site's",
    "Could not resolve": "look at the name, and at Host in ~/.ssh/config",
    "Permission denied": "log in by hand once: with ControlMaster and ControlPersist in "
    "~/.ssh/config one login serves many commands, also with a one-time password",
    "timed out": "look whether you are in the site's network or VPN",
}


class ConnectionLostError(SchedulerError):
    """The connection broke while a command was at work."""


class Where(NamedTuple):
    """The place of some runs: a host, and the project there."""

    host: Host
    project: str
    runs: str | None = None
    """The folder of the runs, where it is another than the project's."""

    @classmethod
    def of(cls, run: Run, remote: Remote) -> Where:
        """Return where a record leads; UserError for a host that the user has never named."""
        host = parse_host(remote.host, origin=f"{run.path / FILE}: host")
        if host.name not in known_hosts():
            raise UserError(
                f"{run.path / FILE} leads to {host.name}, which was never named on this machine",
                hint=f"if you know it, look at the run with: --host {host.name}",
            )
        return cls(Host(remote.host, remote.folder), remote.project, remote.runs)


class Connection:
    """A login at a host, from `with` to its end: all that is called meanwhile shares it, and the
    user is asked for nothing twice."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._ssh = shlex.split(os.environ.get(SSH_VARIABLE, "")) or ["ssh"]
        options = ["ClearAllForwardings=yes"]
        argv = [*self._ssh, "-G", "--", host.name]
        try:
            said = subprocess.check_output(argv, stderr=subprocess.DEVNULL, timeout=10, text=True)
        except (OSError, subprocess.SubprocessError):  # the connection says why
            said = ""
        settings = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        for name, (unset, option) in _DEFAULTS.items():
            options += [option] if settings.get(name, unset) == unset else []
        # One that the user shares is theirs to begin and to end.
        self._is_own = settings.get("controlpath", "none") == "none"
        self._folder = tempfile.mkdtemp(prefix="hpcdist-")
        if self._is_own:
            options.append(f"ControlPath={self._folder}/socket")
        self._options = [word for option in options for word in ("-o", option)]

    def __enter__(self) -> Self:
        master = ["-o", "ControlMaster=yes", "-o", f"ControlPersist={_PERSIST_S}", "-fN"]
        argv = [*self._words(*(master if self._is_own else ())), "--", self.host.name]
        argv += [] if self._is_own else ["true"]
        quiet = subprocess.DEVNULL
        with tempfile.TemporaryFile() as errors:
            try:
                code = subprocess.call(argv, stdin=quiet, stdout=quiet, stderr=errors)
            except OSError as error:
                raise SchedulerError(f"{argv[0]} cannot be run: {error.strerror}") from None
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        if code == 0:
            return self
        shutil.rmtree(self._folder, ignore_errors=True)
        print(said, end="", file=sys.stderr)
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = f": {one_line(lines[-1])}" if lines else ""
        hint = next((hint for words, hint in _HINTS.items() if words in said), "")
        hint = hint or f"try it by hand: ssh {self.host.name} true"
        raise SchedulerError(f"ssh does not reach {self.host.name}{last}", hint=hint)

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            argv = [*self._words("-O", "exit"), "--", self.host.name]
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, script: str, *, is_captured: bool = False) -> tuple[int, bytes]:
        """Run a script of bash at the host, in a login shell; return its exit code, and what it
        printed where that is captured. On a terminal it has one there, too.

        Raises ConnectionLostError, and SchedulerError where there is no hpcdist.
        """
        streams = (sys.stdin, sys.stdout, sys.stderr)
        is_terminal = not is_captured and all(stream.isatty() for stream in streams)
        sys.stdout.flush()
        with subprocess.Popen(
            self.command(script, terminal="-tt" if is_terminal else "-T"),
            stdin=None if is_terminal else subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_captured else None,
        ) as process:
            out = process.stdout.read(_MOST_BYTES) if process.stdout is not None else b""
            if len(out) == _MOST_BYTES:
                process.kill()
                raise SchedulerError(f"{self.host.name} prints without an end")
        if process.returncode == _LOST or process.returncode < 0:
            raise ConnectionLostError(
                f"the connection to {self.host.name} broke",
                hint="what was submitted continues there: look with hpcdist status",
            )
        if process.returncode == NONE_THERE:
            raise SchedulerError(
                f"there is no hpcdist at {self.host.name}",
                hint="install it there, where your login shell finds it: docs/laptop.md says how",
            )
        return process.returncode, out

    def command(self, script: str, *, terminal: str = "-T") -> list[str]:
        """Return the command that runs a script of bash at the host, in a login shell."""
        packed = base64.b64encode(gzip.compress(script.encode(errors="surrogateescape")))
        start = _START.replace("SCRIPT", packed.decode())
        argv = self._words(terminal=terminal)
        return [*argv, "--", self.host.name, f"exec bash -c '{_LOGIN}' '{start}'"]

    def copy(self, words: list[str], *, given: bytes = b"") -> None:
        """Copy by rsync over the connection, with `given` on stdin; UserError where it cannot."""
        argv = ["rsync", "-sz", "-e", shlex.join(self._words()), *words]
        try:
            done = subprocess.run(argv, input=given, capture_output=True, check=False)
        except FileNotFoundError:
            raise UserError("rsync is not installed here", hint="install it, and there") from None
        if done.returncode == _LOST:
            raise ConnectionLostError(f"the connection to {self.host.name} broke")
        if done.returncode:
            said = "; ".join(done.stderr.decode(errors="replace").strip().splitlines()[:3])
            raise UserError(
                f"rsync cannot copy between here and {self.host.name}: {one_line(said)}",
                hint="see whether the disk there has room, and whether rsync is installed there",
            )

    def _words(self, *options: str, terminal: str = "-T") -> list[str]:
        return [*self._ssh, terminal, *self._options, *options]
