"""An agent in a container image, as a process outside of it sees it.

The scheduler starts this outside on each node, in the agent's place; it starts the agent in the
image, passes signals on and ends as the agent does. The image has none of the scheduler's commands.
So the agent leaves its verdict in the run directory, and what is to be asked at the end of a life,
such as whether the job is started again, this process asks.

With pyxis the agents are started by srun alone: one such process stands around srun, and concludes
for all nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from hpcdist.agent import launcher_end
from hpcdist.agent.coordinator import CANCEL_SIGNALS
from hpcdist.agent.outcome import failure, lives
from hpcdist.agent.outcome.left import INSIDE_VARIABLE, EndOfAgent, end_file
from hpcdist.agent.task import AgentTask
from hpcdist.base import files
from hpcdist.base.carried import note_use
from hpcdist.base.errors import EXIT_FAILED
from hpcdist.base.needs import OLDEST
from hpcdist.base.ownership import NotOwnError, check_own_folder
from hpcdist.base.secrets import Stars
from hpcdist.machine.containers import (
    InContainer,
    Mount,
    Surroundings,
    environment_inside,
    first_missing_source,
    start_command,
)
from hpcdist.notify import tell_end
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.schedulers import load_requeuer, load_scheduler
from hpcdist.schedulers.base import JobPlace, former_lives
from hpcdist.schedulers.jobs import note_own_job
from hpcdist.schedulers.notes import NOTES_VARIABLE, Note, write_note

# A text that any Python can read: older ones are to say what they are.
_INSIDE = f"""
import sys
if sys.version_info < {OLDEST}:
    sys.exit("the image has Python %d.%d, and hpcdist needs %d.%d or newer" %
             (sys.version_info[:2] + {OLDEST}))
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.base.needs import check
check("the image")
from hpcdist.entry import main
main()
"""
_SIGNALS = (signal.SIGUSR2, *CANCEL_SIGNALS)
_POLL_S = 0.2
_SAID_BYTES = 8192
_NO_SUCH_COMMAND = 127
_MARK = re.compile(r"^\S*(?:FATAL|ERROR|error)\S*\s*")


def main() -> None:
    """Start the agents of this node in the image, and end with their exit code; the scheduler's
    script calls this."""
    from hpcdist.schedulers.submitting import load_task

    options = _parse(sys.argv[1:])
    task = load_task(Path(options.folder))
    assert isinstance(task, AgentTask)
    code = _Outside(task, options).run_to_end()
    # submitit's controller, of the local scheduler, would end the others for an error of the first.
    sys.exit(0 if "SUBMITIT_LOCAL_COMMAND" in os.environ else code)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hpcdist.agent.container")
    parser.add_argument("folder")
    for name in ("runtime", "image", "python", "python-path"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("mount", "option"):
        parser.add_argument(f"--{name}", action="append", default=[])
    words = list(words)
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:at])
    options.starter = words[at + 1 :]
    return options


class _Outside:
    """The process around an agent's image; with srun as `starter`, around all agents of a run."""

    def __init__(self, task: AgentTask, options: argparse.Namespace) -> None:
        self._task = task
        self._options = options
        self._run = Run(Path(task.run_path))
        self._starter: list[str] = options.starter
        self._requeuer = load_requeuer(task.scheduler)
        place = JobPlace(node_rank=0, host=os.uname().nodename)
        self._place = place if self._starter else load_scheduler(task.scheduler).place()
        self._signals: list[int] = []
        self._was_ended = False
        """Something else than a warning has come."""
        self._taken = -1
        """Number of the attempt that was taken here, where the agent had none."""
        self._said = b""
        self._container = InContainer(
            runtime=options.runtime,
            image=options.image,
            mounts=tuple(map(Mount.parse, options.mount)),
            python=options.python,
            python_path=options.python_path,
            options=tuple(options.option),
        )
        self._spec: RunSpec | None = None
        """The run's spec, once it was checked: it has the channels by which the user is told."""

    def run_to_end(self) -> int:
        """Start what is to be started and wait; tell the user of the end; return the run's exit
        code, as far as it is known here."""
        was_over = self._run.verdict_file.exists()
        code = self._run_agents()
        if self._spec is not None and self._place.node_rank == 0 and not was_over:
            tell_end(self._run, self._spec.outline.name or "", self._spec.cluster.profile.notify)
        return code

    def _run_agents(self) -> int:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for signum in _SIGNALS:
            signal.signal(signum, self._note_signal)
        try:
            check_own_folder(self._run.path)
            *_, self._spec = self._run.read_launch()
        except (NotOwnError, msgspec.ValidationError) as error:
            return self._refuse(str(error))
        if self._requeuer is not None and self._place.node_rank == 0:
            note_own_job(self._run, self._requeuer.own_job_id())
        nodes = self._nodes()
        for node in nodes:
            end_file(self._run, node).unlink(missing_ok=True)
        try:
            command, environment = self._command()
        except (KeyError, FileNotFoundError) as error:
            return self._refuse(str(error.args[0]))
        code = self._wait(command, environment, reading)
        ends = [end for node in nodes if (end := self._end_of(node)) is not None]
        if self._starter and not any(end.verdict for end in ends):
            return self._conclude_starter(code, has_begun=bool(ends))
        if not ends:
            return self._refuse(self._why_not_started(code))
        codes = [self._conclude(end, code) for end in ends]
        # As without an image: the codes of others say nothing that node 0's does not.
        return codes[0] if self._place.node_rank == 0 else 0

    def _nodes(self) -> list[int]:
        """Return the nodes that this process concludes for."""
        if not self._starter:
            return [self._place.node_rank]
        spec = self._run.read_spec()
        return list(range(len(spec.plan.nodes) if spec and spec.plan else 1))

    # Starting.

    def _command(self) -> tuple[list[str], dict[str, str]]:
        """Return what is started, and its environment. Raises KeyError or FileNotFoundError, with a
        sentence, where a mount is not to be had on this node."""
        container = self._container
        try:
            mounts = [mount.filled(os.environ) for mount in container.mounts]
        except KeyError as error:
            raise KeyError(
                f"container.mounts names ${error.args[0]}, which is not set in the job"
            ) from None
        missing = first_missing_source(mounts)
        if missing is not None:
            raise FileNotFoundError(f"container.mounts: there is no {missing.source} on this node")
        container = container._replace(mounts=(*mounts, *self._temporary(mounts)))
        environment = environment_inside(container, os.environ)
        environment[INSIDE_VARIABLE] = container.runtime
        agent = [container.python, "-u", "-c", _INSIDE, self._options.folder]
        note_use(Path(container.python_path))
        command = [
            *self._starter,
            *start_command(
                container,
                agent,
                cwd=os.getcwd(),
                environment=environment,
                node=Surroundings.here(),
            ),
        ]
        shown = Stars().args(command[: len(command) - len(agent) + 1])
        files.print_line(f"hpcdist: {shlex.join(shown)} ...", sys.stderr)
        return command, environment

    def _temporary(self, mounts: Sequence[Mount]) -> list[Mount]:
        """Return the job's folder for temporary files, where a site has made one for it."""
        folder = os.environ.get("TMPDIR", "")
        is_seen = any(Path(folder).is_relative_to(mount.source) for mount in mounts)
        needs_it = self._container.runtime in {"apptainer", "podman"} and not is_seen
        return [Mount(folder, folder)] if folder and needs_it and Path(folder).is_dir() else []

    def _wait(self, command: Sequence[str], environment: Mapping[str, str], woken: int) -> int:
        """Start a command and wait for its end; pass signals on, and what it says on stderr."""
        try:
            process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._said = f"{command[0]} cannot be run: {error.strerror}".encode()
            return _NO_SUCH_COMMAND
        assert process.stderr is not None
        says: list[IO[bytes] | int] = [process.stderr, woken]
        while process.poll() is None:
            ready, _, _ = select.select(says, [], [], _POLL_S)
            if woken in ready:
                os.read(woken, 4096)
            self._pass_signals_on(process)
            if process.stderr in ready and not self._hear(process.stderr):
                says.remove(process.stderr)
        os.set_blocking(process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while process.stderr in says and self._hear(process.stderr):
                pass
        return 128 - process.returncode if process.returncode < 0 else process.returncode

    def _note_signal(self, number: int, _: object) -> None:
        self._signals.append(number)
        self._was_ended |= number in CANCEL_SIGNALS

    def _pass_signals_on(self, process: subprocess.Popen[bytes]) -> None:
        """Tell the runtime, and by it the agent. A warning waits until the agent hears it: sooner,
        it would end the runtime, and the run with it."""
        if self._starter:  # what Slurm sends to a batch job, its srun gets by itself
            self._signals.clear()
        elif self._was_ended or (self._signals and self._is_heard()):
            while self._signals:
                process.send_signal(self._signals.pop(0))

    def _is_heard(self) -> bool:
        end = self._end_of(self._place.node_rank)
        return end is not None and end.hears_signals

    def _hear(self, said: IO[bytes]) -> bool:
        piece = os.read(said.fileno(), 1 << 16)
        self._said = (self._said + piece)[-_SAID_BYTES:]
        with contextlib.suppress(OSError):  # a full disk
            sys.stderr.buffer.write(piece)
            sys.stderr.buffer.flush()
        return bool(piece)

    # The end.

    def _end_of(self, node: int) -> EndOfAgent | None:
        try:
            return files.convert(files.read_json(end_file(self._run, node)), EndOfAgent)
        except msgspec.ValidationError:
            return None

    def _why_not_started(self, code: int) -> str:
        lines = self._said.decode(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        # Of several lines of a runtime's, the first that says what is wrong.
        best = next((line for line in said if _MARK.match(line)), said[-1] if said else "nothing")
        shown = _MARK.sub("", best) or best
        return (
            f"no agent was started in {self._container.image}: {self._container.runtime} ended "
            f"with exit code {code} and said: {shown}"
        )

    def _conclude(self, end: EndOfAgent, code: int) -> int:
        """Conclude what an agent has left; return the run's exit code."""
        if end.verdict is None:  # it was killed, or had nothing to say
            return code
        job, _, _ = self._run.read_launch()

        def has_a_say() -> bool:
            return self._run.newest_attempt() <= max(end.newest, self._taken)

        if not has_a_say():
            return code
        verdict = lives.conclude(
            self._run,
            job,
            end.verdict,
            self._requeuer,
            patience=lives.Patience(end.verdict, self._pause, self._requeuer),
            has_a_say=has_a_say,
            begin_attempt=None if end.has_begun else self._begin_attempt,
        )
        return (self._run.read_verdict() or verdict).exit_code_of_run

    def _conclude_starter(self, code: int, *, has_begun: bool) -> int:
        """Conclude where srun ended and no agent has left a verdict; return the exit code."""
        sentence = None if has_begun else self._why_not_started(code)
        if self._requeuer is None:
            return self._refuse(sentence or "its agents were killed")
        job, _, _ = self._run.read_launch()
        launcher_end.conclude(
            self._run,
            job,
            self._requeuer,
            code=code,
            said=launcher_end.errors_in(self._said.decode(errors="replace")),
            sentence=sentence,
            pause=self._pause,
        )
        return code or EXIT_FAILED

    def _begin_attempt(self) -> int:
        job, _, _ = self._run.read_launch()
        life = self._requeuer.life() if self._requeuer is not None else former_lives()
        self._taken = lives.begin_attempt(self._run, job, life=life)
        return self._taken

    def _pause(self, seconds: float) -> bool:
        """Wait, or until SIGTERM comes; True where it does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if signal.SIGTERM in self._signals:
                self._signals.clear()
                return True
            time.sleep(_POLL_S)
        return False

    def _refuse(self, why: str) -> int:
        """Write the verdict on a run whose agent could not be started on this node."""
        node, host = self._place.node_rank, self._place.host
        sentence = why if self._starter else f"node {node} (host {host}): {why}"
        print(f"hpcdist: {sentence}", file=sys.stderr, flush=True)
        if node and NOTES_VARIABLE in os.environ:
            write_note(Note(node=node, host=host, said=why))
        if self._was_ended or self._run.cancel_file.exists():
            return EXIT_FAILED  # it was ended before it began, and the scheduler says why
        self._run.write_verdict(
            failure.without_rank("launch", sentence, time_s=time.time(), node=node, host=host)
        )
        return EXIT_FAILED
