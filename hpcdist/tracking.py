"""A run in trackers while it runs: `record.track`.

The agent of the first node has one process for each tracker, which reads what the ranks and agents
record. Neither ranks nor agents wait for it: a tracker that is slow, or gone, delays no step, and
holds the end of a life for `END_LIMIT_S` at most.

    python -c "from hpcdist.tracking import main; main()" RUN TRACKER
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base import files
from hpcdist.base.secrets import Stars
from hpcdist.job.spec import JobSpec
from hpcdist.machine.process import descendants, send_signal
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State, Verdict

if TYPE_CHECKING:
    from hpcdist.summary.export.live import Tracker

END_LIMIT_S = 15.0
_KILL_LIMIT_S = 2.0
_NICENESS = 19
_MAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); from hpcdist.tracking import main; main()"
)
"""Not -m, by which modules in the working directory would be found before others."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The word of the agent that its life is at its end."""

    state: State
    is_over: bool
    """The run is, too."""


class Trackers:
    """The processes that follow a run, as its agent sees them."""

    def __init__(self, run: Run, job: JobSpec, log: Callable[[str], None]) -> None:
        """Start a process for each tracker of the job."""
        self._run = run
        self._log = log
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in job.record.track or ():
            try:
                self._processes[name] = self._start(name)
            except OSError as error:
                log(f"{name} does not track the run: {files.reason(error)}")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        folder = self._run.path / "tracking"
        folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        descriptor = os.open(
            folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, files.PRIVATE_FILE
        )
        with open(descriptor, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(self._run.path), name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, which outlive the ranks."""
        return [process.pid for process in self._processes.values()]

    def end(self, verdict: Verdict | None, *, is_over: bool) -> None:
        """Tell all how the life ended, wait until they have passed that on, and leave none."""
        state = verdict.state if verdict else "unknown"
        word = msgspec.json.encode(Ended(state=state, is_over=is_over))
        for process in self._processes.values():
            assert process.stdin is not None
            with suppress(OSError):  # it has ended
                process.stdin.write(word)
                process.stdin.close()
        deadline_s = time.monotonic() + END_LIMIT_S
        for name, process in self._processes.items():
            try:
                code = process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._log(f"{name} had not all of the run after {END_LIMIT_S:.0f} s")
            else:
                self._log(f"{name} has the run" if code == 0 else f"{name} ended with code {code}")
            for pid in (process.pid, *descendants(process.pid)):
                send_signal(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_LIMIT_S)


def main() -> None:
    """Follow a run for one tracker, until the agent says that its life has ended, or has ended
    itself."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # the agent says when
    os.nice(_NICENESS)
    run, name = Run(Path(sys.argv[1])), sys.argv[2]
    from hpcdist.summary.export.live import Live

    live = Live(run, name, _tracker(name, run), _say)
    pause_s = 0.0
    while not select.select([sys.stdin], [], [], pause_s)[0]:
        pause_s = live.look()
    word = sys.stdin.buffer.read()
    if not word:
        _say("the agent is gone; the run stays open")
        return
    ended = msgspec.json.decode(word, type=Ended)
    try:
        live.finish(ended.state, is_over=ended.is_over)
    except Exception as error:  # noqa: BLE001 - whatever a tracker's package raises
        _say(f"not tracked to the end: {type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # whatever threads the package has


def _tracker(name: str, run: Run) -> Tracker:
    folder = run.path / "tracking"
    if name == "tensorboard":
        from hpcdist.summary.export.tensorboard import EventFile

        return EventFile(run.path / "tensorboard")
    if name == "mlflow":
        from hpcdist.summary.export.mlflow import TrackedRun

        return TrackedRun()
    from hpcdist.summary.export.wandb import WandbRun

    return WandbRun(folder)


def _say(line: str) -> None:
    """Write a line into the tracker's log, without what may be secret in an address."""
    files.print_line(f"{time.strftime('%H:%M:%S')} {Stars().text(line)}", sys.stderr)
