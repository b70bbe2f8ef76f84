"""The connection to a host: the user's own ssh, with their configuration, and nothing asked twice.

`ssh` is the one on PATH, or the words of HPCDIST_SSH, such as `ssh -F FILE`. Names and arguments of
commands travel within the connection and never in a command line, which others could read, and
which each shell would quote in its own way.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import HpcdistError, SchedulerError, UserError
from hpcdist.base.text import one_line
from hpcdist.base.version import __version__
from hpcdist.cluster.host import Host
from hpcdist.remote import wire

if TYPE_CHECKING:
    from typing_extensions import Self

SSH_VARIABLE = "HPCDIST_SSH"
START_FILE = "${XDG_DATA_HOME:-$HOME/.local/share}/hpcdist/start"
"""The script at the host that starts hpcdist, which `hpcdist setup` writes."""

_START = (
    f's="{START_FILE}"; if [ -x "$s" ]; then exec "$s" serve "$0"; fi; '
    "if command -v hpcdist >/dev/null; then exec hpcdist serve $0; fi; "
    "echo; echo hpcdist:$0:none; exit 127"
)
"""A command for bash, in single quotes, which all shells read alike if it has none of ' ! \\."""

_DEFAULTS = {
    "connecttimeout": ("none", "ConnectTimeout=20"),
    "serveraliveinterval": ("0", "ServerAliveInterval=15"),
}
"""Setting of ssh -> its value where the user has set none, and what is used in its place."""
_MOST_NOISE_BYTES = 1 << 20
_HELD_S = 2.0
"""So long what ssh and the host's shell print is held back, and then shown: ssh may be asking for
something. Of a connection that comes about sooner nobody needs a banner."""
_CHUNK_BYTES = 1 << 16
_TOGETHER = "bring them together with: hpcdist setup"
_ANSWER_LIMIT_S = 120.0
"""Time for an answer where nobody can be typing a password."""
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
    """The connection broke after the host had answered."""


def ssh_words() -> list[str]:
    """Return the command ssh: that of HPCDIST_SSH, else the one on PATH."""
    try:
        return shlex.split(os.environ.get(SSH_VARIABLE, "")) or ["ssh"]
    except ValueError as error:
        raise UserError(
            f"{SSH_VARIABLE} cannot be read: {error}", hint="write it as in a shell: ssh -F FILE"
        ) from None


def ssh_command(host: Host, command: str) -> list[str]:
    """Return the words that run a command at a host."""
    words = [*ssh_words(), "-T", "-o", "ClearAllForwardings=yes"]
    for option in (*_unset_options(host), *([] if _can_ask() else ["BatchMode=yes"])):
        words += ["-o", option]
    return [*words, "--", host.name, command]


def _unset_options(host: Host) -> list[str]:
    """Return limits of time where the user's configuration has none: a host may be asleep."""
    try:
        done = subprocess.run(
            [*ssh_words(), "-G", "--", host.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):  # the connection says why
        return []
    values = dict(
        line.split(" ", 1)
        for line in done.stdout.decode(errors="replace").splitlines()
        if " " in line
    )
    return [
        option for name, (unset, option) in _DEFAULTS.items() if values.get(name, unset) == unset
    ]


def _can_ask() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return bool(os.environ.get("SSH_ASKPASS"))
    return True


class Connection:
    """One ssh, at whose other end `hpcdist serve` answers; closed by `with`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.word = secrets.token_hex(8)
        self._frames = wire.Frames()
        self._noise = b""
        self._words = b""
        """The words of ssh so far, and its host's shell on stderr."""
        self._held = True
        self._has_begun = False
        self._began_s = time.monotonic()
        argv = ssh_command(host, f"exec bash -lc '{_START}' {self.word}")
        # The command decides on Ctrl-C: it is passed on, and ssh must not end by it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as error:
            raise SchedulerError(
                f"{argv[0]} cannot be run: {error.strerror}",
                hint="install OpenSSH, or set HPCDIST_SSH",
            ) from None
        finally:
            signal.signal(signal.SIGINT, before)
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._in, self._out, self._err = (
            self._process.stdin,
            self._process.stdout,
            self._process.stderr,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
        if not self._has_begun:  # it may be waiting for a host that is asleep
            self.end()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._out.close()
        self._err.close()

    def end(self) -> None:
        """End ssh at once."""
        self._process.terminate()

    def send(self, data: bytes) -> None:
        """Send a frame; what is lost with the connection is noticed when the answer is read."""
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[self._in.write(view) or 0 :]

    def hear(self, wake: int | None = None) -> tuple[bytes, bytes] | None:
        """Return the next frame; None when `wake` can be read before. Raises SchedulerError where
        the host is not reached, and ConnectionLostError where it is not any more."""
        while (found := self._frames.next() if self._has_begun else None) is None:
            fds = [self._out.fileno(), self._err.fileno(), *([] if wake is None else [wake])]
            readable, _, _ = select.select(fds, [], [], 0.2 if not self._has_begun else None)
            self._look_at_time()
            if self._err.fileno() in readable:
                self._take_words(os.read(self._err.fileno(), _CHUNK_BYTES))
            if self._out.fileno() in readable:
                data = os.read(self._out.fileno(), _CHUNK_BYTES)
                if not data:
                    raise self._lost()
                self._take(data)
            elif wake is not None and wake in readable:
                return None
        return found

    def reply(self) -> Any:
        """Return the next message, which must be the next frame. Raises what the host refused."""
        heard = self.hear()
        assert heard is not None
        kind, content = heard
        if kind != wire.MESSAGE:
            raise wire.WireError(f"{self.host.name} sent something else than an answer")
        return self.checked(content)

    def checked(self, content: bytes) -> Any:
        """Return a message; raise what the host refused."""
        reply = wire.decode(content, wire.Reply)
        if isinstance(reply, wire.Refused):
            error = HpcdistError(f"{self.host.name}: {reply.message}", hint=reply.hint)
            error.exit_code = reply.code
            raise error
        return reply

    def data(self) -> Iterator[bytes]:
        """Give the pieces of a packed stream, to its end."""
        while True:
            heard = self.hear()
            assert heard is not None
            kind, content = heard
            if kind == wire.MESSAGE:
                self.checked(content)
            if kind != wire.DATA:
                raise wire.WireError(f"{self.host.name} sent something else than files")
            if not content:
                return
            yield content

    def greet(self) -> str | None:
        """Wait for the host's first words; return what to know about its version."""
        hello = self.reply()
        if not isinstance(hello, wire.Hello):
            raise wire.WireError(f"{self.host.name} did not begin as hpcdist does")
        if hello.protocol != wire.PROTOCOL:
            side = "the host" if hello.protocol < wire.PROTOCOL else "this machine"
            raise UserError(
                f"{self.host.name} has hpcdist {hello.version}, this machine {__version__}: they "
                "do not understand each other",
                hint=f"{side} has the older version; {_TOGETHER} {self.host.name}",
            )
        if hello.version == __version__:
            return None
        return (
            f"{self.host.name} has hpcdist {hello.version}, this machine {__version__}; "
            f"{_TOGETHER} {self.host.name}"
        )

    def _take(self, data: bytes) -> None:
        if self._has_begun:
            self._frames.feed(data)
            return
        self._noise += data
        mark = f"hpcdist:{self.word}:".encode()
        _, found, rest = self._noise.partition(mark)
        if found and b"\n" in rest:
            how, _, rest = rest.partition(b"\n")
            if how != b"serves":
                raise SchedulerError(
                    f"there is no hpcdist at {self.host.name}",
                    hint=f"install it there with: hpcdist setup {self.host.name}",
                )
            self._has_begun, self._noise, self._words = True, b"", b""
            self._frames.feed(rest)
        elif len(self._noise) > _MOST_NOISE_BYTES:
            self.end()
            raise SchedulerError(
                f"the shell at {self.host.name} prints without an end before it runs a command",
                hint="look at what its profile prints: ssh HOST true",
            )

    def _take_words(self, data: bytes) -> None:
        if self._has_begun or not self._held:
            _show(data)
        self._words = (self._words + data)[-_MOST_NOISE_BYTES:]

    def _look_at_time(self) -> None:
        waited_s = time.monotonic() - self._began_s
        if self._has_begun:
            return
        if self._held and waited_s > _HELD_S:
            self._held = False
            _show(self._words)
        if waited_s > _ANSWER_LIMIT_S and not _can_ask():
            self.end()
            raise SchedulerError(
                f"{self.host.name} has not answered within {_ANSWER_LIMIT_S:.0f} s",
                hint=f"try it by hand: ssh {self.host.name} true",
            )

    def _lost(self) -> SchedulerError:
        """Return the error for a connection that is at its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        with contextlib.suppress(OSError):
            while select.select([self._err.fileno()], [], [], 0)[0] and (
                data := os.read(self._err.fileno(), _CHUNK_BYTES)
            ):
                self._take_words(data)
        code = self._process.poll()
        if self._held and not self._has_begun:
            _show(self._words)
        text = self._words.decode(errors="replace")
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        said = f": {one_line(last)}" if last else ""
        if self._has_begun:
            return ConnectionLostError(f"the connection to {self.host.name} broke{said}")
        hint = next((hint for words, hint in _HINTS.items() if words in text), "")
        hint = hint or f"try it by hand: ssh {self.host.name} true"
        if code == 255 or code is None or code < 0:
            return SchedulerError(f"ssh does not reach {self.host.name}{said}", hint=hint)
        return SchedulerError(
            f"the shell at {self.host.name} ended with exit code {code}{said}", hint=hint
        )


@contextlib.contextmanager
def connected(host: Host, note: Callable[[str], None]) -> Iterator[Connection]:
    """Connect, and close at the end; `note` is told what to know about the host's version."""
    with Connection(host) as connection:
        if said := connection.greet():
            note(said)
        yield connection


def _show(data: bytes) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
