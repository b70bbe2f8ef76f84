"""The forkserver of a job with a container image: the agent, outside, has the runtime start it.

The agent stays where the scheduler's commands are, and torch and the ranks are in the image. A
runtime may pass on neither descriptors nor variables, and need not be a parent of what it starts
(pyxis has a step of Slurm's for it). So the forkserver asks for them at a socket that has an
address in the host's network alone, and no file.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import NoReturn

import msgspec

from hpcdist.agent.forkserver import StackMemory, run_forkserver
from hpcdist.agent.messages import FROM_FORKSERVER, TO_FORKSERVER, Channel, FromForkserver
from hpcdist.agent.node import CannotLaunchError, OwnNode
from hpcdist.base import files
from hpcdist.base.files import close_umask
from hpcdist.base.needs import OLDEST
from hpcdist.base.secrets import Stars
from hpcdist.job.spec import FunctionJob
from hpcdist.machine.containers import (
    InContainer,
    environment_inside,
    environment_of_runtime,
    start_command,
)
from hpcdist.machine.process import send_signal, use_all_descriptors
from hpcdist.rank.board import ProgressBoard
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import JobPlace

_INSIDE = f"""
import os, signal, socket, struct, sys
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
if sys.version_info < {OLDEST}:
    sys.exit("the image has Python %d.%d, and hpcdist needs %d.%d or newer" %
             (sys.version_info[:2] + {OLDEST}))
agent = socket.socket(socket.AF_UNIX)
try:
    agent.connect("\\0" + sys.argv[1])
except OSError:
    sys.exit("the agent cannot be reached: it has ended, or the image has another network")
peer = agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
if struct.unpack("iii", peer)[1] != os.geteuid():
    sys.exit("the agent has ended")
descriptors = []
while agent.recv(1, socket.MSG_PEEK) == bytes(1):
    descriptors += socket.recv_fds(agent, 1, 1)[1]
agent.recv(1)
handed = b"".join(iter(lambda: agent.recv(1 << 16), b"")).split(bytes(1))
for descriptor in descriptors:
    os.set_inheritable(descriptor, True)
environment = dict(os.environb)
environment.update(variable.split(b"=", 1) for variable in handed[4:])
path = [environment[b"PYTHONPATH"], *filter(None, [os.environb.get(b"PYTHONPATH")])]
environment[b"PYTHONPATH"] = os.fsencode(os.pathsep).join(path)
words = [sys.executable, "-u", "-c", *handed[:4], *map(str, descriptors)]
os.execve(sys.executable, words, environment)
"""
"""Takes what the agent hands over, whatever Python this is. A warning of the scheduler's, which a
step of Slurm's gets, too, is for the agent."""
_FORKSERVER = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.base.needs import check
check("the image")
from hpcdist.agent.image import main
main()
"""
_PROCESSES = "/proc/self/ns/pid"
"""Equal for processes that know each other by the same numbers."""
_SAID_BYTES = 8192
_POLL_S = 0.2
_END_LIMIT_S = 1.0
_MARK = re.compile(r"^\S*(?:FATAL|ERROR|error)\S*\s*")


class ImageStart:
    """A node's forkserver in its image, as the agent has it."""

    def __init__(
        self,
        run: Run,
        node: OwnNode,
        container: InContainer,
        board: ProgressBoard,
        stacks: StackMemory,
    ) -> None:
        """Start it; what is said on stderr goes to the agent's log. Raises CannotLaunchError, where
        this node lacks what is needed for that."""
        self._image, self._runtime = container.image, container.runtime
        name = f"hpcdist-{token_hex(8)}"
        command = _command(container, name)
        door = socket.socket(socket.AF_UNIX)
        door.bind(f"\0{name}")
        door.listen()
        self._log = run.agent_log_file(node.place.node_rank)
        try:
            with self._log.open("ab") as log:
                self._begin = log.tell()
                self._process = subprocess.Popen(
                    command,
                    env=environment_of_runtime(container.runtime, os.environ),
                    stdin=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,  # the agent alone hears the scheduler
                )
        except OSError as error:
            sentence = f"{command[0]} cannot be run: {error.strerror}"
            raise CannotLaunchError(sentence) from None
        agent_end, server_end = socket.socketpair()
        self.channel: Channel[FromForkserver] = Channel(agent_end, FROM_FORKSERVER)
        place = msgspec.json.encode(node.place).decode()
        variables = environment_inside(container, os.environ).items()
        words = [_FORKSERVER, str(run.path), place, os.readlink(_PROCESSES)]
        handed = os.fsencode("\0".join([*words, *(f"{key}={value}" for key, value in variables)]))
        descriptors = [*board.descriptors, *stacks.descriptors]
        arguments = (door, handed, server_end, descriptors)
        threading.Thread(target=self._hand_over, args=arguments, daemon=True).start()

    def _hand_over(
        self, door: socket.socket, handed: bytes, server_end: socket.socket, descriptors: list[int]
    ) -> None:
        """Give the forkserver what it works with; where none comes, the channel ends."""
        with door, server_end:
            while self._process.poll() is None:
                if not select.select([door], [], [], _POLL_S)[0]:
                    continue
                connection, _ = door.accept()
                with connection, suppress(OSError):
                    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                    if struct.unpack("iii", peer)[1] != os.geteuid():  # another user's
                        continue
                    for one in (server_end.fileno(), *descriptors):
                        socket.send_fds(connection, [b"\0"], [one])
                    connection.sendall(b"\n" + handed)
                    return

    def end(self, *, has_begun: bool) -> str:
        """End the forkserver, whose channel is closed; return how it ended, in the words of the
        runtime where it had not begun."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_LIMIT_S)
        send_signal(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        ended = f"{self._runtime} ended with exit code {code}"
        if code < 0:
            ended = f"{self._runtime} was killed by {signal.Signals(-code).name}"
        if has_begun:
            return ended
        lines: list[str] = []
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(self._begin)
            lines = log.read(_SAID_BYTES).decode(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip()]
        # Of several lines of a runtime's, the first that says what is wrong.
        best = next((line for line in told if _MARK.match(line)), told[-1] if told else "nothing")
        return (
            f"no rank can be started in {self._image}: {ended} and said: "
            f"{_MARK.sub('', best) or best}"
        )


def _command(container: InContainer, name: str) -> list[str]:
    """Return what starts the forkserver, which finds its agent by a name. Raises CannotLaunchError
    where a mount is not to be had on this node."""
    try:
        mounts = [mount.filled(os.environ) for mount in container.mounts]
    except KeyError as error:
        sentence = f"container.mounts names ${error.args[0]}, which is not set in the job"
        raise CannotLaunchError(sentence) from None
    if missing := [mount.source for mount in mounts if not os.path.exists(mount.source)]:
        raise CannotLaunchError(f"container.mounts: there is no {missing[0]} there")
    command = start_command(
        msgspec.structs.replace(container, mounts=mounts),
        [container.python, "-u", "-c", _INSIDE, name],
        cwd=os.getcwd(),
        environment=os.environ,
    )
    shown = Stars().args(command[: command.index(_INSIDE)])
    files.print_line(f"hpcdist: {shlex.join(shown)} ...", sys.stderr)
    return command


def main() -> NoReturn:
    """Be the forkserver, in the image."""
    path, place, processes, *descriptors = sys.argv[1:]
    for descriptor in map(int, descriptors):
        os.set_inheritable(descriptor, False)
    close_umask()
    use_all_descriptors()
    if processes != os.readlink(_PROCESSES):
        sys.exit("the image has processes of its own: leave such options out of container.options")
    if not os.path.isdir(os.environ.get("TMPDIR", "/")):
        del os.environ["TMPDIR"]  # it is not mounted
    run = Run(Path(path))
    job, plan, spec = run.read_launch()
    own, theirs = sys.version.split()[0], spec.versions.get("python") or ""
    if isinstance(job, FunctionJob) and own.split(".")[:2] != theirs.split(".")[:2]:
        sys.exit(
            f"the function was pickled by Python {theirs}, whose byte code the image's {own} "
            "cannot load: submit by the same version, or submit a script"
        )
    node = OwnNode(job=job, plan=plan, place=msgspec.json.decode(place, type=JobPlace))
    os.environ.update(node.environment(os.environ))
    channel, *shared = map(int, descriptors)
    at = len(shared) - job.ranks_per_node
    run_forkserver(
        job,
        ProgressBoard(job.ranks_per_node, shared[:at]),
        StackMemory(job.ranks_per_node, shared[at:]),
        Channel(socket.socket(fileno=channel), TO_FORKSERVER),
    )
