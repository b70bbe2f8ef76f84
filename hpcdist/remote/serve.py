"""The host's side: `hpcdist serve`, which ssh starts, runs commands for a laptop.

A command is a fork of this process: its arguments, which may hold secrets, stand in no list of
processes. It works in a copy of the laptop's work tree, or in the project's folder, and is
told to end when the laptop is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcdist.base import files, served
from hpcdist.base.errors import EXIT_FAILED, HpcdistError
from hpcdist.base.version import __version__
from hpcdist.cluster.load import PROFILES_VARIABLE
from hpcdist.remote import wire
from hpcdist.remote.bring import collect
from hpcdist.remote.tree import received
from hpcdist.runs.run import RUNS_VARIABLE, cannot_write
from hpcdist.submission.once import SUBMISSION_VARIABLE
from hpcdist.submission.workspace import SUBMIT_DIR_VARIABLE

RunCommand = Callable[[list[str]], int]
_CHUNK_BYTES = 1 << 16


class _LaptopGoneError(Exception):
    """The connection is at its end."""


class Server:
    """Answers one laptop until it hangs up."""

    def __init__(self, word: str, run_command: RunCommand) -> None:
        self._word = word
        self._run_command = run_command
        self._in = 0
        self._out = os.dup(1)
        os.dup2(2, 1)  # what anything prints by itself is no part of the conversation
        self._frames = wire.Frames()

    def serve(self) -> None:
        os.write(self._out, f"\nhpcdist:{self._word}:serves\n".encode())
        self._send(wire.message(wire.Hello(protocol=wire.PROTOCOL, version=__version__)))
        with contextlib.suppress(_LaptopGoneError):
            while True:
                request = self._next_message()
                try:
                    self._answer(request)
                except HpcdistError as error:
                    self._refuse(error)
                except OSError as error:
                    self._refuse(HpcdistError(f"{error.filename or 'a file'}: {error.strerror}"))

    def _answer(self, request: wire.Request) -> None:
        if isinstance(request, wire.Bring):
            _, runs = project_of(request.place)
            for part in collect(request, runs):
                self._send(part)
        elif isinstance(request, wire.Call):
            project, runs = project_of(request.place)
            with contextlib.ExitStack() as stack:
                cwd = stands_for = project
                if request.tree is not None:
                    stands_for = project / request.tree.within
                    cwd = stack.enter_context(received(request.tree, project, runs, self._ask))
                environment = stack.enter_context(_profiles(request, project))
                variables = environment | {
                    RUNS_VARIABLE: str(runs),
                    SUBMIT_DIR_VARIABLE: str(stands_for),
                    "HPCDIST_NO_PAGER": "1",  # it would read keys that are pressed at the laptop
                }
                if request.submission is not None:
                    variables[SUBMISSION_VARIABLE] = request.submission
                command = _Command(request, self._word, self._run_command, cwd, variables)
                self._send(wire.message(wire.Ended(code=self._relay(command))))

    def _ask(self, missing: list[str]) -> Iterator[bytes]:
        self._send(wire.message(wire.Missing(sha256=missing)))
        while True:
            kind, content = self._next_frame()
            if kind != wire.DATA:
                raise wire.WireError("something else came than the work tree")
            if not content:
                return
            yield content

    def _relay(self, command: _Command) -> int:
        """Pass on what the command prints until it has ended, and signals to it."""
        listens = True
        while command.outputs:
            fds = [*command.outputs, *([self._in] if listens else [])]
            readable, _, _ = select.select(fds, [], [])
            try:
                if self._in in readable:
                    self._take(command)
                for fd in [fd for fd in command.outputs if fd in readable]:
                    kind, data = command.read(fd)
                    if data:
                        self._send(wire.frame(kind, data))
            except _LaptopGoneError:
                command.signal(signal.SIGHUP)
                command.drain()
                raise
        return command.wait()

    def _take(self, command: _Command) -> None:
        self._receive()
        while (found := self._frames.next()) is not None:
            request = wire.decode(found[1], wire.Request)
            if isinstance(request, wire.Signal):
                command.pass_on(request)

    def _refuse(self, error: HpcdistError) -> None:
        refusal = wire.Refused(
            message=_utf8(error.message), hint=_utf8(error.hint), code=error.exit_code
        )
        self._send(wire.message(refusal))

    def _next_message(self) -> wire.Request:
        while True:
            kind, content = self._next_frame()
            if kind != wire.MESSAGE:
                continue  # of what was refused meanwhile
            request: wire.Request = wire.decode(content, wire.Request)
            if not isinstance(request, wire.Signal):
                return request

    def _next_frame(self) -> tuple[bytes, bytes]:
        while (found := self._frames.next()) is None:
            self._receive()
        return found

    def _receive(self) -> None:
        if not (data := os.read(self._in, _CHUNK_BYTES)):
            raise _LaptopGoneError
        self._frames.feed(data)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._out, view) :]
        except OSError:
            raise _LaptopGoneError from None


def _utf8(text: str) -> str:
    """Return a text that can be sent: what is no UTF-8 in the name of a file is escaped."""
    return text.encode(errors="backslashreplace").decode()


def project_of(place: wire.Place) -> tuple[Path, Path]:
    """Return the folder of a project, which is made where it is not there, and that of its runs."""
    folder = Path.home() / os.path.expanduser(place.folder)
    if place.project in {"", ".", ".."} or "/" in place.project:
        raise wire.WireError(f"{place.project!r} is not the name of a project")
    project = folder / place.project
    try:
        project.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(project, error) from None
    runs = place.runs or os.environ.get(RUNS_VARIABLE) or "runs"
    return project, project / os.path.expanduser(runs)


@contextlib.contextmanager
def _profiles(request: wire.Call, project: Path) -> Iterator[dict[str, str]]:
    """Give the variable that names the laptop's profiles, in a file that is gone afterwards."""
    if request.profiles is None:
        yield {}
        return
    with tempfile.NamedTemporaryFile("w", dir=project, prefix=".profiles-", suffix=".yaml") as file:
        file.write(request.profiles)
        file.flush()
        yield {PROFILES_VARIABLE: file.name}


class _Command:
    """One command, in a fork with a session of its own; what the laptop's terminal shows of it goes
    through a terminal here, too."""

    def __init__(
        self,
        request: wire.Call,
        word: str,
        run_command: RunCommand,
        cwd: Path,
        variables: dict[str, str],
    ) -> None:
        terminal = request.terminal
        self._master: int | None = None
        slave = None
        if terminal.out or terminal.err:
            self._master, slave = pty.openpty()
            _as_is(slave)
            self._resize(terminal.columns, terminal.lines)
        self.outputs: dict[int, bytes] = {}
        """Descriptors to read from -> kind of the frames."""
        writers = []
        for is_terminal, kind in ((terminal.out, wire.OUT), (terminal.err, wire.ERR)):
            if is_terminal and slave is not None and self._master is not None:
                self.outputs.setdefault(self._master, kind)
                writers.append(slave)
            else:
                reader, writer = os.pipe()
                self.outputs[reader] = kind
                writers.append(writer)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(writers[0], 1)
                os.dup2(writers[1], 2)
                os.closerange(3, 256)
                os.environ.update(variables | terminal.variables)
                os.chdir(cwd)
                served.serve_by(word)
                sys.argv = ["hpcdist", *request.argv]
                for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
                    stream.reconfigure(line_buffering=os.isatty(fd))  # type: ignore[union-attr]
                code = run_command(request.argv)
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # noqa: BLE001 - the fork must not go on as the server
                traceback.print_exc()
                code = EXIT_FAILED
            os._exit(code)
        for fd in {*writers}:
            os.close(fd)

    def read(self, fd: int) -> tuple[bytes, bytes]:
        """Return what was printed, and for which stream; nothing at the end."""
        kind = self.outputs[fd]
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except OSError:  # a terminal that nobody writes to any more
            data = b""
        if not data:
            os.close(fd)
            del self.outputs[fd]
        return kind, data

    def pass_on(self, request: wire.Signal) -> None:
        if request.number == signal.SIGWINCH:
            self._resize(request.columns, request.lines)
        self.signal(request.number)

    def signal(self, number: int) -> None:
        """Send a signal to the command, and not to sbatch, say, which it may be waiting for."""
        with contextlib.suppress(OSError, ValueError):
            os.kill(self._pid, number)

    def drain(self) -> None:
        """Wait for the end of a command whose laptop has gone: a submission is made whole, or not
        at all."""
        while self.outputs:
            readable, _, _ = select.select([*self.outputs], [], [])
            for fd in readable:
                self.read(fd)
        self.wait()

    def wait(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _resize(self, columns: int, lines: int) -> None:
        if self._master is not None and 0 < columns < 1 << 16 and 0 < lines < 1 << 16:
            size = struct.pack("HHHH", lines, columns, 0, 0)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)


def _as_is(terminal: int) -> None:
    """Have a terminal change nothing of what is printed: the laptop's own does."""
    values = termios.tcgetattr(terminal)
    values[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, values)
