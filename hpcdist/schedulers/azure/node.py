"""The program that each node of an Azure job executes in the folder where the job's archive was
unpacked: `python -m hpcdist.schedulers.azure.node OUTPUT`.

The mounted OUTPUT is no place to run in: its files appear when they are closed, and Azure's mount
keeps by default for ever what it once knew of a file. So each node works in a run directory on its
own disk, which begins as former starts of the job have left it, and copies to OUTPUT what is new
there: each file under its name in the run directory, whichever node wrote it, for those of ranks,
nodes and attempts have their numbers in their names. This process does that; the agent is its
child, so that what ends the agent does not end the copying.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from types import FrameType

import msgspec

from hpcdist.base import files
from hpcdist.job.spec import OwnCodeJob
from hpcdist.machine.command import python_command
from hpcdist.machine.process import die_with_parent
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import walk
from hpcdist.runs.spec import RunSpec
from hpcdist.schedulers.hosts import BEGIN_VARIABLE, LIFE_VARIABLE

LIB, RUN, SNAPSHOT, RESUME = "lib", "run", "snapshot", "resume"
"""Folders of the archive: hpcdist and what it needs; spec.json, function.pkl and the agents'
secret; the snapshot of the user's work tree; the checkpoints that checkpoint.resume means."""
KEY_FILE = "meeting.key"
"""Comes with the job; its content is a secret of the run's agents, in hexadecimal digits."""
KEY_VARIABLE = "HPCDIST_JOB_KEY"
"""Names the file with the secret of the run's agents."""
KEPT_CHECKPOINTS = 2
"""The newest may turn out to be damaged."""

_AGENT = "from hpcdist.entry import main_of_node; main_of_node(*sys.argv[1:])"
_PREPARE = """
from pathlib import Path
from hpcdist.runs.run import Run
from hpcdist.workloads import load_workload
load_workload(Run(Path(sys.argv[1])).read_launch()[0]).prepare()
"""
_CHECKPOINT = re.compile(r"step-(\d{8,})\.(?:pt|ckpt|dcp)")
_OWN_NAMES = (
    *("spec.json", "private.json", "submission.json", "script.sh", "function.pkl", "job.yml"),
    *("figures.msgpack", "remote.json", "sweep.json", "cancel", "summary.txt"),
    *("submitit", "code", "launch"),
)
"""Names in a run directory that mean something to hpcdist and are not for nodes to write. Other
names may be those of the program's own files."""
_OF_NODES = re.compile(r"launch/(?:agent-[0-9]{5,9}\.json|life-[0-9]{5,9}\.ended)")
"""The files that nodes write there all the same, and that are for others to know."""
_HIDDEN = re.compile(r"\.(?!metadata$)")
"""Files that are being written, and not the list of tensors of a checkpoint in parts."""
VERDICT, CHECKPOINTS = "verdict.json", "checkpoints/"
_LOOK_S = 1.0


def main() -> None:
    """Prepare this node's run directory, run the agent, and publish what comes of it."""
    begin_s = time.time()
    code, output = Path.cwd(), Path(sys.argv[1])
    try:
        run, spec = prepare_run(code, output)
        folder = _working_folder(code, spec)
        if not isinstance(run.read_launch()[0], OwnCodeJob):
            # What the data still lack after that, the agent tells.
            prepare = python_command(_PREPARE, str(run.path))
            if subprocess.run(prepare, cwd=folder, check=False).returncode:
                print("hpcdist: the data could not be prepared", file=sys.stderr, flush=True)
        published = scan(run.path)  # that is in the storage already
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        sys.exit(f"hpcdist: node {os.environ.get('NODE_RANK') or 0}: {error}")
    # The starts of the job that came as far as to start ranks are lives of the run.
    environment = {
        BEGIN_VARIABLE: str(begin_s),
        LIFE_VARIABLE: str(run.next_life()),
        KEY_VARIABLE: str(code / RUN / KEY_FILE),
    }
    parent = os.getpid()
    python, *words = python_command(_AGENT, str(run.path), str(spec.scheduler))
    agent = subprocess.Popen(
        [python, "-u", *words],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # signals reach it from here, and once
        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - there are no threads here
    )
    sys.exit(_attend(agent, run, output, published))


def prepare_run(code: Path, output: Path) -> tuple[Run, RunSpec]:
    """Make the run directory on this node's disk, with all that former starts of the job have to
    pass on; return it, and the spec.json that came with the job.

    The spec.json of the directory names the snapshot, and the checkpoint to begin from, where they
    are on this node. Raises OSError and ValueError.
    """
    bundled = Run(code / RUN)
    spec = bundled.read_spec()
    if spec is None or spec.id is None:
        raise ValueError(f"{bundled.spec_file} cannot be read")
    run = Run(Path(tempfile.mkdtemp(prefix="hpcdist-"), spec.id))
    run.make()
    if bundled.function_file.exists():
        files.write_whole(run.function_file, bundled.function_file.read_bytes())
    text = bundled.spec_file.read_text()
    if spec.snapshot is not None and spec.snapshot.folder is not None:
        # In JSON, without the quotation mark at the end.
        there, here = (
            files.to_json(folder)[:-2] for folder in (spec.snapshot.folder, str(code / SNAPSHOT))
        )
        text = re.sub(f'{re.escape(there)}(?=[/"])', lambda _: here, text)
    content = json.loads(text)
    if (code / RESUME).is_dir():
        content["job"]["checkpoint"]["resume"] = str(code / RESUME)
    files.write_json(run.spec_file, content)
    _restore(run, output)
    return run, spec


def _restore(run: Run, output: Path) -> None:
    """Bring what former starts have published: of the checkpoints the newest, no logs, and of the
    folder where agents meet nothing that is of their time. Raises OSError."""
    published = scan(output)
    saved = {path.split("/")[1] for path in published if path.startswith("checkpoints/")}
    old = by_step(saved)[:-KEPT_CHECKPOINTS]
    left_out = ("logs/", *(f"checkpoints/{name}" for name in old))
    for path in sorted(published):
        if not path.startswith(left_out):
            with contextlib.suppress(FileNotFoundError):  # a lost node may go on, and remove it
                (run.path / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(output / path, run.path / path, follow_symlinks=False)


def by_step(names: Iterable[str]) -> list[str]:
    """Return those of the names that are checkpoints', oldest first."""
    steps = {name: int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))}
    return sorted(steps, key=steps.__getitem__)


def _working_folder(code: Path, spec: RunSpec) -> Path:
    """Return where the ranks work: where the user was, in the snapshot."""
    snapshot = spec.snapshot
    if snapshot is None or snapshot.source is None or spec.cwd is None:
        return code
    within = os.path.relpath(spec.cwd, snapshot.source)
    folder = code / SNAPSHOT / within
    return folder if not within.startswith("..") and folder.is_dir() else code / SNAPSHOT


def _attend(
    agent: subprocess.Popen[bytes],
    run: Run,
    output: Path,
    published: dict[str, tuple[int, int, int]],
) -> int:
    """Publish what is new until the agent has ended and its end is published, too, and pass on
    signals; return its exit code."""
    received: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        agent.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    begin_s = published_s = time.monotonic()
    ended_s: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(_LOOK_S)
        now_s, is_over = time.monotonic(), agent.returncode is not None
        if is_over and ended_s is None:
            ended_s = now_s
        # Pauses between two copies grow with the age of the run, to a minute.
        pause_s = min(max(5.0, 0.02 * (now_s - begin_s)), 60.0)
        is_due = now_s - published_s >= pause_s
        if not (is_due or is_over or received):
            continue
        published_s = now_s
        try:
            publish(run.path, output, published)
        except OSError as error:
            print(f"hpcdist: not published, and tried again: {error}", file=sys.stderr, flush=True)
            if ended_s is None or now_s - ended_s < 60.0:
                time.sleep(_LOOK_S)
                continue
        if is_over:
            return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode


# What is published.


def is_wanted(path: str) -> bool:
    """Return whether a file of this path may be published: one within the run directory that is
    not hidden, and none of hpcdist's own but those that nodes write."""
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or "\0" in path or any(map(_HIDDEN.match, parts)):
        return False  # `..` is hidden, too
    return bool(parts) and (parts[0] not in _OWN_NAMES or _OF_NODES.fullmatch(path) is not None)


def scan(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return the files in a folder that may be published, by their paths: size, time of the last
    change in nanoseconds, and inode. Links are none."""
    return {
        path: (status.st_size, status.st_mtime_ns, status.st_ino)
        for path, status, target in walk(folder)
        if not target and is_wanted(path)
    }


def publish(run: Path, output: Path, published: dict[str, tuple[int, int, int]]) -> None:
    """Copy each file of a run directory that is not as `published` has it, the verdict last; remove
    what is gone here; note both in `published`. Raises OSError, after which it may be called
    again."""
    present = scan(run)
    for path in sorted(present, key=lambda path: (path == VERDICT, path)):
        if published.get(path) != present[path]:
            target = output / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # it is gone by now
                with written_aside(target) as aside:
                    shutil.copyfile(run / path, aside, follow_symlinks=False)
                published[path] = present[path]
    for path in published.keys() - present.keys():
        (output / path).unlink(missing_ok=True)
        del published[path]


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a name beside a path, and rename it to that where nothing fails."""
    aside = files.aside_of(path)
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
