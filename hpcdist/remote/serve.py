"""The host's side: `hpcdist serve`, which ssh starts, runs a command for a laptop.

The command is a fork of this process: its arguments, which may hold secrets, stand in no list of
processes. It works in the copy of the laptop's work tree, or in the project's folder, and is told
to end when the laptop is gone.
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
from hpcdist.base.errors import EXIT_FAILED, SchedulerError
from hpcdist.base.version import __version__
from hpcdist.cluster.load import PROFILES_VARIABLE
from hpcdist.remote.bring import list_runs
from hpcdist.remote.request import GREETING, MOST_BYTES, Request, decode
from hpcdist.remote.tree import arrive
from hpcdist.runs.run import RUNS_VARIABLE, cannot_write
from hpcdist.submission.once import SUBMISSION_VARIABLE
from hpcdist.submission.workspace import SUBMIT_DIR_VARIABLE

RunCommand = Callable[[list[str]], int]
_CHUNK_BYTES = 1 << 16


def serve(run_command: RunCommand) -> int:
    """Do what the laptop asks for on stdin, and return the exit code of it."""
    print(GREETING, __version__, flush=True)
    request = decode(sys.stdin.buffer.readline(MOST_BYTES), Request)
    project, runs = project_of(request)
    with contextlib.ExitStack() as stack:
        cwd = stands_for = project
        if request.tree is not None:
            stands_for = project / request.within
            cwd = arrive(request, project, runs)
        variables = request.variables | stack.enter_context(_profiles(request, project))
        variables |= {
            RUNS_VARIABLE: str(runs),
            SUBMIT_DIR_VARIABLE: str(stands_for),
            "HPCDIST_NO_PAGER": "1",  # it would read keys that are pressed at the laptop
        }
        if not request.argv:
            sys.stdout.buffer.write(list_runs(request, runs))
            return 0
        if request.submission is not None:
            variables[SUBMISSION_VARIABLE] = request.submission
        return _run(request, run_command, cwd, variables)


def project_of(request: Request) -> tuple[Path, Path]:
    """Return the folder of a project, which is made where it is not there, and that of its runs."""
    folder = Path.home() / os.path.expanduser(request.folder)
    if request.project in {"", ".", ".."} or "/" in request.project:
        raise SchedulerError(f"{request.project!r} is not the name of a project")
    project = folder / request.project
    try:
        project.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(project, error) from None
    runs = request.runs or os.environ.get(RUNS_VARIABLE) or "runs"
    return project, project / os.path.expanduser(runs)


@contextlib.contextmanager
def _profiles(request: Request, project: Path) -> Iterator[dict[str, str]]:
    """Give the variable that names the laptop's profiles, in a file that is gone afterwards."""
    if request.profiles is None:
        yield {}
        return
    with tempfile.NamedTemporaryFile("w", dir=project, prefix=".profiles-", suffix=".yaml") as file:
        file.write(request.profiles)
        file.flush()
        yield {PROFILES_VARIABLE: file.name}


def _run(request: Request, run_command: RunCommand, cwd: Path, variables: dict[str, str]) -> int:
    """Run a command in a fork, and return its exit code. What the laptop's terminal shows of it
    goes through a terminal here, too."""
    master = slave = None
    if request.out or request.err:
        master, slave = pty.openpty()
        _as_is(slave)
        _resize(master, request.columns, request.lines)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for is_terminal, number in ((request.out, 1), (request.err, 2)):
                if is_terminal and slave is not None:
                    os.dup2(slave, number)
            os.closerange(3, 256)
            os.environ.update(variables)
            os.chdir(cwd)
            served.serve()
            sys.argv = ["hpcdist", *request.argv]
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
            code = run_command(request.argv)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:  # noqa: BLE001 - the fork must not go on as the server
            traceback.print_exc()
            code = EXIT_FAILED
        os._exit(code)
    if slave is not None:
        os.close(slave)
    _relay(pid, master)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _relay(pid: int, master: int | None) -> None:
    """Pass on what the command prints on its terminal, and signals to it, until it has ended."""
    ended = os.pidfd_open(pid)
    heard, waited = b"", [0, ended, *([] if master is None else [master])]
    while ended in waited:
        readable, _, _ = select.select(waited, [], [])
        if master in readable and master is not None:
            data = b""
            with contextlib.suppress(OSError):  # nobody writes to it any more
                data = os.read(master, _CHUNK_BYTES)
            if data:
                with contextlib.suppress(OSError):  # the laptop is gone
                    os.write(1, data)
                continue  # all of it before the command counts as ended
            waited.remove(master)
        if ended in readable:
            waited.remove(ended)
        if 0 in readable:
            data = os.read(0, _CHUNK_BYTES)
            *lines, heard = (heard + data).split(b"\n")
            if not data:
                waited.remove(0)
                lines = [b"%d 0 0" % signal.SIGHUP]
            for line in lines:
                number, columns, height = map(int, line.split())
                if number == signal.SIGWINCH and master is not None:
                    _resize(master, columns, height)
                # To the command, and not to sbatch, say, which it may be waiting for.
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(ended, number)
    os.close(ended)


def _resize(master: int, columns: int, lines: int) -> None:
    if 0 < columns < 1 << 16 and 0 < lines < 1 << 16:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def _as_is(terminal: int) -> None:
    """Have a terminal change nothing of what is printed: the laptop's own does."""
    values = termios.tcgetattr(terminal)
    values[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, values)
