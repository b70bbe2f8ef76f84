"""The program that each node of an Azure job executes in the folder where the job's archive was
unpacked: `python -m hpcdist.schedulers.azure.start OUTPUT`.

The mounted OUTPUT is no place to run in: its files appear when they are closed, and Azure's mount
keeps by default for ever what it once knew of a file. So each node works in a run directory on its
own disk, which begins as former starts of the job have left it, and copies to OUTPUT what is new
there. This process does that; the agent is its child, so that what ends the agent does not end the
copying.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import EXIT_FAILED, EXIT_USER
from hpcdist.base.ownership import is_own
from hpcdist.job.spec import OwnCodeJob
from hpcdist.machine.command import python_command
from hpcdist.machine.process import die_with_parent
from hpcdist.runs.publishing import Publisher, scan
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.schedulers.azure.node import KEY_FILE, KEY_VARIABLE
from hpcdist.schedulers.azure.request import RESUME, RUN, SNAPSHOT
from hpcdist.schedulers.hosts import BEGIN_VARIABLE, LIFE_VARIABLE
from hpcdist.training.checkpoint import files as checkpoint_files

_AGENT = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main_of_node
main_of_node(*sys.argv[1:])
"""
_PREPARE = """
import sys
from pathlib import Path
from hpcdist.runs.run import Run
from hpcdist.workloads import load_workload
load_workload(Run(Path(sys.argv[1])).read_launch()[0]).prepare()
"""
_LOOK_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_PAUSE_SHARE = 0.02
"""Pauses grow with the age of the run."""
_LAST_TRIES_S = 60.0
_KEPT_CHECKPOINTS = 2
"""The newest may turn out to be damaged."""
_MOST_ECHOED_BYTES = 1 << 16
"""Most that is read of a rank's log at one look."""


def main() -> None:
    """Prepare this node's run directory, run the agent, and publish what comes of it."""
    begin_s = time.time()
    if len(sys.argv) != 2:
        print("usage: python -m hpcdist.schedulers.azure.start OUTPUT", file=sys.stderr)
        sys.exit(EXIT_USER)
    output, code = Path(sys.argv[1]), Path.cwd()
    node = int(os.environ.get("NODE_RANK") or os.environ.get("RANK") or 0)
    try:
        spec = read_spec(code)
        run = prepare_run(code, output, spec)
        prepare_data(run, working_folder(code, spec))
        publisher = Publisher(run.path, output)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        print(f"hpcdist: node {node}: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    environment = {BEGIN_VARIABLE: str(begin_s), LIFE_VARIABLE: str(life_of(run))}
    environment[KEY_VARIABLE] = str(code / RUN / KEY_FILE)
    agent = start_agent(run, str(spec.scheduler), working_folder(code, spec), environment)
    sys.exit(attend(agent, run, publisher))


def read_spec(code: Path) -> RunSpec:
    """Return the spec.json that came with the job. Raises ValueError where it cannot be read."""
    path = code / RUN / "spec.json"
    spec = files.read_as(path, RunSpec)
    if spec is None or spec.id is None or "/" in spec.id:
        raise ValueError(
            f"{path} cannot be read: {files.why_unreadable(path, RunSpec) or 'no run id'}"
        )
    return spec


# The run directory.


def prepare_run(code: Path, output: Path, spec: RunSpec) -> Run:
    """Make the run directory on this node's disk, with all that former starts of the job have to
    pass on. Raises OSError."""
    folder = Path(tempfile.gettempdir(), f"hpcdist-{os.geteuid()}")
    folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    if not is_own(folder) or folder.stat().st_mode & 0o077:
        raise PermissionError(f"{folder} is another user's, or open to others")
    run = Run(folder / str(spec.id))
    shutil.rmtree(run.path, ignore_errors=True)  # of a start before, on the same disk
    run.make()
    for name in ("spec.json", "function.pkl", "private.json"):
        if (code / RUN / name).exists():
            content = files.read_bytes(code / RUN / name, most_bytes=float("inf"))
            files.write_whole(run.path / name, content)
    settle_paths(run, code, spec)
    restore(run, output)
    return run


def life_of(run: Run) -> int:
    """Return the number of the job's starts that came as far as to start ranks."""
    begun = map(run.read_beginning, run.attempts())
    return 1 + max((beginning.life for beginning in begun if beginning), default=-1)


def settle_paths(run: Run, code: Path, spec: RunSpec) -> None:
    """Have spec.json name the snapshot, and the checkpoint to begin from, where they are on this
    node."""
    content = files.load_json(run.spec_file)
    if spec.snapshot and spec.snapshot.folder:
        content = _moved(content, spec.snapshot.folder, str(code / SNAPSHOT))
    if (code / RESUME).is_dir():
        content["job"]["checkpoint"]["resume"] = str(code / RESUME)
    files.write_json(run.spec_file, content)


def _moved(value: Any, there: str, here: str) -> Any:
    if isinstance(value, str):
        is_inside = value == there or value.startswith(f"{there}/")
        return here + value.removeprefix(there) if is_inside else value
    if isinstance(value, dict):
        return {key: _moved(inner, there, here) for key, inner in value.items()}
    return [_moved(inner, there, here) for inner in value] if isinstance(value, list) else value


def working_folder(code: Path, spec: RunSpec) -> Path:
    """Return where the ranks work: where the user was, in the snapshot."""
    snapshot = spec.snapshot
    if snapshot is None or snapshot.source is None or spec.cwd is None:
        return code
    within = os.path.relpath(spec.cwd, snapshot.source)
    folder = code / SNAPSHOT / within
    return folder if not within.startswith("..") and folder.is_dir() else code / SNAPSHOT


def restore(run: Run, output: Path) -> None:
    """Bring what former starts have published: of the checkpoints the newest, no logs, and of the
    folder where agents meet nothing that is of their time. Raises OSError."""
    published = scan(output)
    for path in sorted(published.keys() - _old_checkpoints(published)):
        if not path.startswith("logs/"):
            with contextlib.suppress(FileNotFoundError):  # a lost node may go on, and remove it
                (run.path / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(output / path, run.path / path, follow_symlinks=False)


def _old_checkpoints(found: Iterable[str]) -> set[str]:
    """Return the files of those that are older than the newest ones."""
    of_steps: dict[int, set[str]] = {}
    for path in found:
        folder, _, rest = path.partition("/")
        step = checkpoint_files.parse_step(rest.partition("/")[0])
        if folder == "checkpoints" and step is not None:
            of_steps.setdefault(step, set()).add(path)
    old = sorted(of_steps)[:-_KEPT_CHECKPOINTS]
    return set().union(*(of_steps[step] for step in old))


# The agent.


def prepare_data(run: Run, folder: Path) -> None:
    """Do on this node what a workload wants done before, such as downloads, in a process of its
    own. What it lacks after that the agent tells."""
    if isinstance(run.read_launch()[0], OwnCodeJob):
        return
    done = subprocess.run(python_command(_PREPARE, str(run.path)), cwd=folder, check=False)
    if done.returncode:
        print("hpcdist: the data could not be prepared", file=sys.stderr, flush=True)


def start_agent(
    run: Run, scheduler: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the agent, which ends when this process does; its output is this one's."""
    parent = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-u", "-c", _AGENT, str(run.path), scheduler],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # signals reach it from here, and once
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - there are no threads here
    )


def attend(agent: subprocess.Popen[bytes], run: Run, publisher: Publisher) -> int:
    """Publish what is new until the agent has ended, and pass on signals; return its exit code."""
    echo = LogEcho(run)
    came: list[int] = []

    def take(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        agent.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, take)
    begin_s = published_s = time.monotonic()
    while agent.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_LOOK_S)
        echo.show()
        now = time.monotonic()
        pause_s = max(_FIRST_PAUSE_S, _PAUSE_SHARE * (now - begin_s))
        if not came and now - published_s < min(pause_s, _LONGEST_PAUSE_S):
            continue
        published_s = now
        try:
            publisher.publish()
        except OSError as error:
            print(f"hpcdist: not published, tried again later: {error}", file=sys.stderr)
    echo.show()
    publish_the_rest(publisher)
    return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode


def publish_the_rest(publisher: Publisher) -> None:
    """Publish what the agent has left, its verdict included."""
    deadline = time.monotonic() + _LAST_TRIES_S
    while True:
        try:
            publisher.publish(is_final=True)
        except OSError as error:
            print(f"hpcdist: the run's end is not published: {error}", file=sys.stderr)
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_S)
        else:
            return


class LogEcho:
    """Prints what the node's ranks print, for the log that Azure shows while the job runs."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._shown: dict[Path, int] = {}

    def show(self) -> None:
        """Print the new lines, each with the rank before it; of a flood the last."""
        for rank, _, path in self._run.log_files():
            with contextlib.suppress(OSError), path.open("rb") as log:
                begin = self._shown.get(path, 0)
                size = os.fstat(log.fileno()).st_size
                if size - begin > _MOST_ECHOED_BYTES:
                    begin = size - _MOST_ECHOED_BYTES
                    print(f"[{rank}] ... the rest is in its log", flush=True)
                log.seek(begin)
                content, newline, _ = log.read(_MOST_ECHOED_BYTES).rpartition(b"\n")
                self._shown[path] = begin + len(content) + len(newline)
                for line in content.decode(errors="replace").split("\n") if newline else ():
                    files.print_line(f"[{rank}] {line}")


if __name__ == "__main__":
    main()
