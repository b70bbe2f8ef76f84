"""The user's own program, executed in every rank as `torchrun --no-python program args` would."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from hpcdist.base.errors import JobError
from hpcdist.job.preload import Preload
from hpcdist.job.spec import JobSpec, ProgramJob
from hpcdist.rank.context import RankContext

_SIGNAL_BASE = 128
"""What a shell adds to the number of the signal that ended a program."""


def check(job: JobSpec) -> None:
    """Nothing: the program was found when the job was loaded."""


def prepare(job: JobSpec) -> None:
    """Nothing: what a program needs is its own business."""


def preload(_job: JobSpec) -> Preload:
    """Nothing: no import outlives the rank's process image."""
    return Preload()


def run(context: RankContext) -> None:
    """Become the program; its exit code, or the signal that ends it, says how the rank ended.

    Raises JobError where it cannot be executed.
    """
    job = context.job
    assert isinstance(job, ProgramJob)
    command = [_path(job), *job.args]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # the log shows what a program prints, as a rank
    if not context.has_agent:
        sys.exit(_run_below(command))
    _restore_signals()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if context.progress is not None:
        context.progress.finish()  # from now on nothing but the program can say that it has failed
    try:
        os.execve(command[0], command, os.environ)  # noqa: S606 - it is what the user asked for
    except OSError as error:
        raise _not_executable(job, error) from None


def _path(job: ProgramJob) -> str:
    """What was found at the submission; in a container, or on a node with other software, a name
    is looked for anew."""
    if not job.is_given_by_path and not os.path.exists(job.script):
        return shutil.which(job.program) or job.script
    return job.script


def _run_below(command: list[str]) -> int:
    """In debug mode this process is that of the command, which goes on."""
    done = subprocess.run(command, check=False)
    return done.returncode if done.returncode >= 0 else _SIGNAL_BASE - done.returncode


def _restore_signals() -> None:
    """What Python ignores at its start, a fresh program does not; that it is asked for its stacks
    means nothing to it, and must not end it."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)


def _not_executable(job: ProgramJob, error: OSError) -> JobError:
    return JobError(
        f"{job.program} cannot be executed: {error.strerror}", hint=f"look at {job.script}"
    )
