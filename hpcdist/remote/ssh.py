"""The connection to a host: the user's own ssh, with their configuration, and one login for all
that a command does there.

`ssh` is the one on PATH, or the words of HPCDIST_SSH, such as `ssh -F FILE`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from hpcdist.base.errors import SchedulerError, UserError
from hpcdist.base.text import one_line
from hpcdist.cluster.host import Host, parse_host
from hpcdist.runs.remote import FILE, Remote, known_hosts
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

SSH_VARIABLE = "HPCDIST_SSH"
START_FILE = "${XDG_DATA_HOME:-$HOME/.local/share}/hpcdist/start"
"""The script at the host that starts hpcdist, which `hpcdist setup` writes."""
LOST = 255
"""Exit code of ssh where it does not reach the host, or not any more."""
_PERSIST_S = 60
"""So long a login is kept where this process is killed."""
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


def ssh_words() -> list[str]:
    """Return the command ssh: that of HPCDIST_SSH, else the one on PATH."""
    try:
        return shlex.split(os.environ.get(SSH_VARIABLE, "")) or ["ssh"]
    except ValueError as error:
        raise UserError(
            f"{SSH_VARIABLE} cannot be read: {error}", hint="write it as in a shell: ssh -F FILE"
        ) from None


class Connection:
    """A login at a host, from `with` to its end: every command that is started with `words` uses
    it, and nothing is asked twice."""

    def __init__(self, host: Host) -> None:
        self.host = host
        options = ["ClearAllForwardings=yes", *([] if _can_ask() else ["BatchMode=yes"])]
        settings = self._settings()
        options += [
            option
            for name, (unset, option) in _DEFAULTS.items()
            if settings.get(name, unset) == unset
        ]
        # One that the user shares is theirs to begin and to end.
        self._is_own = settings.get("controlpath", "none") == "none"
        self._folder = tempfile.mkdtemp(prefix="hpcdist-")
        if self._is_own:
            options.append(f"ControlPath={self._folder}/socket")
        self._options = [word for option in options for word in ("-o", option)]

    def words(self, *options: str) -> list[str]:
        """Return the words of an ssh that shares this login; the host, and a command, follow."""
        return [*ssh_words(), "-T", *self._options, *options]

    def command(self, command: str) -> list[str]:
        """Return the words that run a command at the host."""
        return [*self.words(), "--", self.host.name, command]

    def __enter__(self) -> Self:
        try:
            if self._is_own:
                self._log_in()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def _log_in(self) -> None:
        master = ["-o", "ControlMaster=yes", "-o", f"ControlPersist={_PERSIST_S}", "-fN"]
        with tempfile.TemporaryFile() as said:
            code = self._run([*self.words(*master), "--", self.host.name], said.fileno())
            said.seek(0)
            text = said.read().decode(errors="replace")
        if code:
            print(text, end="", file=sys.stderr)
            raise self.unreached(text)

    def __exit__(self, *_: object) -> None:
        if self._is_own:
            self._run([*self.words("-O", "exit"), "--", self.host.name], subprocess.DEVNULL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def unreached(self, said: str = "") -> SchedulerError:
        """Return the error for a host that is not reached, with what ssh said."""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = f": {one_line(lines[-1])}" if lines else ""
        hint = next((hint for words, hint in _HINTS.items() if words in said), "")
        hint = hint or f"try it by hand: ssh {self.host.name} true"
        return SchedulerError(f"ssh does not reach {self.host.name}{last}", hint=hint)

    def _settings(self) -> dict[str, str]:
        """Return the user's settings of ssh for the host."""
        try:
            done = subprocess.run(
                [*ssh_words(), "-G", "--", self.host.name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):  # the connection says why
            return {}
        lines = done.stdout.decode(errors="replace").splitlines()
        return dict(line.split(" ", 1) for line in lines if " " in line)

    def _run(self, words: list[str], stderr: int) -> int:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                check=False,
            ).returncode
        except OSError as error:
            raise SchedulerError(
                f"{words[0]} cannot be run: {error.strerror}",
                hint="install OpenSSH, or set HPCDIST_SSH",
            ) from None
        finally:
            signal.signal(signal.SIGINT, before)


def copy(
    connection: Connection, words: list[str], *, given: bytes, folder: Path | str | None = None
) -> None:
    """Copy by rsync over the connection, with `given` on stdin; UserError where it cannot."""
    shell = ["rsync", "-sz", "-e", shlex.join(connection.words())]
    try:
        done = subprocess.run(
            [*shell, *words], input=given, cwd=folder, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise UserError(
            "rsync is not installed here: it copies files to and from hosts",
            hint="install it, here and at the host",
        ) from None
    if done.returncode == LOST:
        raise ConnectionLostError(f"the connection to {connection.host.name} broke")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        shown = "; ".join(map(one_line, said[:3]))
        raise UserError(
            f"rsync cannot copy between here and {connection.host.name}: {shown}",
            hint="see whether the disk there has room, and whether rsync is installed there",
        )


def _can_ask() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return bool(os.environ.get("SSH_ASKPASS"))
    return True
